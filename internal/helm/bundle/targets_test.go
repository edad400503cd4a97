package bundle

import (
	"context"
	"sync"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/stamp"
)

// ours is a reader that finds only Muster's CRD of HelmChartProxies.
type ours struct{ client.Reader }

func (ours) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	object.SetLabels(map[string]string{stamp.ManagedByLabel: stamp.ManagedBy})
	return nil
}

// trimming makes a reconciler read through a cache like that of the program.
func trimming(r *Reconciler) *Reconciler {
	live := r.Client
	r.Store = store.New(interceptor.NewClient(live.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := c.Get(ctx, key, object, options...); err != nil {
				return err
			}
			_, err := store.Trim(object)
			return err
		},
	}), live, "muster", clock.RealClock{})
	r.Failures, r.Managed, r.Wake = &sync.Map{}, &proxy.Managed{Reader: ours{}}, func(plan.Key) {}
	return r
}

// A Bundle whose content is not in the cache loses no target, and is not deleted, whatever the cache lacks.
func TestCutBundle(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Finalizers = []string{plan.Finalizer}
	deleted := of.DeepCopy()
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	cluster, fleet := selected()
	name := plan.BundleName(of, key, 0)
	release := releaseOf(of, key, name, plan.Record{FleetCluster: "one", Installed: true})
	release.Finalizers = []string{plan.Finalizer}
	leaving := release.DeepCopy()
	leaving.DeletionTimestamp = ptr.To(metav1.Now())
	reconcile := func(t *testing.T, r *Reconciler, key plan.Key) {
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Log(err)
		}
	}
	for name, test := range map[string]struct {
		objects []client.Object
		run     func(*testing.T, *Reconciler, plan.Key)
	}{
		"the repository is away": {nil, func(t *testing.T, r *Reconciler, key plan.Key) {
			have, err := r.Bundle(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			s := &scope{key: key, have: have, of: of, in: &inputs.Inputs{Incomplete: true}, releases: []*addonsv1.HelmReleaseProxy{release}}
			targets, _, err := r.targets(t.Context(), s)
			if err == nil {
				err = r.put(t.Context(), s, targets)
			}
			t.Log(err)
		}},
		"its HelmChartProxy is lost":                       {nil, reconcile},
		"its HelmChartProxy is deleted":                    {[]client.Object{deleted}, reconcile},
		"its HelmChartProxy is deleted, with its releases": {[]client.Object{deleted, leaving}, reconcile},
	} {
		t.Run(name, func(t *testing.T) {
			have := plan.NewBundle(of, "team", plan.BundleName(of, key, 0), plan.Chart{Version: "1.0.0"}, "")
			have.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}, {Name: "two", ClusterName: "two"}}
			have.Spec.DependsOn = make([]fleetv1.BundleRef, 13_000) // Somebody has added them.
			r := trimming(reconciler(t, append([]client.Object{cluster.DeepCopy(), fleet.DeepCopy(), have}, test.objects...)...))
			test.run(t, r, client.ObjectKeyFromObject(have))
			if err := r.Live.Get(t.Context(), client.ObjectKeyFromObject(have), have); err != nil || len(have.Spec.Targets) != 2 || !have.DeletionTimestamp.IsZero() {
				t.Errorf("%d targets are left, and it is deleted: %t (%v)", len(have.Spec.Targets), !have.DeletionTimestamp.IsZero(), err)
			}
		})
	}
}

// A HelmChartProxy that gets its first values loses no target, although its template fails on a Cluster.
func TestFirstValues(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.ValuesTemplate = "a: {{ .Cluster.metadata.labels.tier }}"
	cluster, fleet := selected()
	name := plan.BundleName(of, key, 0)
	have := plan.NewBundle(of, "team", name, plan.Chart{Version: "1.0.0"}, "")
	have.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}}
	in := &inputs.Inputs{}
	in.Selector, _ = plan.NewSelector(of)
	for _, text := range []string{`{"fleetCluster":"one"}`, `{"fleetCluster":"one","fleet":"other"}`} {
		release := releaseOf(of, key, name, plan.Record{})
		release.Annotations[plan.RecordAnnotation] = text
		failing(release)
		got, _, err := reconciler(t, cluster, fleet).targets(t.Context(), &scope{key: client.ObjectKeyFromObject(have), have: have, of: of, in: in, releases: []*addonsv1.HelmReleaseProxy{release}})
		if err != nil || len(got) != 1 {
			t.Errorf("with the record %s, %d targets are left (%v)", text, len(got), err)
		}
	}
}

// failing makes a HelmReleaseProxy say that its values cannot be rendered.
func failing(release *addonsv1.HelmReleaseProxy) {
	release.Status.Conditions = []metav1.Condition{{Type: addonsv1.ClusterAvailableCondition, Status: metav1.ConditionTrue, Reason: addonsv1.ValueParsingFailedReason}}
}

// While a target names values that do not exist, Fleet deploys nothing from its Bundle to anybody. It goes if the values
// were those of an earlier Fleet Cluster, and cannot be rendered for this one.
func TestTargetOfLostValues(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.ValuesTemplate = "a: {{ .Cluster.metadata.labels.tier }}"
	cluster, fleet := selected()
	fleet.UID = "living"
	bundle := plan.BundleName(of, key, 0)
	in := &inputs.Inputs{}
	in.Selector, _ = plan.NewSelector(of)
	for name, test := range map[string]struct {
		fleet           types.UID
		renders, exists bool
		digest          string
		isNew           bool
		want            int
	}{
		"lost":                                {fleet: "earlier", want: 0},
		"lost, and the record names them":     {fleet: "earlier", digest: "any", want: 0},
		"they were lost before the target is": {fleet: "earlier", digest: "any", isNew: true, want: 0},
		"they can be rendered":                {fleet: "earlier", renders: true, want: 1},
		"they can be, and the target is new":  {fleet: "earlier", digest: "any", isNew: true, renders: true, want: 1},
		"they exist":                          {fleet: "earlier", exists: true, want: 1},
		"of the same Fleet Cluster":           {fleet: "living", digest: "any", want: 1},
		"a record of an earlier Muster":       {fleet: "", digest: "any", want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			last := plan.Record{FleetCluster: "one", Digest: "any", Keys: []string{"values.yaml"}, Bundle: "uid"}
			release := releaseOf(of, key, bundle, last)
			target, _ := plan.TargetOf(of, release, last)
			have := plan.NewBundle(of, "team", bundle, plan.Chart{Version: "1.0.0"}, "")
			have.UID = "uid"
			if !test.isNew {
				have.Spec.Targets = []fleetv1.BundleTarget{target}
			}
			record := last
			record.Digest = test.digest
			release.Annotations[plan.RecordAnnotation] = `{"fleet":"` + string(test.fleet) + `",` + record.String()[1:]
			if !test.renders {
				failing(release)
			}
			objects := []client.Object{cluster.DeepCopy(), fleet.DeepCopy()}
			if test.exists {
				objects = append(objects, plan.ValuesObject(client.ObjectKeyFromObject(of), "team", last, nil))
			}
			got, _, err := reconciler(t, objects...).targets(t.Context(), &scope{key: client.ObjectKeyFromObject(have), have: have, of: of, in: in, releases: []*addonsv1.HelmReleaseProxy{release}})
			if err != nil || len(got) != test.want {
				t.Errorf("%d targets are left, want %d (%v)", len(got), test.want, err)
			}
		})
	}
}
