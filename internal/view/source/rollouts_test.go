package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/view"
)

// TestRollouts compares the warnings, and the lists that Rollouts requests.
func TestRollouts(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "classes"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"kubernetes.io/metadata.name": "team"}}},
		&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "canary"}},
		&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}},
		&fleetv1.BundleNamespaceMapping{
			ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "team"}, BundleSelector: &metav1.LabelSelector{},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "team"}},
		},
	}
	bundle := func(name string, labels map[string]string) {
		its := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: name, Labels: labels}}
		its.Spec.Resources = []fleetv1.BundleResource{{Name: "large"}}
		its.Spec.Targets = []fleetv1.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
		its.Spec.RolloutStrategy = &fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{{Name: "canary", ClusterName: "canary"}, {Name: "rest", ClusterSelector: &metav1.LabelSelector{}}}}
		objects = append(objects, its)
	}
	plain := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "plain"}}
	objects = append(objects, plain)
	bundle("app", nil)
	bundle("hcp-cni", plan.Labels(plan.Key{Namespace: "classes", Name: "cni"}))
	bundle("fleet-agent-prod", map[string]string{appliedLabel: "1"})
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		namespace string
		fails     string
		want      string
		lists     string
	}{
		"all":                              {"", "", "[classes/app AllAtOnce]", "BundleList BundleNamespaceMappingList NamespaceList ClusterList ClusterGroupList"},
		"of a namespace":                   {"classes", "", "[classes/app AllAtOnce]", "BundleList/classes BundleNamespaceMappingList/classes NamespaceList ClusterList ClusterGroupList"},
		"a namespace without partitions":   {"team", "", "[]", "BundleList/team"},
		"a list that fails":                {"", "ClusterList", "[] broken", "BundleList BundleNamespaceMappingList NamespaceList ClusterList"},
		"Bundles that fail":                {"", "BundleList", "[] broken", "BundleList"},
		"Bundles of a namespace that fail": {"classes", "NamespaceList", "[] broken", "BundleList/classes BundleNamespaceMappingList/classes NamespaceList"},
	} {
		t.Run(name, func(t *testing.T) {
			var lists []string
			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, from client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					applied := (&client.ListOptions{}).ApplyOptions(options)
					kind := list.GetObjectKind().GroupVersionKind().Kind
					if kind == "" {
						kind = strings.TrimPrefix(fmt.Sprintf("%T", list), "*v1alpha1.")
					}
					if isBundles := kind == "BundleList"; isBundles && (applied.Limit != bundlePage || applied.LabelSelector == nil) {
						t.Errorf("Bundles are listed with %+v", applied)
					}
					lists = append(lists, strings.TrimSuffix(kind+"/"+applied.Namespace, "/"))
					if kind == test.fails {
						return broken
					}
					return from.List(ctx, list, options...)
				},
			}).Build()
			var warnings []*view.Node
			var notes []string
			inspection, err := Inspect(t.Context(), reader, Scope{Namespace: test.namespace}, view.NewObjects(), nil)
			if err == nil {
				warnings, notes, err = inspection.Rollouts(t.Context())
			}
			got := fmt.Sprint(keys(warnings))
			if errors.Is(err, broken) {
				got += " broken"
				err = nil
			}
			if err != nil || len(notes) > 0 || got != test.want || strings.Join(lists, " ") != test.lists {
				t.Errorf("got %s, %v, %v, from %v", got, notes, err, lists)
			}
		})
	}
}

func keys(warnings []*view.Node) []string {
	result := []string{}
	for _, warning := range warnings {
		result = append(result, warning.Key()+" "+warning.Reason)
	}
	return result
}
