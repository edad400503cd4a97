package bundle

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
			have.Spec.DependsOn = make([]fleetv1.BundleRef, 31_000) // Somebody has added them.
			r := trimming(reconciler(t, append([]client.Object{cluster.DeepCopy(), fleet.DeepCopy(), have}, test.objects...)...))
			test.run(t, r, client.ObjectKeyFromObject(have))
			if err := r.Live.Get(t.Context(), client.ObjectKeyFromObject(have), have); err != nil || len(have.Spec.Targets) != 2 || !have.DeletionTimestamp.IsZero() {
				t.Errorf("%d targets are left, and it is deleted: %t (%v)", len(have.Spec.Targets), !have.DeletionTimestamp.IsZero(), err)
			}
		})
	}
}

// A HelmChartProxy that gets its first values loses no target, although its template fails on one of two Clusters.
func TestFirstValues(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.ValuesTemplate = "a: {{ .Cluster.metadata.labels.tier }}"
	cluster, fleet := selected()
	name := plan.BundleName(of, key, 0)
	have := plan.NewBundle(of, "team", name, plan.Chart{Version: "1.0.0"}, "")
	have.UID = "uid"
	have.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}, {Name: "two", ClusterName: "two"}}
	second, its := cluster.DeepCopy(), fleet.DeepCopy()
	second.Name, second.UID, its.Name, its.OwnerReferences[0].Name, its.OwnerReferences[0].UID = "two", "two", "two", "two", "two"
	renders := releaseOf(of, plan.Key{Namespace: "team", Name: "two"}, name, plan.Record{FleetCluster: "two", Digest: "any", Keys: []string{"values.yaml"}, Bundle: "uid"})
	in := &inputs.Inputs{}
	in.Selector, _ = plan.NewSelector(of)
	for _, text := range []string{`{"fleetCluster":"one"}`, `{"fleetCluster":"one","fleet":"other"}`} {
		release := releaseOf(of, key, name, plan.Record{})
		release.Annotations[plan.RecordAnnotation] = text
		failing(release)
		s := &scope{key: client.ObjectKeyFromObject(have), have: have, of: of, in: in, releases: []*addonsv1.HelmReleaseProxy{release, renders}}
		got, _, err := reconciler(t, cluster.DeepCopy(), fleet.DeepCopy(), second.DeepCopy(), its.DeepCopy()).targets(t.Context(), s)
		if err != nil || len(got) != 2 || len(got[0].DownstreamResources) != 0 || len(got[1].DownstreamResources) != 1 {
			t.Errorf("with the record %s, the targets are %v (%v)", text, got, err)
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

// A target goes although nothing else of its Bundle can be written: a HelmReleaseProxy that is deleted waits for that.
func TestTargetsGoFirst(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	name := plan.BundleName(of, key, 0)
	release := releaseOf(of, key, name, plan.Record{FleetCluster: "one", Installed: true})
	have := plan.NewBundle(of, "team", name, plan.Chart{Version: "1.0.0", Agent: true}, "")
	have.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}, {Name: "two", ClusterName: "two"}}
	r := reconciler(t, have)
	r.Inputs = &inputs.Reader{Now: func() time.Time { return time.Time{} }}
	in := &inputs.Inputs{Chart: plan.Chart{Version: "2.0.0", Agent: true}, Digest: "2.0.0"}
	r.Inputs.Saw(release, in)
	refused := apierrors.NewInvalid(fleetv1.SchemeGroupVersion.WithKind("Bundle").GroupKind(), name, nil)
	r.Store = store.New(interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if data, err := patch.Data(object); err != nil || strings.Contains(string(data), "2.0.0") {
				return cmp.Or(err, error(refused))
			}
			return c.Patch(ctx, object, patch, options...)
		},
	}), r.Client, "muster", clock.RealClock{})
	its, err := r.Bundle(t.Context(), client.ObjectKeyFromObject(have))
	if err != nil {
		t.Fatal(err)
	}
	s := &scope{key: client.ObjectKeyFromObject(have), have: its, of: of, in: in, releases: []*addonsv1.HelmReleaseProxy{release}}
	if err := r.put(t.Context(), s, []fleetv1.BundleTarget{{Name: "one", ClusterName: "one", DoNotDeploy: true}, {Name: "three", ClusterName: "three"}}); !apierrors.IsInvalid(err) {
		t.Errorf("the refusal is reported as %v", err)
	}
	its, err = r.Bundle(t.Context(), client.ObjectKeyFromObject(have))
	if err != nil || !equality.Semantic.DeepEqual(its.Spec.Targets, have.Spec.Targets[:1]) {
		t.Errorf("left are %v (%v)", its.Spec.Targets, err)
	}
}

// Targets that others have forged in a Bundle without a HelmChartProxy cost few requests at a time, and empty ones none.
func TestForgedTargetsCostLittle(t *testing.T) {
	of := proxyOf("team", "web")
	_, fleet := selected()
	forged := []fleetv1.BundleTarget{{ClusterName: "one"}}
	for i := range 200 {
		name := fmt.Sprintf("gone-%d", i)
		values := fleetv1.DownstreamResource{Kind: plan.SecretKind, Name: plan.ValuesName(client.ObjectKeyFromObject(of), "team", name, 0)}
		of := fleetv1.BundleTarget{ClusterName: name}
		of.DownstreamResources = []fleetv1.DownstreamResource{values}
		forged = append(forged, of, of)
	}
	for name, test := range map[string]struct {
		targets []fleetv1.BundleTarget
		most    int
	}{
		"empty":  {append(make([]fleetv1.BundleTarget, 400), forged[0], forged[0]), 1},
		"forged": {forged, 2*mostGone + 1},
	} {
		t.Run(name, func(t *testing.T) {
			have := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
			have.Spec.Targets, have.Annotations[plan.DeletedAnnotation] = test.targets, "true"
			released := fleet.DeepCopy()
			released.Annotations = map[string]string{stamp.ReleasedAnnotation: "true"}
			r := reconciler(t, have, released)
			requests, reads := 0, 0
			r.Store = store.New(interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					requests++
					return c.Patch(ctx, object, patch, options...)
				},
				Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
					requests++
					return c.Update(ctx, object, options...)
				},
			}), interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					reads++
					return c.Get(ctx, key, object, options...)
				},
			}), "muster", clock.RealClock{})
			for round := 0; ; round++ {
				its, err := r.Bundle(t.Context(), client.ObjectKeyFromObject(have))
				if err != nil {
					t.Fatal(err)
				}
				if len(its.Spec.Targets) == 1 {
					return
				}
				if requests, reads = 0, 0; round == 30 {
					t.Fatalf("%d targets are left", len(its.Spec.Targets))
				}
				if err := r.removeOrphan(t.Context(), &scope{have: its}); err != nil || requests > test.most || reads > 1 {
					t.Fatalf("%d requests and %d reads, want %d and 1 (%v)", requests, reads, test.most, err)
				}
			}
		})
	}
}
