package admission

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/stamp"
)

// maxOwners is about how many owners of a Fleet Cluster are kept.
const maxOwners = 16

// trimmed returns what trim keeps of an object that was received and shares no memory with others.
func trimmed(t testing.TB, kind schema.GroupVersionKind, metadata metav1.ObjectMeta) *object {
	t.Helper()
	sent, err := metadata.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	whole := &object{}
	whole.SetGroupVersionKind(kind)
	if err := whole.ObjectMeta.Unmarshal(sent); err != nil {
		t.Fatal(err)
	}
	result, err := trim(whole)
	if err != nil {
		t.Fatal(err)
	}
	return result.(*object)
}

// many returns count labels or annotations with keys and values of these lengths.
func many(count, key, value int) map[string]string {
	result := map[string]string{}
	for i := range count {
		result[fmt.Sprintf("%0*d", key, i)] = strings.Repeat("v", value)
	}
	return result
}

func TestTrim(t *testing.T) {
	whole := metav1.ObjectMeta{
		Namespace: "team", Name: "prod", UID: "uid", ResourceVersion: "7", Generation: 3, DeletionTimestamp: &metav1.Time{},
		Labels: map[string]string{"env": "prod", stamp.ManagedByLabel: "muster"},
		Annotations: map[string]string{
			"note": "long", stamp.OwnedByAnnotation: "config", stamp.ClusterNameAnnotation: "prod", stamp.RegistrationAnnotation: "agent", stamp.Domain + "/other": "long",
			stamp.ImportedFromAnnotation: "prod", stamp.ImportedUIDAnnotation: "uid", "fleet.addons.cluster.x-k8s.io/applied-hash": "1", stamp.AdoptAnnotation: "true",
		},
		Finalizers: []string{"f"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "prod", UID: "uid"},
			{APIVersion: "v1", Kind: "ConfigMap", Name: "prod", UID: "map"},
			{APIVersion: "example.com/v1", Kind: "Cluster", Name: "prod", UID: "example"},
		},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}, {Manager: "prod-" + stamp.FieldManager}},
	}
	identity := metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "uid", ResourceVersion: "7", DeletionTimestamp: &metav1.Time{}}
	for kind, keep := range map[schema.GroupVersionKind]func(*metav1.ObjectMeta){
		clusterKind: func(want *metav1.ObjectMeta) {
			want.Labels = whole.Labels
			want.Annotations = map[string]string{stamp.OwnedByAnnotation: "config", stamp.ClusterNameAnnotation: "prod", stamp.RegistrationAnnotation: "agent"}
		},
		fleetClusterKind: func(want *metav1.ObjectMeta) {
			want.OwnerReferences, want.ManagedFields = whole.OwnerReferences[:1], []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager}}
			want.Annotations = map[string]string{stamp.ImportedFromAnnotation: "prod", stamp.ImportedUIDAnnotation: "uid", stamp.AdoptAnnotation: "true"}
		},
		classKind: func(*metav1.ObjectMeta) {},
	} {
		want := *identity.DeepCopy()
		keep(&want)
		got := trimmed(t, kind, whole)
		if diff := cmp.Diff(want, got.ObjectMeta); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
		// A reflector may trim an object that it has already trimmed.
		if diff := cmp.Diff(want, trimmed(t, kind, got.ObjectMeta).ObjectMeta); diff != "" {
			t.Errorf("%s, trimmed twice (-want +got):\n%s", kind, diff)
		}
	}
}

// trim leaves out labels beyond the limit, and marks the object.
func TestTrimLeavesOutTooManyLabels(t *testing.T) {
	for name, test := range map[string]struct {
		labels map[string]string
		known  bool
	}{
		"none":            {known: true},
		"a usual number":  {labels: many(60, 40, 20), known: true},
		"many":            {labels: many(4800, 60, 63)},
		"many empty ones": {labels: many(4800, 4, 0)},
	} {
		once := trimmed(t, clusterKind, metav1.ObjectMeta{Name: "prod", Labels: test.labels})
		for times, cluster := range []*object{once, trimmed(t, clusterKind, once.ObjectMeta)} {
			want := test.labels
			if !test.known {
				want = nil
			}
			if !maps.Equal(want, cluster.Labels) || hasAllLabels(cluster) != test.known {
				t.Errorf("%s, trimmed %d times more: %d labels, all: %t", name, times, len(cluster.Labels), hasAllLabels(cluster))
			}
		}
	}
	forged := trimmed(t, clusterKind, metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: string(labelsLeftOut), Operation: metav1.ManagedFieldsOperationUpdate}}})
	if !hasAllLabels(forged) {
		t.Error("the name of a field manager passes for our mark")
	}
}

