package sync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
)

// The values of a Cluster are made again if anything changes that they are made of, and only then.
func TestMemo(t *testing.T) {
	referred := func(object *unstructured.Unstructured, change func(*unstructured.Unstructured)) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) {
			if err := s.direct.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
				t.Fatal(err)
			}
			change(object)
			if err := s.direct.Update(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	labelled := func(object *unstructured.Unstructured) { object.SetLabels(map[string]string{"new": "x"}) }
	cluster := func(change func(*clusterv1.Cluster)) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) {
			s.change(t, &clusterv1.Cluster{}, func(object client.Object) { change(object.(*clusterv1.Cluster)) })
		}
	}
	spec := func(change func(*clusterv1.Cluster)) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) { s.edit(t, change) }
	}
	its := fixture.Cluster("team", "prod", "standard", "")
	for name, test := range map[string]struct {
		change     func(*testing.T, *scene)
		exclude    []string
		isAttached bool
		isKnown    bool
	}{
		"nothing": {isKnown: true},
		"the status of the Cluster": {change: cluster(func(cluster *clusterv1.Cluster) {
			cluster.Status.Conditions = []metav1.Condition{{Type: "Available", Status: metav1.ConditionTrue, Reason: "x"}}
		}), isKnown: true},
		"the status of its control plane": {change: referred(fixture.ControlPlane(its), func(object *unstructured.Unstructured) {
			object.Object["status"] = map[string]any{"ready": true}
		}), isKnown: true},
		"a label of the Cluster":            {change: spec(func(cluster *clusterv1.Cluster) { cluster.Labels["new"] = "x" })},
		"an annotation":                     {change: spec(func(cluster *clusterv1.Cluster) { metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, "new", "x") })},
		"another Cluster of its name":       {change: spec(func(cluster *clusterv1.Cluster) { cluster.UID = "another" })},
		"its control plane":                 {change: referred(fixture.ControlPlane(its), labelled)},
		"its infrastructure":                {change: referred(fixture.Infrastructure(its), labelled)},
		"another control plane of its name": {change: referred(fixture.ControlPlane(its), func(object *unstructured.Unstructured) { object.SetUID("another") })},
		"a variable of its topology": {change: spec(func(cluster *clusterv1.Cluster) {
			cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: "new", Value: apiextensionsv1.JSON{Raw: []byte("1")}}}
		})},
		"a reference": {change: spec(func(cluster *clusterv1.Cluster) {
			cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
		})},
		"the version of a kind": {change: func(t *testing.T, s *scene) {
			crd := &apiextensionsv1.CustomResourceDefinition{}
			if err := s.direct.Get(t.Context(), client.ObjectKey{Name: "devclusters.infrastructure.cluster.x-k8s.io"}, crd); err != nil {
				t.Fatal(err)
			}
			crd.Labels["cluster.x-k8s.io/v1beta2"] = "v1beta1"
			older := fixture.Infrastructure(its)
			older.SetAPIVersion(older.GroupVersionKind().Group + "/v1beta1")
			if err := errors.Join(s.direct.Update(t.Context(), crd), s.direct.Create(t.Context(), older)); err != nil {
				t.Fatal(err)
			}
			s.list(t)
		}},
		"what is excluded":            {exclude: []string{"/Cluster/metadata/labels"}},
		"it is attached to Rancher's": {isAttached: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, "standard", "", nil)
			in := settings.Default()
			of := func(isAttached bool) templateValues {
				t.Helper()
				cluster := &clusterv1.Cluster{}
				if err := s.server.Get(t.Context(), s.key, cluster); err != nil {
					t.Fatal(err)
				}
				its, err := s.values.of(t.Context(), in, cluster, isAttached)
				if err != nil {
					t.Fatal(err)
				}
				return its
			}
			of(false)
			found, _ := s.values.known.Load(s.key)
			last := found.(remembered)
			before := desired.HashOfValues(last.values)
			last.values = map[string]any{"remembered": true}
			s.values.known.Store(s.key, last)
			if test.change != nil {
				test.change(t, s)
			}
			in.Cluster.Exclude = append(in.Cluster.Exclude, test.exclude...)
			got := of(test.isAttached)
			if _, isKnown := got.values["remembered"]; isKnown != test.isKnown {
				t.Fatalf("it is remembered: %v", isKnown)
			}
			short := desired.HashOfValues(got.values)
			if err := got.inflate(); err != nil {
				t.Fatal(err)
			}
			whole := desired.HashOfValues(got.values)
			if !test.isKnown && short != whole {
				t.Errorf("the hash is %s, of the whole values %s", short, whole)
			}
			if isSame := test.isKnown || test.isAttached; isSame != (whole == before) {
				t.Errorf("the values have the hash %s, had %s", whole, before)
			}
		})
	}
}

