package plan

import (
	"encoding/json"
	"io"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/sync/desired"
)

// infraCluster is what templates call the infrastructure cluster.
const infraCluster = "InfraCluster"

// WriteRead writes what templates may read of a Cluster. As long as that is the same, what was
// rendered is: its status, and who else writes to it, play no part.
func WriteRead(cluster *clusterv1.Cluster, exclude []string, to io.Writer) error {
	values, err := desired.Values(cluster, nil, nil, exclude)
	if err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(values) // Maps are written in the order of their keys.
}

// Data returns what the template of a Cluster may use: the Cluster, what it refers to, and
// the variables of its topology, without what the settings exclude.
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
