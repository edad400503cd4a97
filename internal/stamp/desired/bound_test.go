package desired

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// numbered returns so many entries, whose keys begin with a prefix.
func numbered(count int, prefix, value string) map[string]string {
	entries := map[string]string{}
	for i := range count {
		entries[fmt.Sprintf("%s%d", prefix, i)] = value
	}
	return entries
}

func TestTooMuch(t *testing.T) {
	large := map[string]string{"k": strings.Repeat("x", MaxCopiedBytes-1)}
	larger := map[string]string{"k": strings.Repeat("x", MaxCopiedBytes)}
	for name, test := range map[string]struct {
		labels, annotations, classLabels map[string]string
		want                             string // the beginning; empty if all is copied
		warns                            bool   // for the Cluster
	}{
		"nothing":                 {},
		"half of all":             {labels: numbered(256, "l", ""), annotations: numbered(256, "a", ""), classLabels: numbered(512, "c", "")},
		"more than half":          {labels: numbered(257, "l", ""), warns: true},
		"as many as may be":       {labels: numbered(512, "l", ""), annotations: numbered(512, "a", ""), classLabels: numbered(512, "c", ""), warns: true},
		"one label more":          {labels: numbered(513, "l", "v"), annotations: map[string]string{"a": "b"}, want: "nothing is copied from the Cluster, because it has 513 labels and 1 annotations to copy, of 2457 bytes together, and Muster copies at most 512 labels, 512 annotations and 131072 bytes: remove some", warns: true},
		"one annotation more":     {annotations: numbered(513, "a", ""), want: "nothing is copied from the Cluster, because it has 0 labels and 513 annotations", warns: true},
		"one label of the class":  {classLabels: numbered(513, "c", ""), want: "nothing is copied from ClusterClass classes/standard, because it has 513 labels"},
		"both":                    {labels: numbered(600, "l", ""), classLabels: numbered(700, "c", ""), want: "nothing is copied from the Cluster, because it has 600 labels", warns: true},
		"as large as it may be":   {annotations: large, warns: true},
		"one byte more":           {annotations: larger, want: "nothing is copied from the Cluster, because it has 0 labels and 1 annotations to copy, of 131073 bytes", warns: true},
		"one byte more, together": {labels: map[string]string{"l": ""}, annotations: large, want: "nothing is copied from the Cluster, because it has 1 labels and 1 annotations to copy, of 131073 bytes", warns: true},
		"what is not copied": {
			labels: numbered(9999, "fleet.cattle.io/", ""),
			annotations: map[string]string{
				"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 200<<10),
				stamp.HookAnnotation: strings.Repeat("x", 200<<10),
			},
		},
		"the labels of Muster": {labels: map[string]string{stamp.ClassNameLabel: strings.Repeat("x", 200<<10), stamp.ClassNamespaceLabel: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := makeCluster("team", "prod").Class("classes", "standard").Obj()
			cluster.Labels, cluster.Annotations = test.labels, test.annotations
			class := makeClass("classes", "standard", test.classLabels)
			class.Annotations = larger // They are not copied.
			if got := TooMuch(settings.Default(), cluster, class); !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("TooMuch = %q, want %q", got, test.want)
			}
			if got := TooMuch(settings.Default(), nil, class); (got == "") != (len(test.classLabels) <= MaxCopiedKeys) {
				t.Errorf("TooMuch of the class = %q", got)
			}
			warning := NearlyTooMuch(settings.Default(), test.labels, test.annotations)
			if (warning != "") != test.warns {
				t.Errorf("NearlyTooMuch = %q", warning)
			}
			if isOver := strings.HasPrefix(test.want, "nothing is copied from the Cluster"); strings.HasPrefix(warning, "nothing is copied") != isOver {
				t.Errorf("NearlyTooMuch = %q, and TooMuch = %q", warning, test.want)
			}
		})
	}
	if got := TooMuch(settings.Default(), nil, nil); got != "" {
		t.Errorf("nothing at all: %q", got)
	}
}

