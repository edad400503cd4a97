package main

import (
	stdcmp "cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/muster-fleet/muster/test/report"
)

func TestReport(t *testing.T) {
	in := func(length float64) seconds { return seconds(length * float64(time.Second)) }
	r := &result{Measured: "today", Seed: 7, Elapsed: "1m0s", Runs: []*record{
		{Fault: "watches-cut", Seed: 7, Converged: true, Took: in(3), Requests: 10, Admissions: 4},
		{Fault: "syncer-terminated", Seed: 7, Converged: true, Took: in(2.04), TakeOver: in(1.5), Requests: 10, Admissions: 4},
		{Fault: "watches-cut", Seed: 8, Converged: true, Took: in(1), FailedClosed: 2},
		{Fault: "watches-cut", Seed: 9, Lost: []string{"Fleet Cluster a/b"}, Orphaned: []string{"ClusterGroup a/c", "ClusterGroup a/d"}, Wrong: []string{"creating"}},
		{Fault: "watches-cut", Seed: 10, Converged: true, Took: in(9)},
	}}
	path := filepath.Join(t.TempDir(), "sub", "faults.json")
	if err := report.Save(path, r); err != nil {
		t.Fatal(err)
	}
	read, err := report.Load[result](path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, read); diff != "" {
		t.Errorf("what is read is not what was written:\n%s", diff)
	}
	var plain, markdown strings.Builder
	read.print(&plain, false)
	read.print(&markdown, true)
	if diff := cmp.Diff(`fault              runs  converged  median  longest  lost  orphaned  wrongly failed  failed closed
syncer-terminated     1          1   2.0 s    2.0 s     0         0               0              0
watches-cut           4          3   3.0 s    9.0 s     1         2               1              2
From SIGTERM to the first write of the standby: median 1.5 s, longest 1.5 s.
20 requests of people, 8 of them admissions by Muster's webhooks; seed 7; 1m0s in all.
`, plain.String()); diff != "" {
		t.Errorf("the table differs:\n%s", diff)
	}
	if diff := cmp.Diff(`| fault | runs | converged | median | longest | lost | orphaned | wrongly failed | failed closed |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| syncer-terminated | 1 | 1 | 2.0 s | 2.0 s | 0 | 0 | 0 | 0 |
| watches-cut | 4 | 3 | 3.0 s | 9.0 s | 1 | 2 | 1 | 2 |

From SIGTERM to the first write of the standby: median 1.5 s, longest 1.5 s.
20 requests of people, 8 of them admissions by Muster's webhooks; seed 7; 1m0s in all.
`, markdown.String()); diff != "" {
		t.Errorf("the table in Markdown differs:\n%s", diff)
	}
	for i, want := range []bool{true, true, true, false, true} {
		if got := read.Runs[i].good(); got != want {
			t.Errorf("run %d is good: %v", i, got)
		}
	}
}

var (
	clusters    = schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "clusters"}
	errRefused  = errors.New("dial tcp 127.0.0.1:6443: connect: connection refused")
	errNoAnswer = apierrors.NewInternalError(errors.New(`failed calling webhook "class-access.clusters.fleet.addons.cluster.x-k8s.io": connection refused`))
	errNo       = apierrors.NewForbidden(clusters, "one", errors.New(`admission webhook "class-access.clusters.fleet.addons.cluster.x-k8s.io" denied the request`))
)

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want answer
	}{
		"done":                       {nil, accepted},
		"no connection":              {errRefused, unavailable},
		"no time":                    {context.DeadlineExceeded, unavailable},
		"too many requests":          {apierrors.NewTooManyRequests("storage is (re)initializing", 1), unavailable},
		"etcd does not answer":       {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), unavailable},
		"out of time in etcd":        {apierrors.NewTimeoutError("request did not complete", 1), unavailable},
		"roles are not read yet":     {apierrors.NewForbidden(clusters, "one", errors.New(`User "author" cannot create resource`)), unavailable},
		"webhooks are not read yet":  {apierrors.NewForbidden(clusters, "one", errors.New("not yet ready to handle request")), unavailable},
		"CRDs are not read yet":      {apierrors.NewGenericServerResponse(http.StatusNotFound, "post", clusters, "", "404 page not found", 0, true), unavailable},
		"a webhook does not answer":  {errNoAnswer, closed},
		"a webhook says no":          {errNo, denied},
		"the schema says no":         {apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "one", nil), denied},
		"the object is not there":    {apierrors.NewNotFound(clusters, "one"), denied},
		"somebody else was faster":   {apierrors.NewConflict(clusters, "one", errors.New("changed")), denied},
		"somebody else was here too": {apierrors.NewAlreadyExists(clusters, "one"), denied},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judge(test.err); got != test.want {
				t.Errorf("it is judged %q, not %q", got, test.want)
			}
		})
	}
}

