package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCheckLinks(t *testing.T) {
	root := t.TempDir()
	write(t, root, "README.md", "[page](docs/a.md), [heading](docs/a.md#two-words-x), [here](#top)\n# Top\n[far](https://example.com/x)")
	write(t, root, "docs/a.md", "# Two words: `x`\n[back](../README.md)\n```\n# not a heading\n```\n[gone](b.md)\n[nowhere](#not-a-heading)")
	pages, err := readPages(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"docs/a.md:6: there is no docs/b.md", "docs/a.md:7: there is no heading #not-a-heading in docs/a.md"}
	if got := checkLinks(root, pages); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNamed(t *testing.T) {
	pages := []page{{"README.md", []string{
		"Run `make test` or", "make demo    # plays", "to make up your mind; `make tset`", "`--health-addr=:1` and `kubectl apply --server-side`, `--helth`",
	}}}
	if got := named(pages, makeCall, []string{"test", "demo"}, "make target"); !slices.Equal(got, []string{"README.md:3: there is no make target tset"}) {
		t.Errorf("make targets: %q", got)
	}
	if got := named(pages, flagSpan, []string{"health-addr"}, "flag"); !slices.Equal(got, []string{"README.md:4: there is no flag helth"}) {
		t.Errorf("flags: %q", got)
	}
}

func TestCheckOutputs(t *testing.T) {
	pages := []page{
		{"README.md", []string{"```text", "● dev", "```", "and", "```text", "▲ prod", "```"}},
		{guide, []string{"```text", "● dev", "```"}},
	}
	got := checkOutputs(pages)
	if len(got) != 1 || !strings.Contains(got[0], "▲ prod") || strings.Contains(got[0], "dev") {
		t.Errorf("got %q", got)
	}
}

func TestTooLong(t *testing.T) {
	most := limits[1].words
	pages := []page{{permissions, []string{strings.Repeat("word ", most-3) + "| `a` | [b](c.md)", "```", "code", "```"}}}
	if got := tooLong(pages); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	pages = append(pages, page{"docs/threat-model.md", []string{"two words"}})
	if got := tooLong(pages); len(got) != 1 || !strings.Contains(got[0], "4501 words") {
		t.Errorf("got %q", got)
	}
}

func TestMissing(t *testing.T) {
	pages := []page{{reference + "a.md", []string{"`spec.a`"}}, {reference + "b.md", []string{"`metric{state}`, but not spec.b"}}, {"README.md", []string{"`spec.b`"}}}
	got := missing(pages, reference, []string{"spec.a", "metric", "spec.b"}, "", "field")
	if len(got) != 1 || !strings.Contains(got[0], "spec.b") {
		t.Errorf("got %q", got)
	}
}

// The lists from the code are not empty: a check of nothing would always succeed.
func TestReadsTheCode(t *testing.T) {
	root := filepath.Join("..", "..")
	targets, err := makeTargets(filepath.Join(root, "Makefile"))
	expect(t, "make target", targets, err, "verify", "test-e2e")
	tests, err := testNames(root)
	expect(t, "test", tests, err, "TestReadsTheCode")
	fields, err := settingPaths(filepath.Join(root, "manifests/crd/addons.cluster.x-k8s.io_fleetaddonconfigs.yaml"))
	expect(t, "field", fields, err, "spec.cluster.selector", "spec.cluster.naming.prefix", "status.conditions")
	versions, err := testedVersions(root)
	if err != nil || len(versions) != len(tested) {
		t.Errorf("tested versions: %q, %v", versions, err)
	}
	keys, err := ourKeys(filepath.Join(root, "internal"))
	expect(t, "key", keys, err, "clusterclass-name.fleet.addons.cluster.x-k8s.io", "fleet.addons.cluster.x-k8s.io/adopt")
	words, err := conditionWords(filepath.Join(root, "api", "v1alpha1", "conditions.go"))
	expect(t, "condition or reason", words, err, "FleetImported", "NameConflict", "WaitingForControlPlane", "FleetInstalled", "AddOnsReady", "RegistrationConflict")
	webhooks, err := manifestNames(filepath.Join(root, "manifests/webhook/*.yaml"), "webhook")
	expect(t, "webhook", webhooks, err, "stamp.clusters.fleet.addons.cluster.x-k8s.io")
	roles, err := manifestNames(filepath.Join(root, "manifests/rbac/*.yaml"), "role")
	expect(t, "role", roles, err, "muster-webhook", "muster-syncer-leader-election", "muster-syncer-template-values")
	metrics, err := literals(filepath.Join(root, "internal"), metricName)
	expect(t, "metric", metrics, err, "muster_clusters", "muster_apply_total", "muster_manifests_by_reason")
}

func expect(t *testing.T, what string, got []string, err error, want ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s %s was not found among %q", what, name, got)
		}
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestProse(t *testing.T) {
	root := t.TempDir()
	write(t, root, "bad/a.go", "package bad\n\n// What is asked for is what is told of it. Somebody is to be asked.\n//nolint:somebody\nvar somebody = 1 //\n")
	write(t, root, "good/a.go", "package good\n\n// The syncer writes the Fleet Cluster. The webhook stamps the Cluster.\n")
	write(t, root, "good/b.md", "The syncer retries.\n```\nsomebody is to be asked\n```\n")
	problems, err := prose(root, "bad", "good")
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 1 || !strings.HasPrefix(problems[0], "bad: 600.0 points") || !strings.Contains(problems[0], "Somebody is to be asked. (name the actor)") {
		t.Errorf("got %q", problems)
	}
}
