// Package agentmanifest reads the manifest of a Cluster whose agent registers itself, with the rights of
// the person who runs it.
package agentmanifest

import (
	"context"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// fieldRef is a reference without apiVersion, as Fleet writes it. The API server adds v1, and as a fieldRef is applied as a
// whole, kubectl would report a conflict with the same manifest, applied in another way.
var fieldRef = regexp.MustCompile(`(?m)^( *fieldRef:\n)( *)fieldPath:`)

// Read reads the manifest of a Cluster. It checks the Secret's type and owner: anyone may have created a Secret of
// this name, and could then control the cluster.
func Read(ctx context.Context, reader client.Reader, key client.ObjectKey) ([]byte, error) {
	var cluster clusterv1.Cluster
	if err := reader.Get(ctx, key, &cluster); err != nil {
		return nil, fmt.Errorf("reading Cluster: %w", err)
	}
	condition := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetAgentManifestReadyCondition)
	switch {
	case condition == nil:
		return nil, fmt.Errorf("cluster %s has no manifest: its agent does not register itself, or the component registrar does not run (the condition FleetImported says which)", key)
	case condition.Status != metav1.ConditionTrue:
		return nil, fmt.Errorf("the manifest of Cluster %s is not ready: %s: %s", key, condition.Reason, condition.Message)
	}
	var secret corev1.Secret
	key.Name = stamp.ManifestSecret(cluster.Name)
	switch err := reader.Get(ctx, key, &secret); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the Secret %s is gone; the registrar rewrites it within an hour, or when a label of the Cluster changes", key)
	case err != nil:
		return nil, fmt.Errorf("reading Secret: %w", err)
	}
	owners := secret.OwnerReferences
	if secret.Type != stamp.ManifestSecretType || len(owners) != 1 || owners[0].UID != cluster.UID || len(secret.Data[stamp.ManifestKey]) == 0 {
		return nil, fmt.Errorf("the Secret %s was not created by Muster for this Cluster; do not apply it", key)
	}
	return complete(secret.Data[stamp.ManifestKey]), nil
}

// complete gives each fieldRef the apiVersion that the API server gives it.
func complete(manifest []byte) []byte {
	return fieldRef.ReplaceAll(manifest, []byte("${1}${2}apiVersion: v1\n${2}fieldPath:"))
}