// What counts as wrongly failed depends on what is down at that moment.
func TestAsk(t *testing.T) {
	for name, test := range map[string]struct {
		answers               []error
		apiDown, webhooksDown bool
		mayClose              bool

		want                   bool
		wrong, retried, closed int
	}{
		"accepted":                           {answers: []error{nil}, want: true},
		"denied":                             {answers: []error{errNo}, wrong: 1},
		"denied while the webhooks are down": {answers: []error{errNo}, webhooksDown: true, mayClose: true, wrong: 1},
		"closed":                             {answers: []error{errNoAnswer}, webhooksDown: true, mayClose: true, closed: 1},
		"closed while webhooks are there":    {answers: []error{errNoAnswer}, mayClose: true, wrong: 1},
		"closed while only the API server is down":    {answers: []error{errNoAnswer}, apiDown: true, mayClose: true, wrong: 1},
		"closed where nothing has to be":              {answers: []error{errNoAnswer}, webhooksDown: true, wrong: 1},
		"no API server, as expected, then accepted":   {answers: []error{errRefused, errRefused, nil}, apiDown: true, want: true, retried: 2},
		"no API server, out of the blue, then denied": {answers: []error{errRefused, errRefused, errNo}, wrong: 2},
	} {
		t.Run(name, func(t *testing.T) {
			people := &tally{}
			people.apiDown.Store(test.apiDown)
			people.webhooksDown.Store(test.webhooksDown)
			asked := 0
			got := people.ask(t.Context(), request{what: "asking", mayClose: test.mayClose, do: func(_ context.Context, again bool) error {
				if again != (asked > 0) {
					t.Errorf("attempt %d is told again=%v", asked+1, again)
				}
				asked++
				return test.answers[asked-1]
			}})
			if got != test.want || asked != len(test.answers) {
				t.Errorf("accepted is %v after %d attempts", got, asked)
			}
			if len(people.wrong) != test.wrong || int(people.retried.Load()) != test.retried || int(people.closed.Load()) != test.closed {
				t.Errorf("wrong %v, retried %d, closed %d", people.wrong, people.retried.Load(), people.closed.Load())
			}
		})
	}
}

func TestTryForbidden(t *testing.T) {
	for name, test := range map[string]struct {
		answer  error
		apiDown bool
		wrong   int
	}{
		"accepted":                       {nil, false, 1},
		"denied":                         {errNo, false, 0},
		"failed closed":                  {errNoAnswer, false, 0},
		"no API server, as expected":     {errRefused, true, 0},
		"no API server, out of the blue": {errRefused, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			people := &tally{}
			people.apiDown.Store(test.apiDown)
			people.tryForbidden(t.Context(), "asking", func(context.Context) error { return test.answer })
			if len(people.wrong) != test.wrong {
				t.Errorf("wrong %v", people.wrong)
			}
		})
	}
}

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
	dir := stdcmp.Or(os.Getenv("MUSTER_TEST_DIR"), t.TempDir())
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
