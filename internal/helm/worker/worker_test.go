package worker

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if Main() {
		return
	}
	os.Exit(m.Run())
}

// newPool returns a Pool whose jobs have more time than they need on a slow machine.
func newPool(t *testing.T, size int64) *Pool {
	t.Helper()
	pool := New(size)
	pool.limits = map[kind]time.Duration{render: time.Minute, check: time.Minute, index: time.Minute, tags: time.Minute, unpack: time.Minute}
	t.Cleanup(func() {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		for _, worker := range pool.idle {
			worker.idle.Stop()
			worker.end()
		}
		pool.idle = nil
	})
	return pool
}

// over returns a function that returns these data.
func over(data map[string]any) func() (map[string]any, error) {
	return func() (map[string]any, error) { return data, nil }
}

func zipped(t *testing.T, text string) [][]byte {
	t.Helper()
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	if _, err := writer.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return [][]byte{packed.Bytes()}
}

func archived(t *testing.T, files map[string]string) [][]byte {
	t.Helper()
	var tarred bytes.Buffer
	writer := tar.NewWriter(&tarred)
	for name, content := range files {
		if err := writer.WriteHeader(&tar.Header{Name: "web/" + name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return zipped(t, tarred.String())
}

const chartYAML = "{apiVersion: v2, name: web, version: 1.0.0}\n"

// grown returns how much memory this process has taken from the system since a moment.
func grown(t *testing.T) func() int {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	return func() int {
		runtime.ReadMemStats(&after)
		return int(after.Sys-before.Sys) >> 20
	}
}

func unpackedBy(t *testing.T, pool *Pool, files map[string]string) func(context.Context) error {
	t.Helper()
	archive := archived(t, files)
	return func(ctx context.Context) error {
		_, err := pool.Unpack(ctx, "team", archive)
		return err
	}
}

// noise is text that does not compress.
func noise(size int) string {
	var text strings.Builder
	for state := uint64(1); text.Len() < 2*size; {
		state = state*6364136223846793005 + 1442695040888963407
		fmt.Fprintf(&text, "%016x\n", state)
	}
	return text.String()
}

// A child does many jobs, and may reuse the template of the last one. An idle child ends, and a killed one is
// replaced.
func TestChildren(t *testing.T) {
	pool := newPool(t, 1)
	pool.idleTime = 300 * time.Millisecond
	value := func(template string, want string) *child {
		t.Helper()
		got, err := pool.Render(t.Context(), "team", template, over(map[string]any{"b": 1}))
		if err != nil || string(got) != want || len(pool.idle) != 1 {
			t.Fatalf("%q, %v, %d idle", got, err, len(pool.idle))
		}
		return pool.idle[0]
	}
	first := value("a: {{ .b }}", "a: 1")
	if second := value("c: {{ .b }}", "c: 1"); second != first {
		t.Error("another child does the next job")
	}
	if _, err := pool.Render(t.Context(), "team", "{{ fail .b }}", over(nil)); !errors.As(err, new(Problem)) {
		t.Errorf("%v is no Problem", err)
	}
	if err := first.command.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := value("a: {{ .b }}", "a: 1")
	if second == first {
		t.Error("the child is not replaced")
	}
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", second.command.Process.Pid))
	if err != nil || len(environment) > 0 {
		t.Errorf("the child has the environment %q (%v)", environment, err)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", second.command.Process.Pid))
	for _, file := range files {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", second.command.Process.Pid, file.Name())); !strings.HasPrefix(to, "pipe:") && !strings.HasPrefix(to, "anon_inode:") && to != "/dev/null" && !strings.HasPrefix(to, "/sys/fs/cgroup/") { // Go itself reads how many processors there are.
			t.Errorf("the child has the file %s", to)
		}
	}
	if err != nil {
		t.Error(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for syscall.Kill(second.command.Process.Pid, 0) == nil {
		if time.Sleep(20 * time.Millisecond); time.Now().After(deadline) {
			t.Fatal("the idle child stays")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := pool.Render(ctx, "team", "{{ range 2000000000 }}{{ end }}", over(nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the caller's deadline", err)
	}
	value("a: {{ .b }}", "a: 1")
}

// found searches an index without a Pool.
func found(t *testing.T, text, chart, wanted string) (Found, error) {
	t.Helper()
	return (*Pool)(nil).Find(t.Context(), "", Search{Chart: chart, Wanted: wanted}, given(zipped(t, text)))
}

func TestIndex(t *testing.T) {
	two := []Found{{Entry{"1.0.0", "a.tgz", "ff"}, 1}, {Entry{"2.0.0", "", ""}, 2}}
	none := []Found{{}, {}}
	for name, test := range map[string]struct {
		text string
		// want is what is found for 1.0.0, and for the newest.
		want []Found
		err  string
	}{
		"as Helm writes it":         {"apiVersion: v1\nentries:\n  web:\n  - apiVersion: v2\n    description: |-\n      # entries\n\n      - x\n    digest: ff\n    urls:\n    - a.tgz\n    - b.tgz\n    version: 1.0.0\n  - version: 2.0.0\n  webs:\n  - version: 3.0.0\ngenerated: \"2026\"\nentries:\n  web:\n  - version: 4.0.0\n", two, ""},
		"indented more":             {"entries: # all\n    web:\n        - version: 1.0.0\n          digest: ff\n          urls: [a.tgz]\n        # another\n        - version: 2.0.0\n    \"other\":\n        -\n          version: 3.0.0\n", two, ""},
		"lines of Windows":          {"entries:\r\n  web:\r\n  - version: 1.0.0\r\n    urls: [a.tgz]\r\n    digest: ff\r\n  - version: 2.0.0\r\n  other: [{version: 3.0.0}]", two, ""},
		"in a few lines":            {"entries: {web: [{version: 1.0.0, urls: [a.tgz], digest: ff}, {version: 2.0.0}], other: [{version: 3.0.0}]}\n", two, ""},
		"in a line for each chart":  {"entries:\n  other: [{version: 3.0.0}]\n  web: [{version: 1.0.0, urls: [a.tgz], digest: ff}, {version: 2.0.0}]\n", two, ""},
		"another chart is no YAML":  {"entries:\n  other:\n  - [\n  web:\n  - {version: 1.0.0, urls: [a.tgz], digest: ff}\n  - version: 2.0.0\n", two, ""},
		"JSON":                      {`{"apiVersion":"v1","entries":{"web":[{"version":"1.0.0","urls":["a.tgz"],"digest":"ff"},null,{"version":"2.0.0"}]}}`, two, ""},
		"an entry that is too long": {"entries:\n  web:\n  - {version: 1.0.0, urls: [" + strings.Repeat("x", maxEntry) + "]}\n  - {urls: [a.tgz]}\n  - null\n", []Found{{Versions: 1}, {Versions: 2}}, ""},
		"no charts":                 {"entries:\n", none, ""},
		"no charts, still":          {"apiVersion: v1\nentries: {}\n", none, ""},
		"no entries":                {"apiVersion: v1\n", none, "is not an index of a Helm repository"},
		"nothing":                   {"", none, "is not an index of a Helm repository"},
		"no YAML":                   {"entries: [", none, "is not an index of a Helm repository"},
		"not YAML further down":     {"entries:\n  web:\n  - [\n", none, "is not an index of a Helm repository"},
		"a web page":                {"<!DOCTYPE html><html></html>", none, "is not an index of a Helm repository but a web page"},
	} {
		for i, wanted := range []string{"1.0.0", ""} {
			got, err := found(t, test.text, "web", wanted)
			if said := fmt.Sprint(err); got != test.want[i] || test.err != "" && said != test.err || test.err == "" && err != nil {
				t.Errorf("%s: %q is %+v, %v, want %+v, %q", name, wanted, got, err, test.want[i], test.err)
			}
		}
	}
}

// The wanted version itself comes before another that means the same, and this before none.
func TestFind(t *testing.T) {
	const text = "entries:\n  web:\n  - version: v1.0.0\n  - version: 1.0.0+b\n  - version: 1.0.0\n  - version: 2.0.0-rc.1\n  - version: latest\n  - version: 1.2\n"
	for wanted, want := range map[string]string{
		"1.0.0": "1.0.0", "1.0.0+b": "1.0.0+b", "1.0.0+c": "v1.0.0", "v1.0.0": "v1.0.0", "": "1.2", "1.2": "1.2", "1.2.0": "", "latest": "latest", "1.0.x": "v1.0.0",
		">=1.0.0-0": "2.0.0-rc.1", "2.0.0-rc.1": "2.0.0-rc.1", "2.0.0": "", "none": "",
	} {
		if got, err := found(t, text, "web", wanted); err != nil || got.Version != want || got.Versions == 0 {
			t.Errorf("%q is %+v, %v, want %q", wanted, got, err, want)
		}
	}
	all, err := Versions(Search{Chart: "web"}, bytes.NewReader(zipped(t, text)[0]))
	if want := []string{"v1.0.0", "1.0.0+b", "1.0.0", "2.0.0-rc.1", "latest", "1.2"}; err != nil || !slices.Equal(all, want) {
		t.Errorf("%v, %v", all, err)
	}
}

// A child reads a large index one version after the other.
func TestLargeIndex(t *testing.T) {
	var text strings.Builder
	text.WriteString("apiVersion: v1\nentries:\n")
	for i := 0; text.Len() < 20<<20; i++ {
		if i%500 == 0 {
			fmt.Fprintf(&text, "  chart-%d:\n", i/500)
		}
		fmt.Fprintf(&text, "  - apiVersion: v2\n    appVersion: 1.2.3\n    created: \"2026-01-01T00:00:00Z\"\n    description: %s\n    digest: %064x\n    name: chart-%d\n    urls:\n    - https://charts.example.com/charts/chart-%[3]d-1.0.%[2]d.tgz\n    version: 1.0.%[2]d\n", strings.Repeat("some words ", 80), i, i/500)
	}
	pool, parts, began := newPool(t, 1), zipped(t, text.String()), time.Now()
	got, err := pool.Find(t.Context(), "team", Search{Chart: "chart-7", Wanted: "1.x"}, given(parts))
	if want := (Found{Entry{"1.0.3999", "https://charts.example.com/charts/chart-7-1.0.3999.tgz", fmt.Sprintf("%064x", 3999)}, 500}); got != want || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	t.Logf("after %s", time.Since(began).Round(time.Millisecond))
}

func TestUnpack(t *testing.T) {
	templated := func(text string) map[string]string {
		return map[string]string{"Chart.yaml": chartYAML, "templates/a.yaml": text}
	}
	many := map[string]string{"Chart.yaml": chartYAML}
	for i := range 40_000 { // Empty files compress to nothing, but not in a Bundle.
		many[fmt.Sprint(i)] = ""
	}
	for name, test := range map[string]struct {
		files map[string]string
		want  Chart
		err   string
	}{
		"plain":             {files: templated("kind: ConfigMap")},
		"a hook":            {files: templated("annotations:\n  \"helm.sh/hook\": pre-install,post-upgrade\n"), want: Chart{HasHooks: true}},
		"a hook, templated": {files: templated(`annotations: {helm.sh/hook: {{ .Values.hook }} }`), want: Chart{HasHooks: true}},
		"a test":            {files: templated("annotations:\n  \"helm.sh/hook\": \"test\"\n  helm.sh/hook-delete-policy: before-hook-creation\n")},
		"at an uninstall":   {files: templated("annotations:\n  helm.sh/hook: test, pre-delete\n"), want: Chart{HasDeleteHooks: true}},
		"at both":           {files: templated("annotations:\n  helm.sh/hook: pre-delete,pre-upgrade\n"), want: Chart{HasHooks: true, HasDeleteHooks: true}},
		"of a subchart":     {files: map[string]string{"Chart.yaml": chartYAML, "charts/a/Chart.yaml": chartYAML, "charts/a/templates/a": "kind: Job\n'helm.sh/hook': post-delete"}, want: Chart{HasDeleteHooks: true}},
		"a library":         {files: map[string]string{"Chart.yaml": "{apiVersion: v2, name: web, version: 1.0.0, type: library}"}, err: "web is a library chart, which cannot be installed"},
		"no Chart.yaml":     {files: map[string]string{"a": "b"}, err: "reading the chart: Chart.yaml file is missing"},
		"empty files":       {files: many, err: "the chart takes 1161 KiB in a Bundle, which can hold 900"},
		"no name":           {files: map[string]string{"Chart.yaml": "{apiVersion: v2, version: 1.0.0}"}, err: "reading the chart: validation: chart.metadata.name is required"},
	} {
		got, err := (*Pool)(nil).Unpack(t.Context(), "", archived(t, test.files))
		if test.err != "" {
			if fmt.Sprint(err) != test.err {
				t.Errorf("%s: %v, want %s", name, err, test.err)
			}
			continue
		}
		if err != nil || len(got.Resources) != len(test.files) || got.HasHooks != test.want.HasHooks || got.HasDeleteHooks != test.want.HasDeleteHooks {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, archive := range []string{"", "x"} {
		if _, err := (*Pool)(nil).Unpack(t.Context(), "", [][]byte{[]byte(archive)}); fmt.Sprint(err) != "the chart is not an archive" {
			t.Errorf("%q: %v", archive, err)
		}
	}
}
