package main

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Two of the faults strike once: what it takes to let all strike many times works.
func TestSmoke(t *testing.T) {
	log.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	b, clean, err := build(t.Context(), os.Stderr)
	defer clean()
	if err != nil {
		t.Fatal(err)
	}
	var plan []strikeOnce
	for _, name := range []string{"syncer-terminated", "webhooks-killed"} {
		f, err := faultNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		plan = append(plan, strikeOnce{f, 1})
	}
	dir := cmp.Or(os.Getenv("MUSTER_TEST_DIR"), t.TempDir())
	result, err := strikeAll(t.Context(), b, plan, options{stacks: 1, output: filepath.Join(dir, "faults.json")}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range result.Runs {
		if !rec.good() {
			t.Errorf("%s\nwrong: %v\nlost: %v\norphaned: %v\n%s", rec, rec.Wrong, rec.Lost, rec.Orphaned, rec.Problem)
		}
		if rec.Requests < 30 {
			t.Errorf("%s: people did next to nothing", rec)
		}
	}
	if len(result.Runs) != len(plan) {
		t.Errorf("%d of %d faults struck", len(result.Runs), len(plan))
	}
}
