package faults

import (
	"context"
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	clusters    = schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "clusters"}
	errRefused  = errors.New("dial tcp 127.0.0.1:6443: connect: connection refused")
	errNoAnswer = apierrors.NewInternalError(errors.New(`failed calling webhook "class-access.clusters.fleet.addons.cluster.x-k8s.io": connection refused`))
	errNo       = apierrors.NewForbidden(clusters, "one", errors.New(`admission webhook "class-access.clusters.fleet.addons.cluster.x-k8s.io" denied the request`))
)

// errGoing is what the API server answers while an object of the name has finalizers.
var errGoing = func() error {
	err := apierrors.NewAlreadyExists(clusters, "one")
	err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
	return err
}()

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want answer
	}{
		"done":                      {nil, accepted},
		"no connection":             {errRefused, unavailable},
		"no time":                   {context.DeadlineExceeded, unavailable},
		"too many requests":         {apierrors.NewTooManyRequests("storage is (re)initializing", 1), unavailable},
		"etcd does not answer":      {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), unavailable},
		"out of time in etcd":       {apierrors.NewTimeoutError("request did not complete", 1), unavailable},
		"roles are not read yet":    {apierrors.NewForbidden(clusters, "one", errors.New(`User "author" cannot create resource`)), unavailable},
		"webhooks are not read yet": {apierrors.NewForbidden(clusters, "one", errors.New("not yet ready to handle request")), unavailable},
		"CRDs are not read yet":     {apierrors.NewGenericServerResponse(http.StatusNotFound, "post", clusters, "", "404 page not found", 0, true), unavailable},
		"a webhook does not answer": {errNoAnswer, closed},
		"a webhook says no":         {errNo, denied},
		"the schema says no":        {apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "one", nil), denied},
		"the object is not there":   {apierrors.NewNotFound(clusters, "one"), denied},
		"another client was faster": {apierrors.NewConflict(clusters, "one", errors.New("changed")), denied},
		"another client created it": {apierrors.NewAlreadyExists(clusters, "one"), denied},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judge(test.err); got != test.want {
				t.Errorf("it is judged %q, not %q", got, test.want)
			}
		})
	}
}

// Which failures are wrong depends on the parts that are down at that moment.
func TestAsk(t *testing.T) {
	for name, test := range map[string]struct {
		answers               []error
		apiDown, webhooksDown bool
		mayClose              bool

		want  bool
		wrong int
	}{
		"accepted":                           {answers: []error{nil}, want: true},
		"denied":                             {answers: []error{errNo}, wrong: 1},
		"denied while the webhooks are down": {answers: []error{errNo}, webhooksDown: true, mayClose: true, wrong: 1},
		"closed":                             {answers: []error{errNoAnswer}, webhooksDown: true, mayClose: true},
		"closed while webhooks are there":    {answers: []error{errNoAnswer}, mayClose: true, wrong: 1},
		"closed while only the API server is down":    {answers: []error{errNoAnswer}, apiDown: true, mayClose: true, wrong: 1},
		"closed where nothing has to be":              {answers: []error{errNoAnswer}, webhooksDown: true, wrong: 1},
		"the one before still goes, then accepted":    {answers: []error{errGoing, errGoing, nil}, want: true},
		"no API server, as expected, then accepted":   {answers: []error{errRefused, errRefused, nil}, apiDown: true, want: true},
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
			if got != test.want || asked != len(test.answers) || len(people.wrong) != test.wrong {
				t.Errorf("accepted is %v after %d attempts, wrong %v", got, asked, people.wrong)
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