// Tenants decide how large their objects are, but must not decide how much memory the webhook takes: every user
// depends on its fail-closed entries.
func TestTrimBoundsMemory(t *testing.T) {
	const (
		count = 20
		limit = 32 << 10 // bytes of each
		large = 200 << 10
	)
	owners := func(count, name int, kind string) []metav1.OwnerReference {
		var all []metav1.OwnerReference
		for i := range count {
			all = append(all, metav1.OwnerReference{APIVersion: clusterKind.GroupVersion().String(), Kind: kind,
				Name: fmt.Sprintf("%0*d", name, i), UID: types.UID(fmt.Sprintf("%0*d", name, i))})
		}
		return all
	}
	values := map[string]string{}
	for _, key := range []string{stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation, stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation, stamp.AdoptAnnotation, stamp.Domain + "/other"} {
		values[key] = strings.Repeat("v", large/6)
	}
	ours := map[string]string{}
	for key := range many(2000, 40, 0) {
		ours[stamp.Domain+"/"+key] = "value"
	}
	for name, metadata := range map[string]metav1.ObjectMeta{
		"many labels":               {Labels: many(4800, 60, 63)},
		"labels of no length":       {Labels: many(20_000, 5, 0)},
		"the maximum number":        {Labels: many(maxLabels/labelOverhead/2, 50, 46)},
		"the maximum number, empty": {Labels: many(maxLabels/(labelOverhead+4), 4, 0)},
		"long annotations":          {Annotations: values},
		"many annotations":          {Annotations: ours},
		"many owners":               {OwnerReferences: owners(2000, 40, "Cluster")},
		"owners' long names":        {OwnerReferences: owners(maxOwners, large/2/maxOwners, "Cluster")},
		"other owners":              {OwnerReferences: owners(2000, 40, "Machine")},
		"an owner's version":        {OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterKind.Group + "/" + strings.Repeat("v", large), Kind: "Cluster", Name: "prod", UID: "uid"}}},
	} {
		for _, kind := range []schema.GroupVersionKind{clusterKind, classKind, fleetClusterKind} {
			all := make([]*object, count)
			before := heap()
			for i := range all {
				all[i] = trimmed(t, kind, metadata)
			}
			if each := (heap() - before) / count; each > limit {
				t.Errorf("%s: a trimmed %s.%s takes %d KiB, more than %d", name, kind.Kind, kind.Group, each>>10, limit>>10)
			}
			runtime.KeepAlive(all)
		}
	}
}

// heap returns the number of bytes in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // The first run leaves objects to finalizers and pools.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// A trimmed Fleet Cluster must belong to the same Cluster as the full object.
func TestTrimmedBelongsToTheSame(t *testing.T) {
	tooLong := strings.Repeat("x", 1000)
	for name, change := range map[string]func(*object){
		"nobody's":         func(*object) {},
		"by label":         func(o *object) { o.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy} },
		"by Helm's label":  func(o *object) { o.Labels = map[string]string{stamp.ManagedByLabel: "Helm"} },
		"by manager":       func(o *object) { o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager}} },
		"by CAAPF":         func(o *object) { o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x-" + stamp.FieldManager}} },
		"handed over":      func(o *object) { o.Annotations = map[string]string{stamp.AdoptAnnotation: "true"} },
		"not handed over":  func(o *object) { o.Annotations = map[string]string{stamp.AdoptAnnotation: "false"} },
		"imported from it": func(o *object) { o.Annotations = map[string]string{stamp.ImportedFromAnnotation: "prod"} },
		"another's":        func(o *object) { o.Annotations = map[string]string{stamp.ImportedFromAnnotation: "other"} },
		"owned": func(o *object) {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "prod", UID: "uid"}}
		},
		"owned by another": func(o *object) {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "other", UID: "other"}}
		},
		"owned by many": func(o *object) {
			for i := range 3 * maxOwners {
				name := fmt.Sprintf("c%d", i)
				o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: name, UID: types.UID(name)})
			}
			o.Annotations = map[string]string{stamp.ImportedFromAnnotation: "c20"}
		},
		"owned by many, it among them": func(o *object) {
			o.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
			for i := range 3 * maxOwners {
				name := fmt.Sprintf("c%d", i)
				o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: name, UID: types.UID(name)})
			}
			o.OwnerReferences[20].Name = "prod"
			o.Annotations = map[string]string{stamp.ImportedFromAnnotation: "prod"}
		},
		"owned by something else": func(o *object) {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Cluster", Name: "prod", UID: "other"}}
		},
		"from a name too long": func(o *object) {
			o.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
			o.Annotations = map[string]string{stamp.ImportedFromAnnotation: tooLong}
		},
		"of a UID too long": func(o *object) {
			o.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
			o.Annotations = map[string]string{stamp.ImportedFromAnnotation: "prod", stamp.ImportedUIDAnnotation: tooLong}
		},
		"handed over, too long": func(o *object) {
			o.Annotations = map[string]string{stamp.AdoptAnnotation: "true" + strings.Repeat(" ", 1000)}
		},
		"ours, but another": func(o *object) {
			o.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
			o.Annotations = map[string]string{stamp.ImportedFromAnnotation: "other"}
		},
	} {
		whole := &object{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}}
		whole.SetGroupVersionKind(fleetClusterKind)
		change(whole)
		trimmed := trimmed(t, fleetClusterKind, whole.ObjectMeta)
		cluster := &object{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "uid"}}
		nobody := func(string, types.UID) bool { return false }
		want, wantWhy := stamp.RelationOf(whole, cluster, nobody)
		if got, why := stamp.RelationOf(trimmed, cluster, nobody); got != want || why != strings.ReplaceAll(wantWhy, tooLong, bounds.Name(tooLong)) {
			t.Errorf("%s: %v, %q for the cached object, %v, %q for the full one", name, got, why, want, wantWhy)
		}
	}
}
