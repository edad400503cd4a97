package desired

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

func TestGroups(t *testing.T) {
	key := types.NamespacedName{Namespace: "classes", Name: "standard"}
	class := makeClass("classes", "standard", map[string]string{
		"tier": "gold", "fleet.cattle.io/shard-ref": "x", "management.cattle.io/x": "x", "app.kubernetes.io/managed-by": "Helm", stamp.ClassNameLabel: "forged",
	})
	stamped := map[string]string{stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: "classes"}
	long := types.NamespacedName{Namespace: "classes", Name: strings.Repeat("c", 64)}
	longStamped := map[string]string{stamp.ClassNameLabel: long.Name[:54] + "-52b6419d", stamp.ClassNamespaceLabel: "classes"}
	with := func(labels map[string]string, more ...string) map[string]string {
		result := map[string]string{"app.kubernetes.io/managed-by": "muster"}
		for key, value := range labels {
			result[key] = value
		}
		for i := 0; i < len(more); i += 2 {
			result[more[i]] = more[i+1]
		}
		return result
	}
	owner := []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "ClusterClass", Name: "standard", UID: "uid-of-standard"}}
	tests := map[string]struct {
		got  *fleetv1.ClusterGroup
		want fleetv1.ClusterGroup
	}{
		"of a class": {
			got: ClassGroup(settings.Default(), class),
			want: fleetv1.ClusterGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "standard", Labels: with(stamped, "tier", "gold"), OwnerReferences: owner},
				Spec:       fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: stamped}},
			},
		},
		"of a class, no owner": {
			got: ClassGroup(settingsOf(t, `clusterClass: {setOwnerReferences: false}`), class),
			want: fleetv1.ClusterGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "standard", Labels: with(stamped, "tier", "gold")},
				Spec:       fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: stamped}},
			},
		},
		"the Clusters' owner setting is another": {
			got: ClassGroup(settingsOf(t, `cluster: {setOwnerReferences: false}`), class),
			want: fleetv1.ClusterGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "standard", Labels: with(stamped, "tier", "gold"), OwnerReferences: owner},
				Spec:       fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: stamped}},
			},
		},
		"in the namespace of the Clusters": {
			got: CrossNamespaceGroup(settings.Default(), "team", key, class),
			want: fleetv1.ClusterGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "standard.classes", Labels: with(stamped, "tier", "gold")},
				Spec:       fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: stamped}},
			},
		},
		"of a class that does not exist yet": {
			got: CrossNamespaceGroup(settings.Default(), "team", key, nil),
			want: fleetv1.ClusterGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "standard.classes", Labels: with(stamped)},
				Spec:       fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: stamped}},
			},
		},
		"of a class with a long name": {
			got: CrossNamespaceGroup(settings.Default(), "team", long, nil),
			want: fleetv1.ClusterGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: long.Name + ".classes", Labels: with(longStamped)},
				Spec:       fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: longStamped}},
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.want.TypeMeta = metav1.TypeMeta{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "ClusterGroup"}
			// Argo CD spares what has an owner, and what asks for it.
			var annotations map[string]string
			if len(test.want.OwnerReferences) == 0 {
				annotations = optOuts
			}
			if diff := cmp.Diff(annotations, withoutHash(t, test.got.Annotations), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			test.got.Annotations = nil
			if diff := cmp.Diff(&test.want, test.got); diff != "" {
				t.Errorf("ClusterGroup (-want +got):\n%s", diff)
			}
		})
	}
}

// A group selects exactly the Fleet Clusters of its class, whatever their labels were.
func TestGroupsSelectTheirClusters(t *testing.T) {
	long := strings.Repeat("c", 64)
	for _, name := range []string{"standard", "standard.v1", long} {
		cluster := FleetCluster(settings.Default(), makeCluster("team", "prod").Class("classes", name).Label(stamp.ClassNameLabel, "forged").Obj(), nil, nil, Targets{}, "")
		other := FleetCluster(settings.Default(), makeCluster("team", "prod").Class("classes", name+"x").Obj(), nil, nil, Targets{}, "")
		elsewhere := FleetCluster(settings.Default(), makeCluster("team", "prod").Class("", name).Obj(), nil, nil, Targets{}, "")
		group := CrossNamespaceGroup(settings.Default(), "team", types.NamespacedName{Namespace: "classes", Name: name}, nil)
		selector, err := metav1.LabelSelectorAsSelector(group.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(labels.Set(cluster.Labels)) || selector.Matches(labels.Set(other.Labels)) || selector.Matches(labels.Set(elsewhere.Labels)) {
			t.Errorf("the group of %s selects by %s", name, selector)
		}
	}
}

func TestMapping(t *testing.T) {
	want := fleetv1.BundleNamespaceMapping{
		TypeMeta:   metav1.TypeMeta{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "BundleNamespaceMapping"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "team", Labels: map[string]string{"app.kubernetes.io/managed-by": "muster"}},
	}
	retired := RetiredMapping("classes", "team")
	if diff := cmp.Diff(optOuts, withoutHash(t, retired.Annotations)); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	retiredHash := retired.Annotations[HashAnnotation]
	retired.Annotations = nil
	if diff := cmp.Diff(&want, retired); diff != "" {
		t.Errorf("RetiredMapping (-want +got):\n%s", diff)
	}

	mapping := Mapping("classes", "team")
	if mapping.Annotations[HashAnnotation] == retiredHash {
		t.Error("a retired mapping has the hash of an active one")
	}
	if diff := cmp.Diff(optOuts, withoutHash(t, mapping.Annotations)); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	mapping.Annotations = nil
	want.BundleSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "objectset.rio.cattle.io/hash", Operator: "DoesNotExist"}}}
	want.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "team"}}
	if diff := cmp.Diff(&want, mapping); diff != "" {
		t.Errorf("Mapping (-want +got):\n%s", diff)
	}

	selector, err := metav1.LabelSelectorAsSelector(mapping.BundleSelector)
	if err != nil {
		t.Fatal(err)
	}
	if selector.Matches(labels.Set{"objectset.rio.cattle.io/hash": "x", "a": "b"}) || !selector.Matches(labels.Set{"a": "b"}) || !selector.Matches(labels.Set{}) {
		t.Errorf("bundles are selected by %s", selector)
	}
}

