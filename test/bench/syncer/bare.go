package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	bareNamespace = "bench-bare"
	bareManager   = "bare-client"
)

var bareUser = stack.ServiceAccount(bareNamespace, "bare")

// bare is a client that makes the three writes of an import and does nothing else: it
// watches nothing, compares nothing, and what it writes was built beforehand. It uses the
// syncer's libraries, and a ServiceAccount with the syncer's roles.
type bare struct {
	*load.Generator
	writes client.Client
	events kubernetes.Interface
	// workers holds a token for each import that may be under way.
	workers chan struct{}
	// prepared are the writes, by number of the Cluster.
	prepared map[int]*preparedImport
}

type preparedImport struct {
	fleetCluster, conditions *unstructured.Unstructured
	event                    *eventsv1.Event
}

func newBare(ctx context.Context, s *session) (*bare, error) {
	if err := s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: %[1]s, name: bare}
`, bareNamespace)); err != nil {
		return nil, err
	}
	// The last one, because what it writes carries the syncer's own keys.
	for _, role := range []string{"muster-syncer-fleet", "muster-syncer-cluster-api", "muster-syncer-events", "muster-bookkeeper"} {
		if err := s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bench-%[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[2]s}
subjects: [{kind: ServiceAccount, namespace: %[1]s, name: bare}]
`, bareNamespace, role)); err != nil {
			return nil, err
		}
	}
	token, err := s.token(ctx, bareNamespace, "bare")
	if err != nil {
		return nil, err
	}
	admin, err := s.env.RESTConfig()
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = token
	b := &bare{Generator: s.generator(), workers: make(chan struct{}, s.workers), prepared: map[int]*preparedImport{}}
	b.Prefix, b.Labels = bareNamespace, map[string]string{armLabel: armBare}
	if b.writes, err = fixture.ClientOf(config); err != nil {
		return nil, err
	}
	b.events, err = kubernetes.NewForConfig(config)
	return b, err
}

// create makes the Clusters from one number up to another, and builds their imports.
func (b *bare) create(ctx context.Context, from, to int) error {
	if err := b.Create(ctx, from, to, load.ClusterFile); err != nil {
		return err
	}
	for i := from; i < to; i++ {
		cluster := &clusterv1.Cluster{}
		if err := b.Client.Get(ctx, b.Key(i), cluster); err != nil {
			return err
		}
		prepared, err := b.prepare(i, cluster)
		if err != nil {
			return err
		}
		b.prepared[i] = prepared
	}
	return nil
}

func (b *bare) prepare(i int, cluster *clusterv1.Cluster) (*preparedImport, error) {
	// As the stamp has it: it is not stamped, because the syncer is to leave it alone.
	cluster.Annotations[stamp.ClusterNameAnnotation] = cluster.Name
	controlPlane, err := b.Object(load.ControlPlaneFile, i)
	if err != nil {
		return nil, err
	}
	infrastructure, err := b.Object(load.InfrastructureFile, i)
	if err != nil {
		return nil, err
	}
	values, err := desired.Values(cluster, controlPlane.Object, infrastructure.Object, settings.DefaultExclude())
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(desired.FleetCluster(settings.Default(), cluster, nil, values, desired.Targets{}, ""))
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	delete(fields["metadata"].(map[string]any), "creationTimestamp")
	now := time.Now().UTC()
	condition := func(kind, status, reason, message string) any {
		return map[string]any{"type": kind, "status": status, "reason": reason, "message": message,
			"lastTransitionTime": now.Format(time.RFC3339)}
	}
	message := fmt.Sprintf("in Fleet as Cluster %q", cluster.Name)
	return &preparedImport{
		fleetCluster: &unstructured.Unstructured{Object: fields},
		conditions: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": clusterv1.GroupVersion.String(), "kind": clusterv1.ClusterKind,
			"metadata": map[string]any{"namespace": cluster.Namespace, "name": cluster.Name},
			// Types that are not the syncer's: it would take those off a Cluster that is not selected.
			"status": map[string]any{"conditions": []any{
				condition("BareImported", "True", "Imported", message),
				condition("BareBundlesReady", "Unknown", "WaitingForFleet", "Fleet has not reported on the Cluster's bundles yet"),
			}},
		}},
		event: &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + ".import"},
			EventTime:  metav1.NewMicroTime(now), Type: corev1.EventTypeNormal, Reason: "Imported", Action: "Import", Note: message,
			ReportingController: bareManager, ReportingInstance: bareManager + "-0",
			Regarding: corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind,
				Namespace: cluster.Namespace, Name: cluster.Name, UID: cluster.UID},
		},
	}, nil
}

// importOne makes the three writes, one after the other, as soon as a worker is free.
func (b *bare) importOne(ctx context.Context, i int) error {
	b.workers <- struct{}{}
	defer func() { <-b.workers }()
	prepared := b.prepared[i]
	if err := b.writes.Apply(ctx, client.ApplyConfigurationFromUnstructured(prepared.fleetCluster),
		client.FieldOwner(bareManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying a Fleet Cluster: %w", err)
	}
	if err := b.writes.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(prepared.conditions),
		client.FieldOwner(bareManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying conditions: %w", err)
	}
	if _, err := b.events.EventsV1().Events(prepared.event.Namespace).Create(ctx, prepared.event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating an event: %w", err)
	}
	return nil
}

// importAll imports Clusters as fast as its workers can, and returns how long that took.
func (b *bare) importAll(ctx context.Context, from, to int) (time.Duration, error) {
	group, ctx := errgroup.WithContext(ctx)
	begin := time.Now()
	for i := from; i < to; i++ {
		group.Go(func() error { return b.importOne(ctx, i) })
	}
	err := group.Wait()
	return time.Since(begin), err
}
