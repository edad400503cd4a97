package plan

import (
	"encoding/json"
	"io"

	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// infraCluster is what templates call the infrastructure cluster.
const infraCluster = "InfraCluster"

// WriteRead writes what templates may read of a Cluster: as long as that is the same, its values are. Its
// status, and who else writes to it, play no part.
func WriteRead(cluster *clusterv1.Cluster, exclude []string, to io.Writer) error {
	values, err := desired.Values(cluster, nil, nil, exclude)
	if err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(values) // Maps are written in the order of their keys.
}

// Data returns what the template of a Cluster may use: the Cluster, what it refers to, and the variables of
// its topology, without what the settings exclude.
func Data(cluster *clusterv1.Cluster, controlPlane, infrastructure map[string]any, exclude []string) (map[string]any, error) {
	values, err := desired.Values(cluster, controlPlane, infrastructure, exclude)
	if err != nil {
		return nil, err
	}
	if infrastructure, found := values[desired.InfrastructureValue]; found {
		delete(values, desired.InfrastructureValue)
		values[infraCluster] = infrastructure
	}
	return values, nil
}

// Selector says which Clusters a HelmChartProxy selects.
type Selector struct {
	namespace            string
	clusters, namespaces labels.Selector
}

// NewSelector returns the Selector of a HelmChartProxy. The error names the field that cannot be used.
func NewSelector(proxy *addonsv1.HelmChartProxy) (*Selector, *Trouble) {
	fail := func(field string, err error) (*Selector, *Trouble) {
		return nil, &Trouble{addonsv1.ClusterSelectionFailedReason, field + ": " + err.Error()}
	}
	s := &Selector{namespace: proxy.Namespace}
	var err error
	if s.clusters, err = bounds.AsSelector(&proxy.Spec.ClusterSelector); err != nil {
		return fail("spec.clusterSelector", err)
	}
	if proxy.Spec.NamespaceSelector != nil {
		if s.namespaces, err = bounds.AsSelector(proxy.Spec.NamespaceSelector); err != nil {
			return fail("spec.namespaceSelector", err)
		}
	}
	return s, nil
}

// Namespace returns the namespace that selected Clusters are in; empty for several.
func (s *Selector) Namespace() string {
	if s.namespaces != nil {
		return ""
	}
	return s.namespace
}

// Matches reports whether a Cluster is selected. NamespaceLabels are only asked for with a namespaceSelector.
func (s *Selector) Matches(cluster *clusterv1.Cluster, namespaceLabels func(string) labels.Set) bool {
	if !s.clusters.Matches(labels.Set(stamp.WithClassLabels(cluster.Labels, cluster.GetClassKey()))) {
		return false
	}
	if s.namespaces == nil {
		return cluster.Namespace == s.namespace
	}
	its := namespaceLabels(cluster.Namespace)
	return its != nil && s.namespaces.Matches(its)
}
