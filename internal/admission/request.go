package admission

import (
	stdjson "encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/json"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
)

// clusterRequest is the part of a CAPI Cluster in an admission request that the stamp depends on, with the field
// names of v1beta2 (classRef) and v1beta1 (class, classNamespace). The webhooks neither read nor change any other
// field, so CAPI may add fields.
type clusterRequest struct {
	APIVersion string `json:"apiVersion"`
	Metadata   struct {
		Name         string            `json:"name"`
		GenerateName string            `json:"generateName"`
		Namespace    string            `json:"namespace"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Paused   bool `json:"paused"`
		Topology struct {
			Version  string `json:"version"`
			ClassRef struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"classRef"`
			Class          string `json:"class"`
			ClassNamespace string `json:"classNamespace"`
			// Variables are only compared.
			Variables stdjson.RawMessage `json:"variables"`
		} `json:"topology"`
	} `json:"spec"`
	Status struct {
		conditions
		V1Beta2 conditions `json:"v1beta2"` // in v1beta1
	} `json:"status"`
}

type conditions struct {
	Conditions []struct {
		Type   string `json:"type"`
		Status string `json:"status"`
		Reason string `json:"reason"`
	} `json:"conditions"`
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

func (c *clusterRequest) isV1Beta1() bool { return c.APIVersion == clusterKind.Group+"/v1beta1" }

// classField returns the field in which a Cluster of this version names its class.
func (c *clusterRequest) classField() string {
	if c.isV1Beta1() {
		return "spec.topology.class"
	}
	return "spec.topology.classRef"
}

// class returns the ClusterClass that the topology names, with its namespace; zero for none. It does not read the
// field of another version, which the API server drops.
func (c *clusterRequest) class(namespace string) types.NamespacedName {
	topology := c.Spec.Topology
	class := types.NamespacedName{Namespace: topology.ClassRef.Namespace, Name: topology.ClassRef.Name}
	if c.isV1Beta1() {
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

// held returns the fields that decide whether an upgrade is held.
func (c *clusterRequest) held() hold.Cluster {
	place := hold.Out
	for _, condition := range slices.Concat(c.Status.Conditions, c.Status.V1Beta2.Conditions) {
		if condition.Type == addonsv1.FleetImportedCondition {
			place = hold.PlaceOf(metav1.ConditionStatus(condition.Status), condition.Reason)
		}
	}
	_, isPaused := c.Metadata.Annotations[clusterv1.PausedAnnotation]
	return hold.Cluster{
		Labels: c.Metadata.Labels, Annotations: c.Metadata.Annotations, Version: c.Spec.Topology.Version,
		Class: c.class(""), Variables: string(c.Spec.Topology.Variables), Paused: c.Spec.Paused || isPaused, Place: place,
	}
}