// Nothing is copied in part: neither some of the labels, nor the labels without the annotations or the values.
func TestTooMuchToCopyIsNotCopiedAtAll(t *testing.T) {
	values := map[string]any{"Cluster": map[string]any{"x": "y"}}
	targets := Targets{Group: "1"}
	few, many := map[string]string{"env": "prod"}, numbered(MaxCopiedKeys+1, "k", "v")
	for name, test := range map[string]struct{ labels, annotations, classLabels map[string]string }{
		"labels":                {labels: many, annotations: few, classLabels: few},
		"annotations":           {labels: few, annotations: many, classLabels: few},
		"labels of the class":   {labels: few, annotations: few, classLabels: many},
		"labels of both, and a": {labels: many, annotations: many, classLabels: many},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := makeCluster("team", "prod").Class("classes", "standard").Obj()
			class := makeClass("classes", "standard", nil)
			pin := cluster.Annotations
			bareFleet, bareAttached := FleetCluster(settings.Default(), cluster, class, nil, targets, "id"), Attachment(settings.Default(), types.NamespacedName{Name: "c"}, "u", cluster, class, nil, targets)
			bareGroups := []*fleetv1.ClusterGroup{ClassGroup(settings.Default(), class), CrossNamespaceGroup(settings.Default(), "team", types.NamespacedName{Namespace: "classes", Name: "standard"}, class), WorkspaceGroup(settings.Default(), "w", "team", types.NamespacedName{Namespace: "classes", Name: "standard"}, class)}

			cluster.Labels, cluster.Annotations, class.Labels = test.labels, test.annotations, test.classLabels
			cluster.Annotations = maps.Clone(cluster.Annotations)
			maps.Copy(cluster.Annotations, pin)
			got := FleetCluster(settings.Default(), cluster, class, values, targets, "id")
			delete(bareFleet.Annotations, HashAnnotation) // A part has none.
			if diff := cmp.Diff(bareFleet, got); diff != "" {
				t.Errorf("the Fleet Cluster (-bare +got):\n%s", diff)
			}
			if diff := cmp.Diff(bareAttached, Attachment(settings.Default(), types.NamespacedName{Name: "c"}, "u", cluster, class, nil, targets)); diff != "" {
				t.Errorf("the attachment (-bare +got):\n%s", diff)
			}
			for i, got := range []*fleetv1.ClusterGroup{ClassGroup(settings.Default(), class), CrossNamespaceGroup(settings.Default(), "team", types.NamespacedName{Namespace: "classes", Name: "standard"}, class), WorkspaceGroup(settings.Default(), "w", "team", types.NamespacedName{Namespace: "classes", Name: "standard"}, class)} {
				want := bareGroups[i]
				if TooMuch(settings.Default(), nil, class) == "" {
					if got.Labels["env"] != "prod" || got.Annotations[HashAnnotation] == "" {
						t.Errorf("the group lacks what is copied from a class that is small enough: %v", got)
					}
					continue
				}
				if delete(want.Annotations, HashAnnotation); len(want.Annotations) == 0 {
					want.Annotations = nil
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the group (-bare +got):\n%s", diff)
				}
			}
		})
	}
}

func TestWithCopies(t *testing.T) {
	cluster := makeCluster("team", "prod").Class("classes", "new").Annotation("a", "kept").Label("env", "prod").Obj()
	before := Attachment(settings.Default(), types.NamespacedName{Name: "c"}, "u", cluster, makeClass("classes", "old", map[string]string{"tier": "gold"}), map[string]any{"x": "y"}, Targets{Group: "1"})
	maps.Copy(before.Labels, stamp.Labels(types.NamespacedName{Namespace: "classes", Name: "old"}))
	cluster.Labels = numbered(MaxCopiedKeys+1, "k", "v")
	want := Attachment(settings.Default(), types.NamespacedName{Name: "c"}, "u", cluster, nil, nil, Targets{Group: "2"})
	got := WithCopies(settings.Default(), want, before)
	if got.Labels["env"] != "prod" || got.Labels["tier"] != "gold" || got.Annotations["a"] != "kept" {
		t.Errorf("a copy is gone: %v", got.ObjectMeta)
	}
	for key, value := range want.Labels {
		if got.Labels[key] != value {
			t.Errorf("label %s is %q", key, got.Labels[key])
		}
	}
	for key, value := range want.Annotations {
		if got.Annotations[key] != value {
			t.Errorf("annotation %s is %q", key, got.Annotations[key])
		}
	}
	if len(got.Labels) != len(want.Labels)+2 || len(got.Annotations) != len(want.Annotations)+1 {
		t.Errorf("something else is there: %v", got.ObjectMeta)
	}
	if diff := cmp.Diff(map[string]any{"x": "y"}, got.Spec.TemplateValues.Data); diff != "" {
		t.Errorf("the values (-want +got):\n%s", diff)
	}
	if _, found := want.Labels["env"]; found {
		t.Error("the wanted object was changed")
	}
}

func TestBiggestPart(t *testing.T) {
	long := func(count int) string { return strings.Repeat("x", count) }
	for name, test := range map[string]struct {
		values map[string]any
		want   string
		bytes  int
	}{
		"nothing":              {},
		"a value":              {values: map[string]any{"a": long(8), "b": "c"}, want: "/a", bytes: 10},
		"of two, the first":    {values: map[string]any{"b": "c", "a": "c"}, want: "/a", bytes: 3},
		"a part of it":         {values: map[string]any{"a": map[string]any{"b/c": long(20), "d": long(5)}, "b": long(8)}, want: "/a/b~1c", bytes: 22},
		"no part has the most": {values: map[string]any{"a": map[string]any{"b": long(20), "c": long(20)}, "b": long(8)}, want: "/a", bytes: 55},
		"not too deep":         {values: map[string]any{"a": map[string]any{"b": map[string]any{"c": map[string]any{"d": map[string]any{"e": long(99)}}}}}, want: "/a/b/c/d", bytes: 107},
		"a list is one":        {values: map[string]any{"a": []any{long(90)}}, want: "/a", bytes: 94},
	} {
		t.Run(name, func(t *testing.T) {
			if got, bytes := BiggestPart(test.values); got != test.want || bytes != test.bytes {
				t.Errorf("BiggestPart = %q, %d, want %q, %d", got, bytes, test.want, test.bytes)
			}
		})
	}
}