// The memo forgets a Cluster that is gone.
func TestMemoForgets(t *testing.T) {
	s := newScene(t, "standard", "", nil)
	s.reconcile(t)
	if _, found := s.values.known.Load(s.key); !found {
		t.Error("nothing is remembered")
	}
	s.delete(t, fixture.Cluster(s.key.Namespace, s.key.Name, "", ""))
	s.reconcile(t)
	if _, found := s.values.known.Load(s.key); found {
		t.Error("it is remembered")
	}
}

// frozen serves what was read once, as a cache does: objects share what they point to.
type frozen struct {
	client.WithWatch
	known map[string]any
}

func (f *frozen) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	return f.serve(fmt.Sprintf("%T %s %s", into, into.GetObjectKind().GroupVersionKind().Kind, key), into, func() error { return f.WithWatch.Get(ctx, key, into, options...) })
}

func (f *frozen) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	return f.serve(fmt.Sprintf("%T %v", into, options), into, func() error { return f.WithWatch.List(ctx, into, options...) })
}

func (f *frozen) serve(what string, into any, read func() error) error {
	switch known := f.known[what].(type) {
	case nil:
		err := read()
		if f.known[what] = err; err == nil {
			f.known[what] = into
		}
		return err
	case error:
		return known
	default:
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(known).Elem())
		return nil
	}
}

// BenchmarkUnchanged reconciles a Cluster that has not changed. It reports the time as a share of the time in which a cache
// decodes and trims the objects of the Cluster; make bench measures both with real caches.
func BenchmarkUnchanged(b *testing.B) {
	s := newScene(b, "standard", "classes", nil)
	document, err := os.ReadFile("../../test/bench/objects/kubeadm_control_plane.yaml")
	if err != nil {
		b.Fatal(err)
	}
	its, full := fixture.ControlPlane(fixture.Cluster("team", "prod", "", "")), &unstructured.Unstructured{}
	if err := errors.Join(yaml.Unmarshal(document, &full.Object), s.direct.Get(b.Context(), client.ObjectKeyFromObject(its), its)); err != nil {
		b.Fatal(err)
	}
	its.Object["spec"] = full.Object["spec"]
	if err := s.direct.Update(b.Context(), its); err != nil {
		b.Fatal(err)
	}
	for range 3 {
		s.reconcile(b)
	}
	documents := map[client.Object][]byte{}
	for _, object := range []client.Object{&clusterv1.Cluster{}, &fleetv1.Cluster{}, its, fixture.Infrastructure(fixture.Cluster("team", "prod", "", ""))} {
		key := s.key
		if object.GetName() != "" {
			key = client.ObjectKeyFromObject(object)
		}
		if err := s.direct.Get(b.Context(), key, object); err != nil {
			b.Fatal(err)
		}
		if documents[object], err = json.Marshal(object); err != nil {
			b.Fatal(err)
		}
	}
	begin := time.Now()
	const fills = 200
	for range fills {
		for object, document := range documents {
			read := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
			if err := json.Unmarshal(document, read); err != nil {
				b.Fatal(err)
			}
			if _, err := kube.Trim(read); err != nil {
				b.Fatal(err)
			}
		}
	}
	fill := time.Since(begin) / fills
	s.server.WithWatch = &frozen{s.server.WithWatch, map[string]any{}}
	s.restart(b)
	s.reconcile(b)
	for b.Loop() {
		if _, err := s.Reconcile(b.Context(), ctrl.Request{NamespacedName: s.key}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(fill), "of-a-fill")
	b.ReportMetric(float64(fill.Microseconds()), "µs/fill")
}
