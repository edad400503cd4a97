package sync

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// put applies the Fleet Cluster. If its template values cannot be resolved, the last good ones stay; if there is too much
// to copy, all copies stay.
func (r *clusterReconciler) put(ctx context.Context, s *scope) error {
	var have client.Object
	if s.fleet != nil {
		have = s.fleet
	}
	if s.unresolved != "" {
		// An apply without the values would remove them. The syncer reads them past the cache only if it has to write.
		s.whole = func() (map[string]any, error) { return r.lastGoodValues(ctx, client.ObjectKeyFromObject(s.fleet)) }
		if s.fleet.Spec.TemplateValues != nil {
			s.values = s.fleet.Spec.TemplateValues.Data
		}
	}
	clientID, err := r.clientID(ctx, s)
	if err != nil {
		return err
	}
	if s.begun, err = begunFor(ctx, r.Client, r.applier.Store, s.cluster.Namespace, useOf(s.cluster)); err != nil {
		return err
	}
	want := s.wants(clientID)
	if s.whole != nil && (have == nil || s.in.Cluster.PatchResource && kube.Differs(want, have)) {
		if err := s.inflate(); err != nil {
			return err
		}
		want = s.wants(clientID)
	}
	written, result, err := r.applier.Apply(ctx, want, have, s.in.Cluster.PatchResource)
	if err != nil {
		return s.explained(err)
	}
	s.fleet, s.relation = written.(*fleetv1.Cluster), stamp.Own
	if result == kube.Created && !s.byAgent {
		observeLatency(s.cluster)
	}
	if result == kube.Retained {
		if err := r.retarget(ctx, s); err != nil {
			return err
		}
	}
	return r.readHome(ctx, s)
}

// explained adds to a refusal of a Fleet Cluster as too large what makes it so.
func (s *scope) explained(err error) error {
	if !kube.IsTooLarge(err) {
		return err
	}
	biggest := ""
	if part, bytes := desired.BiggestPart(s.values); part != "" {
		biggest = fmt.Sprintf(": the biggest part of its template values is %s, %d bytes; name that, or what is in it, in spec.cluster.templateValues.exclude of the FleetAddonConfig", part, bytes)
	}
	return fmt.Errorf("the Fleet Cluster is too large%s; the same content is tried again once an hour: %w", biggest, err)
}

// wants returns the desired Fleet Cluster. A clientID stays when the Cluster turns to the manager,
// whether Muster or Fleet drew it. An apply without it would remove ours, Fleet would draw another,
// and an agent that registers itself would lose its registration. Fleet revokes that registration
// itself when its own agent registers under the same clientID.
func (s *scope) wants(clientID string) *fleetv1.Cluster {
	in := s.in
	in.Cluster.AgentNamespace = s.agentNamespace()
	want := desired.FleetCluster(in, s.cluster, s.class, s.values, s.targets, clientID)
	if !s.byAgent && s.fleet != nil {
		want.Spec.ClientID = s.fleet.Spec.ClientID
	}
	if s.isTurning() {
		want.Spec.KubeConfigSecret = ""
	}
	noted := ""
	if s.fleet != nil {
		noted = s.fleet.Annotations[desired.RetargetAnnotation]
	}
	if noted = desired.Retargeted(noted, s.begun); noted != "" {
		want.Annotations[desired.RetargetAnnotation] = noted
	}
	return want
}

// clientID returns the ID that the agent of a Cluster registers with, if it registers itself. Once
// drawn, by Muster or by Fleet, the ID stays. To Fleet, any caller with this ID and a token of the
// namespace is the cluster's agent, so the ID must be unguessable. A guessable ID stays only if the
// agent has checked in: no other agent is registered under it.
func (r *clusterReconciler) clientID(ctx context.Context, s *scope) (string, error) {
	if !s.byAgent && (s.fleet != nil || !awaitsAgent(s.cluster)) {
		return "", nil
	}
	key, known := types.NamespacedName{Namespace: s.cluster.Namespace, Name: s.pin()}, ""
	if s.fleet != nil {
		key.Name, known = s.fleet.Name, s.fleet.Spec.ClientID
		if len(known) >= stamp.MinClientID || known != "" && !s.fleet.Status.Agent.LastSeen.IsZero() {
			return known, nil
		}
	}
	// The cache may not show the Fleet Cluster yet, or the ID that Fleet has just drawn.
	var live fleetv1.Cluster
	err := r.live.Get(ctx, key, &live)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return "", err
	case (err == nil) != (s.fleet != nil) || live.Spec.ClientID != known:
		return "", apierrors.NewConflict(schema.GroupResource{Group: fleetv1.SchemeGroupVersion.Group, Resource: "clusters"}, key.Name, errors.New("it is not in the cache yet"))
	case !s.byAgent:
		return "", nil
	default:
		return newClientID(), nil
	}
}

// awaitsAgent reports whether the last reconcile of a Cluster waited for its agent. Then a Fleet
// Cluster with a clientID may exist although the cache does not show it.
func awaitsAgent(cluster *clusterv1.Cluster) bool {
	imported := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	return imported != nil && (imported.Reason == addonsv1.WaitingForAgentReason || imported.Reason == addonsv1.RegistrarMissingReason)
}

// newClientID draws 130 random bits.
func newClientID() string { return rand.Text() }

// lastGoodValues reads the template values of a Fleet Cluster past the cache, which holds only their
// hash.
func (r *clusterReconciler) lastGoodValues(ctx context.Context, key types.NamespacedName) (map[string]any, error) {
	var live fleetv1.Cluster
	if err := r.live.Get(ctx, key, &live); err != nil {
		return nil, fmt.Errorf("reading the template values of Fleet Cluster %s: %w", key, err)
	}
	if live.Spec.TemplateValues == nil {
		return nil, nil
	}
	return live.Spec.TemplateValues.Data, nil
}

// withdraw undoes an import. It deletes the Fleet Cluster before it removes the pin, so that an
// interrupted withdrawal resumes.
func (r *clusterReconciler) withdraw(ctx context.Context, s *scope) error {
	if s.has() && s.fleet.DeletionTimestamp.IsZero() {
		if err := r.applier.Delete(ctx, s.fleet); err != nil {
			return err
		}
	}
	if err := r.scopes.rancher.Detach(ctx, client.ObjectKeyFromObject(s.cluster), types.NamespacedName{}); err != nil {
		return err
	}
	return r.patchStamp(ctx, s, stamp.WithoutPin(s.subject))
}

// observeLatency measures the import of a Cluster that waited only for its control plane. A Cluster
// that was selected, unpaused or imported again later would distort the figure.
func observeLatency(cluster *clusterv1.Cluster) {
	if last := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition); last == nil || last.Reason != addonsv1.WaitingForControlPlaneReason {
		return
	}
	if initialized := conditions.Get(cluster, clusterv1.ClusterControlPlaneInitializedCondition); initialized != nil {
		metrics.Imported(time.Since(initialized.LastTransitionTime.Time))
	}
}