// A mapping maps if it maps at least what Muster's does: CAAPF's, which is to be narrowed, does not begin to map.
func TestMaps(t *testing.T) {
	all, other := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	for name, test := range map[string]struct {
		change func(*fleetv1.BundleNamespaceMapping)
		want   bool
	}{
		"as Muster's":          {func(*fleetv1.BundleNamespaceMapping) {}, true},
		"CAAPF's":              {func(mapping *fleetv1.BundleNamespaceMapping) { mapping.BundleSelector = all }, true},
		"to every namespace":   {func(mapping *fleetv1.BundleNamespaceMapping) { mapping.NamespaceSelector = all }, true},
		"retired":              {func(mapping *fleetv1.BundleNamespaceMapping) { *mapping = *RetiredMapping("classes", "team") }, false},
		"without Bundles":      {func(mapping *fleetv1.BundleNamespaceMapping) { mapping.BundleSelector = nil }, false},
		"without namespaces":   {func(mapping *fleetv1.BundleNamespaceMapping) { mapping.NamespaceSelector = nil }, false},
		"of other Bundles":     {func(mapping *fleetv1.BundleNamespaceMapping) { mapping.BundleSelector = other }, false},
		"to another namespace": {func(mapping *fleetv1.BundleNamespaceMapping) { mapping.NamespaceSelector = other }, false},
	} {
		mapping := Mapping("classes", "team")
		test.change(mapping)
		if got := Maps(mapping); got != test.want {
			t.Errorf("%s: it maps: %t", name, got)
		}
	}
}

// What makes Fleet look again is no part of the hash, so that a mapping that differs only by it is not applied again.
func TestBegunMapping(t *testing.T) {
	mapping := BegunMapping("classes", "team", "3")
	mapping.UID = "uid"
	if got := Begun(mapping); got != "uid.3" {
		t.Errorf("begun: %q", got)
	}
	for name, forge := range map[string]func(*fleetv1.BundleNamespaceMapping){
		"a long value": func(its *fleetv1.BundleNamespaceMapping) {
			its.Annotations[RetargetAnnotation] = strings.Repeat("1", 1000)
		},
		"another value":    func(its *fleetv1.BundleNamespaceMapping) { its.Annotations[RetargetAnnotation] = "again" },
		"maps nothing":     func(its *fleetv1.BundleNamespaceMapping) { its.BundleSelector = nil },
		"is being deleted": func(its *fleetv1.BundleNamespaceMapping) { now := metav1.Now(); its.DeletionTimestamp = &now },
	} {
		forged := mapping.DeepCopy()
		if forge(forged); Begun(forged) != "" {
			t.Errorf("%s: begun: %q", name, Begun(forged))
		}
	}
	if mapping.Annotations[HashAnnotation] != Mapping("classes", "team").Annotations[HashAnnotation] {
		t.Error("the hash is another")
	}
	if diff := cmp.Diff(Mapping("classes", "team"), BegunMapping("classes", "team", "")); diff != "" || Begun(Mapping("classes", "team")) != "" {
		t.Errorf("a mapping that has not begun (-want +got):\n%s", diff)
	}
}

// The annotation of a Fleet Cluster changes when a mapping begins to map or is to be looked at again, and never
// because one is there no more.
func TestRetargeted(t *testing.T) {
	for _, test := range []struct {
		have  string
		begun []string
		want  string
	}{
		{"", nil, ""},
		{"", []string{"a.1"}, "a.1"},
		{"a.1", []string{"a.1"}, "a.1"},
		{"a.1", []string{"a.1.again"}, "a.1.again"},
		{"a.1.again", nil, "a.1.again"},
		{"a.1.again", []string{"a.1.again", "b.1"}, "a.1.again b.1"},
		{"a.1.again b.1", []string{"b.1"}, "a.1.again b.1"},
		{"a.1.again b.1", []string{"b.1.again"}, "b.1.again"},
		{"a.1.again", []string{"a.1"}, "a.1"},
		{"forged", []string{"a.1"}, "a.1"},
		{strings.Repeat("x", 1000), nil, ""},
		{"a.1 " + strings.Repeat("x", 1000) + ".1", []string{"a.1"}, "a.1"},
	} {
		if got := Retargeted(test.have, test.begun); got != test.want {
			t.Errorf("%q with %q: %q, want %q", test.have, test.begun, got, test.want)
		}
	}
}
