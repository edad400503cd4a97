package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const bareClient = "bare-client"

var bareUser = stack.ServiceAccount("default", bareClient)

// bare is a client that makes the three writes of an import and does nothing else: it watches nothing, compares
// nothing, and sends prepared writes. It uses the syncer's libraries, and a ServiceAccount with the syncer's roles.
type bare struct {
	*generator
	session *session
	writes  client.Client
	events  kubernetes.Interface
	// slots holds a token for each import that may be under way.
	slots chan struct{}
	// prepared are the writes, by number of the Cluster.
	prepared map[int]*preparedImport
}

type preparedImport struct {
	fleetCluster, conditions *unstructured.Unstructured
	event                    *eventsv1.Event
}

func newBare(ctx context.Context, s *session) (*bare, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: bareClient}}
	if err := s.admin.Create(ctx, account); err != nil {
		return nil, err
	}
	// The last role permits the syncer's bookkeeping keys.
	for _, role := range []string{"muster-syncer-fleet", "muster-syncer-cluster-api", "muster-syncer-events", "muster-bookkeeper"} {
		if err := s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bench-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, namespace: default, name: %[2]s}]
`, role, bareClient)); err != nil {
			return nil, err
		}
	}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](4 * 60 * 60)}}
	if err := s.admin.SubResource("token").Create(ctx, account, token); err != nil {
		return nil, err
	}
	admin, err := s.env.RESTConfig()
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = token.Status.Token
	b := &bare{session: s, generator: s.clusters(bareClient, namespaces, classes), slots: make(chan struct{}, workers), prepared: map[int]*preparedImport{}}
	b.labels = map[string]string{armLabel: armBare}
	if b.writes, err = fixture.ClientOf(config); err != nil {
		return nil, err
	}
	if b.events, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	return b, b.generator.prepare(ctx)
}

// turn creates Clusters for the bare client and calls work while the syncer is stopped and another process
// keeps caches.
func (b *bare) turn(ctx context.Context, count int, work func(from, to int) error) error {
	from, to := b.take(count)
	if err := b.create(ctx, from, to, clusterFile); err != nil {
		return err
	}
	for i := from; i < to; i++ {
		if err := b.prepareImport(ctx, i); err != nil {
			return err
		}
	}
	if err := b.session.env.Stop(ctx, syncer); err != nil {
		return err
	}
	caches, err := startChild(ctx, "caches", b.session.env.Kubeconfig)
	if err != nil {
		return err
	}
	err = work(from, to)
	if _, ended := caches.end(); err != nil || ended != nil {
		return errors.Join(err, ended)
	}
	_, err = b.session.restartSyncer(ctx, 1)
	return err
}

func (b *bare) prepareImport(ctx context.Context, i int) error {
	cluster := &clusterv1.Cluster{}
	if err := b.admin.Get(ctx, b.key(i), cluster); err != nil {
		return err
	}
	// The stamp would contain the same name. The Cluster is not stamped, because the syncer must leave it alone.
	cluster.Annotations[stamp.ClusterNameAnnotation] = cluster.Name
	values, err := desired.Values(cluster, b.object(controlPlaneFile, i).Object, b.object(infrastructureFile, i).Object, settings.DefaultExclude())
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(desired.FleetCluster(settings.Default(), cluster, nil, values, desired.Targets{}, ""))
	if err != nil {
		return err
	}
	delete(fields, "status")
	delete(fields["metadata"].(map[string]any), "creationTimestamp")
	now := time.Now().UTC()
	condition := func(kind, status, reason, message string) any {
		return map[string]any{"type": kind, "status": status, "reason": reason, "message": message,
			"lastTransitionTime": now.Format(time.RFC3339)}
	}
	b.prepared[i] = &preparedImport{
		fleetCluster: &unstructured.Unstructured{Object: fields},
		conditions: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": clusterv1.GroupVersion.String(), "kind": clusterv1.ClusterKind,
			"metadata": map[string]any{"namespace": cluster.Namespace, "name": cluster.Name},
			// The syncer does not use these types: it would remove its own from a Cluster that is not selected.
			"status": map[string]any{"conditions": []any{
				condition("BareImported", "True", "Imported", ""),
				condition("BareBundlesReady", "Unknown", "AgentNotSeen", "Fleet's agent has not reported from the cluster yet; the conditions and events of the Fleet Cluster say why, if Fleet could not install it"),
			}},
		}},
		event: &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + ".import"},
			EventTime:  metav1.NewMicroTime(now), Type: corev1.EventTypeNormal, Reason: "Imported", Action: "Import", Note: "the Cluster is in Fleet",
			ReportingController: bareClient, ReportingInstance: bareClient + "-0",
			Regarding: corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind,
				Namespace: cluster.Namespace, Name: cluster.Name, UID: cluster.UID},
		},
	}
	return nil
}

// importOne makes the three writes, one after the other, as soon as there is a slot.
func (b *bare) importOne(ctx context.Context, i int) error {
	b.slots <- struct{}{}
	defer func() { <-b.slots }()
	prepared := b.prepared[i]
	if err := b.writes.Apply(ctx, client.ApplyConfigurationFromUnstructured(prepared.fleetCluster),
		client.FieldOwner(bareClient), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying a Fleet Cluster: %w", err)
	}
	if err := b.writes.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(prepared.conditions),
		client.FieldOwner(bareClient), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying conditions: %w", err)
	}
	if _, err := b.events.EventsV1().Events(prepared.event.Namespace).Create(ctx, prepared.event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating an event: %w", err)
	}
	return nil
}

// importAtOnce imports Clusters as fast as it can, and returns how long that took.
func (b *bare) importAtOnce(ctx context.Context, count int) (elapsed time.Duration, err error) {
	err = b.turn(ctx, count, func(from, to int) error {
		group, ctx := errgroup.WithContext(ctx)
		begin := time.Now()
		for i := from; i < to; i++ {
			group.Go(func() error { return b.importOne(ctx, i) })
		}
		err := group.Wait()
		elapsed = time.Since(begin)
		return err
	})
	return elapsed, err
}

// importSteadily initializes control planes at a rate, and imports each Cluster at once.
func (b *bare) importSteadily(ctx context.Context, count int, rate float64) (result []time.Duration, err error) {
	err = b.turn(ctx, count, func(from, to int) error {
		result, err = b.session.importSteadily(ctx, b.generator, from, to, rate, b)
		return err
	})
	return result, err
}
