package stamp

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/internal/settings"
)

// Selected reports whether a Cluster and its Namespace, with these labels, are selected for
// import. If not, why says which setting keeps the Cluster out, as the end of the sentence
// "Cluster is not imported into Fleet: …".
func Selected(cluster settings.Cluster, clusterLabels, namespaceLabels map[string]string) (selected bool, why string) {
	switch {
	case !cluster.Enabled:
		return false, "spec.cluster.enabled of the FleetAddonConfig is false"
	case !cluster.Selector.Matches(labels.Set(clusterLabels)):
		return false, fmt.Sprintf("its labels do not match spec.cluster.selector of the FleetAddonConfig (%s)", cluster.Selector)
	case !cluster.NamespaceSelector.Matches(labels.Set(namespaceLabels)):
		return false, fmt.Sprintf("the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (%s)", cluster.NamespaceSelector)
	default:
		return true, ""
	}
}
