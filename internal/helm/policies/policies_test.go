package policies_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies"
	"github.com/muster-fleet/muster/internal/helm/policies/policiestest"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/program"
)

// world has a Policy in namespace team that requires a ServiceAccount, and a clock.
type world struct {
	client.Client
	*policies.Reader
	server *policiestest.Server
	now    time.Time
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	policy := &fleetv1.Policy{RequireServiceAccount: true}
	policy.Namespace, policy.Name = "team", "policy"
	w := &world{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, policy)...).Build(), now: time.Now()}
	w.server = &policiestest.Server{From: w.Client, FakeInformer: controllertest.NewFakeInformer()}
	w.Reader = &policies.Reader{CRDs: w.Client, NewCache: w.server.NewCache, Now: func() time.Time { return w.now }}
	return w
}

// limit returns the reason in the inputs of a HelmChartProxy for the Clusters of a namespace.
func (w *world) limit(t *testing.T, namespace, serviceAccount string) (string, error) {
	t.Helper()
	of, in := &addonsv1.HelmChartProxy{}, &inputs.Inputs{Digest: "same", Selector: &plan.Selector{}}
	of.Spec.ServiceAccount = serviceAccount
	got, err := w.Limit(t.Context(), of, in, namespace)
	if in.Incomplete || in.Trouble != (plan.Trouble{}) {
		t.Fatal("the inputs, which others share, were changed")
	}
	if got.Digest != in.Digest || got.Selector != in.Selector || got.Incomplete != (got.Trouble.Reason != "") {
		t.Errorf("it is %+v", got)
	}
	return got.Trouble.Reason, err
}

// will waits until the inputs have a reason.
func (w *world) will(t *testing.T, namespace, serviceAccount, reason string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if got, err := w.limit(t, namespace, serviceAccount); got == reason && err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatalf("it says %q (%v), want %q", got, err, reason)
		}
	}
}

func TestLimit(t *testing.T) {
	w := newWorld(t, policiestest.CRD())
	w.server.Synced()
	for name, test := range map[string]struct{ namespace, serviceAccount, want string }{
		"none":             {"team", "", addonsv1.PolicyRefusesReason},
		"one":              {"team", "deployer", ""},
		"no Policy at all": {"other", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w.will(t, test.namespace, test.serviceAccount, test.want)
		})
	}
	if got := w.server.Starts.Load(); got != 1 {
		t.Errorf("%d informers", got)
	}
	said := plan.PolicyRefuses("team", &fleetpolicy.Refusal{Allowed: []string{"deployer"}})
	if want := "a Policy of Fleet in namespace team requires a ServiceAccount; set spec.serviceAccount of the HelmChartProxy to one that is allowed: deployer; until then"; !strings.HasPrefix(said.Message, want) {
		t.Errorf("it says %q", said.Message)
	}
}

// Fleet before 0.16 has no such kind: nothing is watched, and nothing is refused.
func TestNotServed(t *testing.T) {
	w := newWorld(t)
	w.server.Synced()
	if got, err := w.limit(t, "team", ""); got != "" || err != nil || w.server.Starts.Load() != 0 {
		t.Errorf("it says %q (%v), and started %d informers", got, err, w.server.Starts.Load())
	}
	crd := policiestest.CRD()
	crd.SetFinalizers([]string{"cleanup"})
	if err := w.Create(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	w.will(t, "team", "", addonsv1.PolicyRefusesReason)
	if err := w.Delete(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	if got, err := w.limit(t, "team", ""); got != "" || err != nil {
		t.Errorf("while the CRD goes it says %q (%v)", got, err)
	}
}

// While Policies are being listed, it waits; if that never ends, as without the right to it, only Fleet refuses.
func TestListing(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		ends bool // with an error of another kind
	}{
		"not listed": {},
		"not served": {err: &meta.NoKindMatchError{}},
		"broken":     {err: errors.New("broken"), ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // What is not served is looked for every 2 s.
			w := newWorld(t, policiestest.CRD())
			if test.err != nil {
				w.server.Error.Store(&test.err)
			}
			_, err := w.limit(t, "team", "")
			for end := time.Now().Add(10 * time.Second); test.ends && errors.Is(err, policies.ErrListing) && time.Now().Before(end); time.Sleep(time.Millisecond) {
				_, err = w.limit(t, "team", "")
			}
			if errors.Is(err, policies.ErrListing) == test.ends || err == nil {
				t.Errorf("the error is %v", err)
			}
			w.now = w.now.Add(kinds.Patience + time.Second)
			if got, err := w.limit(t, "team", ""); got != "" || (err != nil) != test.ends {
				t.Errorf("later it says %q (%v)", got, err)
			}
			w.server.Error.Store(nil)
			w.server.Synced()
			w.will(t, "team", "", addonsv1.PolicyRefusesReason)
		})
	}
	t.Run("denied", func(t *testing.T) {
		w := newWorld(t, policiestest.CRD())
		w.server.Denied = apierrors.NewForbidden(schema.GroupResource{Resource: "policies"}, "", errors.New("no"))
		w.will(t, "team", "", "") // Nothing is awaited.
	})
}

// A controller starts when the Policies are listed, and hears of each change.
func TestSource(t *testing.T) {
	w := newWorld(t, policiestest.CRD())
	w.News = func(_ context.Context, policy client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: policy.GetNamespace()}}}
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	patience, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := w.Source().Start(patience, queue); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before the list it started: %v", err)
	}
	w.server.Synced()
	begun := time.Now()
	if err := w.Source().Start(t.Context(), queue); err != nil || time.Since(begun) > 5*time.Second {
		t.Fatalf("it started after %v (%v)", time.Since(begun), err)
	}
	w.will(t, "team", "", addonsv1.PolicyRefusesReason)
	policy := &fleetv1.Policy{}
	policy.Namespace = "team"
	for name, change := range map[string]func(){
		"created": func() { w.server.Add(policy) }, "changed": func() { w.server.Update(policy, policy) }, "deleted": func() { w.server.FakeInformer.Delete(policy) },
	} {
		change()
		if queue.Len() != 1 {
			t.Fatalf("%s: %d requests", name, queue.Len())
		}
		its, _ := queue.Get()
		queue.Done(its)
		if its.Name != "team" {
			t.Errorf("%s: %v", name, its)
		}
	}
}

func TestCacheKeepsWhatDecides(t *testing.T) {
	policy := &fleetv1.Policy{RequireServiceAccount: true, GitRepo: &fleetv1.GitRepoPolicySpec{}, AllowedServiceAccounts: make([]string, 5000)}
	policy.Namespace, policy.Annotations = "team", map[string]string{"a": "b"}
	got, err := policies.Trim(policy)
	if err != nil {
		t.Fatal(err)
	}
	its := got.(*fleetv1.Policy)
	if !its.RequireServiceAccount || its.Namespace != "team" || its.GitRepo != nil || its.Annotations != nil || len(its.AllowedServiceAccounts) != fleetpolicy.MostAllowed+1 {
		t.Errorf("it keeps %+v", its)
	}
}
