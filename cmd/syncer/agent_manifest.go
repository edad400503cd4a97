package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

// runAgentManifest prints what to apply to a cluster whose agent calls by itself.
func runAgentManifest(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var who person
	fs := pflag.NewFlagSet("syncer agent-manifest", pflag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "Usage: syncer agent-manifest NAMESPACE/CLUSTER | kubectl --context=THE-CLUSTER apply -f -\n\n%s", fs.FlagUsages())
	}
	who.addTo(fs)
	if err := program.Parse(fs, args, stdout); err != nil {
		return program.Exit(2, err)
	}
	namespace, name, isKey := strings.Cut(fs.Arg(0), "/")
	if fs.NArg() != 1 || !isKey || namespace == "" || name == "" {
		return program.Exit(2, errors.New("agent-manifest: give one NAMESPACE/CLUSTER"))
	}
	reader, err := who.client()
	if err != nil {
		return program.Exit(2, fmt.Errorf("agent-manifest: %w", err))
	}
	manifest, err := agentManifest(ctx, reader, client.ObjectKey{Namespace: namespace, Name: name})
	if err != nil {
		return program.Exit(1, fmt.Errorf("agent-manifest: %w", err))
	}
	_, err = stdout.Write(manifest)
	return err
}

// agentManifest reads the manifest of a Cluster. A Secret that only has the right name may be
// anyone's, and what is applied to a cluster controls it.
func agentManifest(ctx context.Context, reader client.Reader, key client.ObjectKey) ([]byte, error) {
	var cluster clusterv1.Cluster
	if err := reader.Get(ctx, key, &cluster); err != nil {
		return nil, fmt.Errorf("reading Cluster: %w", err)
	}
	told := meta.FindStatusCondition(cluster.Status.Conditions, stamp.ManifestCondition)
	switch {
	case told == nil:
		return nil, fmt.Errorf("cluster %s has no manifest: its agent is not to call by itself, or the component registrar does not run (condition FleetImported says which)", key)
	case told.Status != metav1.ConditionTrue:
		return nil, fmt.Errorf("the manifest of Cluster %s is not ready: %s: %s", key, told.Reason, told.Message)
	}
	var secret corev1.Secret
	key.Name = stamp.ManifestSecret(cluster.Name)
	switch err := reader.Get(ctx, key, &secret); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the Secret %s is gone; the registrar looks for it once a minute", key)
	case err != nil:
		return nil, fmt.Errorf("reading Secret: %w", err)
	}
	owners := secret.OwnerReferences
	if secret.Type != stamp.ManifestSecretType || len(owners) != 1 || owners[0].UID != cluster.UID || len(secret.Data[stamp.ManifestKey]) == 0 {
		return nil, fmt.Errorf("the Secret %s is not one that Muster has made for this Cluster; do not apply it", key)
	}
	return secret.Data[stamp.ManifestKey], nil
}
