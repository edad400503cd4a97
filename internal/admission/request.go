package admission

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/json"

	"github.com/muster-fleet/muster/internal/stamp"
)

// clusterRequest is the part of a CAPI Cluster in an admission request that the stamp depends on, with the field
// names of v1beta2 (classRef) and v1beta1 (class, classNamespace). The webhooks neither read nor change any other
// field, so CAPI may add fields.
type clusterRequest struct {
	Metadata struct {
		Name         string            `json:"name"`
		GenerateName string            `json:"generateName"`
		Namespace    string            `json:"namespace"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Topology struct {
			ClassRef struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"classRef"`
			Class          string `json:"class"`
			ClassNamespace string `json:"classNamespace"`
		} `json:"topology"`
	} `json:"spec"`
}

// parseCluster reads a Cluster as the API server sent it. Like the API server, it matches
// field names case-sensitively.
func parseCluster(raw []byte) (*clusterRequest, error) {
	cluster := &clusterRequest{}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, cluster); err != nil {
		return nil, fmt.Errorf("decoding Cluster: %w", err)
	}
	return cluster, nil
}

// class returns the ClusterClass that the topology names, with its namespace; zero for none.
func (c *clusterRequest) class(namespace string) types.NamespacedName {
	topology := c.Spec.Topology
	class := types.NamespacedName{Namespace: topology.ClassRef.Namespace, Name: topology.ClassRef.Name}
	if class.Name == "" {
		class = types.NamespacedName{Namespace: topology.ClassNamespace, Name: topology.Class}
	}
	if class.Name == "" {
		return types.NamespacedName{}
	}
	if class.Namespace == "" {
		class.Namespace = namespace
	}
	return class
}

// subject returns the values that determine the stamp, without the labels of the Namespace.
func (c *clusterRequest) subject(namespace string) stamp.Subject {
	return stamp.Subject{
		Name:        c.Metadata.Name,
		Labels:      c.Metadata.Labels,
		Annotations: c.Metadata.Annotations,
		Class:       c.class(namespace),
	}
}
