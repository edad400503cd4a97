package render

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	controlplanev1beta1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta1" //nolint:staticcheck // It is read for as long as Cluster API serves it.
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1beta1 "sigs.k8s.io/cluster-api/api/core/v1beta1" //nolint:staticcheck // It is read for as long as Cluster API serves it.
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeadmconversion "sigs.k8s.io/cluster-api/controlplane/kubeadm/webhooks/conversion"
	"sigs.k8s.io/cluster-api/core/webhooks/conversion"
	"sigs.k8s.io/json"

	"github.com/muster-fleet/muster/internal/manifests"
)

// readCluster reads a Cluster. It converts v1beta1 with the function of Cluster API's conversion webhook; the one in
// the API's own package drops both references without an error.
func readCluster(object *manifests.Object) (*clusterv1.Cluster, error) {
	cluster := &clusterv1.Cluster{}
	switch version := object.GroupVersionKind().GroupVersion(); version {
	case clusterv1.GroupVersion:
		return cluster, json.UnmarshalCaseSensitivePreserveInts(object.Raw, cluster)
	case clusterv1beta1.GroupVersion:
	default:
		return nil, fmt.Errorf("is %s; Cluster API serves %s and %s", version, clusterv1.GroupVersion, clusterv1beta1.GroupVersion)
	}
	old := &clusterv1beta1.Cluster{}
	if err := json.UnmarshalCaseSensitivePreserveInts(object.Raw, old); err != nil {
		return nil, err
	}
	err := conversion.ConvertClusterV1Beta1ToHub(context.Background(), old, cluster)
	cluster.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind))
	return cluster, err
}

// readOther reads an object that Clusters may refer to. A KubeadmControlPlane is read in the version of today's
// Cluster API; the objects of other providers are taken as they are.
func readOther(object *manifests.Object) (fields map[string]any, err error) {
	kind := controlplanev1.GroupVersion.WithKind("KubeadmControlPlane")
	if object.GroupVersionKind() != controlplanev1beta1.GroupVersion.WithKind(kind.Kind) {
		return fields, json.UnmarshalCaseSensitivePreserveInts(object.Raw, &fields)
	}
	old, read := &controlplanev1beta1.KubeadmControlPlane{}, &controlplanev1.KubeadmControlPlane{}
	if err := json.UnmarshalCaseSensitivePreserveInts(object.Raw, old); err != nil {
		return nil, err
	}
	if err := kubeadmconversion.ConvertKubeadmControlPlaneV1Beta1ToHub(context.Background(), old, read); err != nil {
		return nil, err
	}
	read.SetGroupVersionKind(kind)
	return runtime.DefaultUnstructuredConverter.ToUnstructured(read)
}
