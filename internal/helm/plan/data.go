package plan

import (
	"encoding/json"
	"io"

	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// infraCluster is the name of the infrastructure cluster in templates.
const infraCluster = "InfraCluster"

// WriteRead writes the parts of a Cluster that templates may read: as long as they are unchanged, so are its
// values. Its status and its managed fields do not matter.
func WriteRead(cluster *clusterv1.Cluster, exclude []string, to io.Writer) error {
	values, err := desired.Values(cluster, nil, nil, exclude)
	if err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(values) // Maps are written in the order of their keys.
}

// Data returns the data for the template of a Cluster: the Cluster, the objects that it refers to, and the
// variables of its topology, without the fields that the settings exclude.
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

// Selector selects the Clusters of a HelmChartProxy.
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

// Matches reports whether a Cluster is selected. It calls namespaceLabels only with a namespaceSelector.
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
