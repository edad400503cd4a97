//go:build !race

// The race detector needs more memory than a child may have.

package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// A job that exceeds a limit ends with an error about that limit. The parent needs little memory meanwhile, and
// the next job works.
func TestLimits(t *testing.T) {
	pool := newPool(t, 1)
	rendered := func(template string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := pool.Render(ctx, "team", template, over(nil))
			return err
		}
	}
	indexed := func(text string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := pool.Find(ctx, "team", Search{Chart: "web"}, given(zipped(t, text)))
			return err
		}
	}
	calls := `{{ template "t0" }}{{ define "t60" }}{{ end }}`
	for i := range 60 {
		calls += fmt.Sprintf(`{{ define "t%d" }}{{ template "t%d" }}{{ template "t%[2]d" }}{{ end }}`, i, i+1)
	}
	bomb := "a: &a [" + strings.Repeat("{},", 30_000) + "]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("%c: &%[1]c [%s]\n", 'b'+i, strings.Repeat(fmt.Sprintf("*%c,", 'a'+i), 9))
	}
	opened := map[string]string{"Chart.yaml": chartYAML}
	for i := range 19 {
		opened[fmt.Sprint(i)] = strings.Repeat("x", 5<<20)
	}
	for name, test := range map[string]struct {
		ask  func(context.Context) error
		want string
	}{
		"printf":         {rendered(`{{ printf (repeat 1000 "%[1]s") (repeat 500000 "x") }}`), "rendering the values took more than 96 MiB"},
		"recursion":      {rendered(`{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}`), "rendering the values took more than 96 MiB"},
		"repeat":         {rendered(`{{ repeat 2000000000 "xxxxxxxx" }}`), "rendering the values took more than 96 MiB"},
		"doubled":        {rendered(`{{ $x := "xxxxxxxx" }}{{ range until 60 }}{{ $x = print $x $x }}{{ end }}`), "rendering the values took more than 96 MiB"},
		"loop":           {rendered(`{{ range 2000000000 }}{{ end }}`), "rendering the values took longer than 1s"},
		"calls":          {rendered(calls), "rendering the values took longer than 1s"},
		"output":         {rendered(`{{ range until 10000 }}{{ repeat 1000 "x" }}{{ end }}`), "the values are larger than 512 KiB"},
		"values":         {func(ctx context.Context) error { return pool.Check(ctx, "team", []byte(bomb)) }, "the values are not a map in YAML"},
		"index":          {indexed("entries:\n  web: [" + strings.Repeat("{},", 7_900_000/3) + "]\n"), "reading the index took more than 96 MiB"},
		"index, whole":   {indexed("entries: {web: [" + strings.Repeat("{},", 7_900_000/3) + "]}\n"), "reading the index took more than 96 MiB"},
		"index, line":    {indexed(strings.Repeat("x", 50<<20)), "reading the index took more than 96 MiB"},
		"index, bomb":    {indexed(bomb), "is not an index of a Helm repository"},
		"index, many":    {indexed("entries:\n  web:\n" + strings.Repeat("  - {version: 1.0.0}\n", maxVersions+1)), "lists more than 100000 versions of the chart: name an exact version"},
		"chart":          {unpackedBy(t, pool, map[string]string{"Chart.yaml": chartYAML, "values.yaml": "a: [" + strings.Repeat("{},", 5_200_000/3) + "]"}), "unpacking the chart took more than 96 MiB"},
		"chart, opened":  {unpackedBy(t, pool, opened), "unpacking the chart took more than 96 MiB"},
		"chart, a file":  {unpackedBy(t, pool, map[string]string{"Chart.yaml": chartYAML, "a": strings.Repeat("x", 99<<20)}), "unpacking the chart took more than 96 MiB"},
		"chart, too big": {unpackedBy(t, pool, map[string]string{"Chart.yaml": chartYAML, "a": noise(1 << 20)}), "the chart takes "},
	} {
		t.Run(name, func(t *testing.T) {
			pool.limits[render] = time.Minute
			if strings.HasSuffix(test.want, "longer than 1s") {
				pool.limits[render] = time.Second
			}
			since, began := grown(t), time.Now()
			err := test.ask(t.Context())
			if got := fmt.Sprint(err); !strings.HasPrefix(got, test.want) {
				t.Errorf("%.200s, want %q", got, test.want)
			}
			if took := since(); took > 64 {
				t.Errorf("the parent took %d MiB more", took)
			}
			pool.limits[render] = time.Minute
			t.Logf("%.100v after %s", err, time.Since(began).Round(time.Millisecond))
			if got, err := pool.Render(t.Context(), "team", "a: {{ .b }}", over(map[string]any{"b": 1})); err != nil || string(got) != "a: 1" {
				t.Errorf("the next job: %q, %v", got, err)
			}
		})
	}
}

// A child stays small until it dies, even if it asks for one large piece of memory. RLIMIT_DATA does
// not hold that.
func TestMemory(t *testing.T) {
	for _, template := range []string{
		`a: {{ len (repeat 100000000 "xxxxxxxxxx") }}`, `{{ printf (repeat 1000 "%[1]s") (repeat 500000 "x") }}`,
		`{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}`,
	} {
		worker, err := start()
		if err != nil {
			t.Fatal(err)
		}
		most := make(chan int)
		go func() {
			peak := 0
			for {
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", worker.command.Process.Pid))
				_, line, isThere := strings.Cut(string(status), "VmHWM:")
				if err != nil || !isThere { // The child has ended.
					most <- peak >> 10
					return
				}
				_, _ = fmt.Sscan(line, &peak)
			}
		}()
		_, err = worker.run(t.Context(), job{Kind: render, Template: template, Limit: time.Minute, Size: 2}, [][]byte{[]byte("{}")})
		if !worker.isDead {
			worker.end()
		}
		if took := <-most; took < 10 || took > 180 || !errors.As(err, new(LimitError)) {
			t.Errorf("%s: %d MiB, %v", template, took, err)
		}
	}
}
