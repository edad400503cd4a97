package admission

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// surprises returns what a FleetAddonConfig means for the Clusters there are and its
// author may not expect.
func (v ConfigValidator) surprises(ctx context.Context, old, config *addonsv1.FleetAddonConfig) []string {
	current, err := settings.From(config)
	if err != nil {
		return nil // It is refused.
	}
	clusters, known := v.clusters(ctx)
	if !known {
		return nil
	}
	var result []string
	if selectors := selectorsOf(config); selectors != "" && current.Cluster.Enabled && !v.anySelected(ctx, current, clusters) {
		result = append(result, fmt.Sprintf("%s: none of the %d Clusters there are is selected now", selectors, len(clusters)))
	}
	if namingOf(old) != namingOf(config) {
		if count := countPinned(clusters); count > 0 {
			result = append(result, fmt.Sprintf("spec.cluster.naming: the %d Clusters that have a name in Fleet keep it; it concerns new ones only", count))
		}
	}
	return result
}

func (v ConfigValidator) deletion(ctx context.Context) []string {
	clusters, known := v.clusters(ctx)
	count := countPinned(clusters)
	if !known || count == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d Clusters stay imported into Fleet, and without a FleetAddonConfig the defaults hold, which import every Cluster; to import nothing new, apply one with spec.cluster.enabled: false", count)}
}

func (v ConfigValidator) clusters(ctx context.Context) (all []object, known bool) {
	if v.Others == nil {
		return nil, false
	}
	all, known, err := v.Others.clusters(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Left a FleetAddonConfig unchecked against the Clusters")
		return nil, false
	}
	return all, known
}

// anySelected is true in doubt.
func (v ConfigValidator) anySelected(ctx context.Context, in settings.Settings, clusters []object) bool {
	namespaces := map[string]map[string]string{}
	for _, cluster := range clusters {
		labels, found := namespaces[cluster.Namespace]
		if !found && !in.Cluster.NamespaceSelector.Empty() {
			var err error
			if labels, err = namespaceLabels(ctx, v.Namespaces, cluster.Namespace); client.IgnoreNotFound(err) != nil {
				return true
			}
			namespaces[cluster.Namespace] = labels
		}
		if selected, _ := stamp.Selected(in.Cluster, cluster.Labels, labels); selected {
			return true
		}
	}
	return false
}

// selectorsOf names the selectors that select something other than everything.
func selectorsOf(config *addonsv1.FleetAddonConfig) string {
	cluster := ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{})
	selects := func(selector *metav1.LabelSelector) bool {
		return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) > 0
	}
	one, other := selects(cluster.Selector), selects(cluster.NamespaceSelector)
	switch {
	case one && other:
		return "spec.cluster.selector and spec.cluster.namespaceSelector"
	case one:
		return "spec.cluster.selector"
	case other:
		return "spec.cluster.namespaceSelector"
	default:
		return ""
	}
}

func namingOf(config *addonsv1.FleetAddonConfig) addonsv1.NamingStrategy {
	return ptr.Deref(ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{}).Naming, addonsv1.NamingStrategy{})
}

func countPinned(clusters []object) int {
	count := 0
	for _, cluster := range clusters {
		if stamp.PinOf(cluster.Annotations).IsComplete() {
			count++
		}
	}
	return count
}
