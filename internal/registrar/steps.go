package registrar

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/stamp"
)

// errStale means that the cache shows an earlier state of a Fleet Cluster.
var errStale = errors.New("the Fleet Cluster has changed")

// register creates the ClusterRegistration, as the agent would, but without a token's label: Fleet would let the
// token's account read the credential. It first reads the Fleet Cluster past the cache. If the Fleet Cluster were
// gone, Fleet would create another one for the registration, without an owner and with a working account.
func (r *reconciler) register(ctx context.Context, s *scope) error {
	var live fleetv1.Cluster
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(s.fleet), &live); {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading Fleet Cluster: %w", err)
	case err != nil || live.UID != s.fleet.UID || !live.DeletionTimestamp.IsZero() || live.Spec.ClientID != s.fleet.Spec.ClientID:
		return apierrors.NewConflict(fleetv1.SchemeGroupVersion.WithResource("clusters").GroupResource(), s.fleet.Name, errStale)
	}
	registration := &fleetv1.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.fleet.Namespace,
			Name:      s.registrationName(),
			Labels:    map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Cluster", Name: s.fleet.Name, UID: s.fleet.UID,
			}},
		},
		Spec: fleetv1.ClusterRegistrationSpec{ClientID: s.fleet.Spec.ClientID, ClientRandom: rand.Text()},
	}
	err := r.Create(ctx, registration, client.FieldOwner(FieldManager))
	metrics.Applied("ClusterRegistration", "created", err)
	if err != nil {
		return fmt.Errorf("creating ClusterRegistration: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Registered", "fleetCluster", client.ObjectKeyFromObject(s.fleet).String(), "registration", registration.Name)
	return nil
}

// write creates or overwrites the Secret with the manifest, and reports whether it created it. It
// updates without a resourceVersion, because the registrar may not read Secrets; an update without a
// change writes nothing to the API server's store. The API server refuses to change a Secret of
// another type, and the policy muster-registrar-secrets one of another Cluster.
func (r *reconciler) write(ctx context.Context, want *corev1.Secret, options ...client.UpdateOption) (created bool, err error) {
	update := client.UpdateOptions{FieldManager: FieldManager}
	update.ApplyOptions(options)
	err = r.Update(ctx, want.DeepCopy(), &update)
	if !apierrors.IsNotFound(err) {
		return false, err
	}
	return true, r.Create(ctx, want, &client.CreateOptions{FieldManager: FieldManager, DryRun: update.DryRun})
}

// dryRun tests whether the API server would accept the Secret; only the credential is still missing.
func (r *reconciler) dryRun(ctx context.Context, s *scope) error {
	want, err := manifestSecret(s)
	if err != nil {
		return err
	}
	_, err = r.write(ctx, want, client.DryRunAll)
	if s.refused = s.refusal(err); s.refused != nil || err == nil {
		return nil
	}
	return fmt.Errorf("the Secret with the manifest could not be written, so the cluster is not registered yet: %w", err)
}

// collect reads the credential that Fleet has made.
func (r *reconciler) collect(ctx context.Context, s *scope) error {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: r.RegistrationNamespace, Name: credentialSecret(s.current())}
	if err := r.live.Get(ctx, key, &secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Fleet's credential: %w", err)
	}
	s.credential = credentialOf(&secret)
	return nil
}

// note writes the record of the credential, before it is issued, and tells that a rotation has cut an agent off.
func (r *reconciler) note(ctx context.Context, s *scope) error {
	isCutOff := s.isRotated() && !s.fleet.Status.Agent.LastSeen.IsZero() // The record ends a rotation.
	err := r.save(ctx, s, s.record())
	if err == nil && isCutOff {
		r.recorder.Eventf(s.cluster, nil, corev1.EventTypeWarning, "CredentialRotated", "Register",
			"Fleet refuses the earlier credential: apply the new manifest to the cluster, and restart the agent")
	}
	return err
}

// issue writes the Secret with the manifest.
func (r *reconciler) issue(ctx context.Context, s *scope) error {
	want, err := manifestSecret(s)
	if err != nil {
		return err
	}
	created, err := r.write(ctx, want)
	if s.refused = s.refusal(err); s.refused != nil {
		return nil
	}
	if result := map[bool]string{true: "created", false: "updated"}[created]; created || s.taken[note] || err != nil {
		metrics.Applied("Secret", result, err)
	}
	if err != nil {
		return fmt.Errorf("writing the Secret with the manifest: %w", err)
	}
	if created || s.taken[note] {
		ctrl.LoggerFrom(ctx).Info("Wrote the manifest", "secret", client.ObjectKeyFromObject(want).String())
	}
	return nil
}

// withdraw empties the Secret, whose credential is revoked. The registrar may not delete tenants'
// Secrets, because the answer to a deletion can contain the deleted object.
func (r *reconciler) withdraw(ctx context.Context, s *scope) error {
	empty := emptySecret(s.cluster)
	err := r.Update(ctx, empty, client.FieldOwner(FieldManager))
	if s.refusal(err) == nil && client.IgnoreNotFound(err) != nil {
		metrics.Applied("Secret", "updated", err)
		return fmt.Errorf("emptying the Secret with the manifest: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Emptied the manifest", "secret", client.ObjectKeyFromObject(empty).String())
	return r.save(ctx, s, record{rotation: s.recorded.rotation})
}

// mostRevoked is how many registrations one reconcile deletes. Usually there are one or two, but a
// tenant can make thousands; each deletion enqueues the Cluster again.
const mostRevoked = 16

// revoke deletes replaced registrations. Fleet then deletes their accounts.
func (r *reconciler) revoke(ctx context.Context, s *scope) error {
	replaced := s.replaced()
	for _, registration := range replaced[:min(len(replaced), mostRevoked)] {
		err := client.IgnoreNotFound(r.Delete(ctx, &registration, client.Preconditions{UID: ptr.To(registration.UID)}))
		metrics.Applied("ClusterRegistration", "deleted", err)
		if err != nil {
			return fmt.Errorf("deleting ClusterRegistration: %w", err)
		}
		ctrl.LoggerFrom(ctx).Info("Revoked", "registration", client.ObjectKeyFromObject(&registration).String())
	}
	return nil
}

// report writes the condition if it has changed, and an event if its reason has.
func (r *reconciler) report(ctx context.Context, cluster *clusterv1.Cluster, result outcome) error {
	if result.unchanged {
		return nil
	}
	var want []metav1.Condition
	if result.reason != "" {
		want = append(want, metav1.Condition{Type: addonsv1.FleetAgentManifestReadyCondition, Status: result.status, Reason: result.reason, Message: result.message})
	}
	have := cluster.Status.Conditions
	conditions, changed := kube.Merge(have, []string{addonsv1.FleetAgentManifestReadyCondition}, cluster.Generation, r.now(), want...)
	if changed == nil {
		return nil
	}
	if _, err := kube.ApplyConditions(ctx, r, FieldManager, cluster, conditions); err != nil {
		return client.IgnoreNotFound(err)
	}
	if result.reason != "" && result.reason != addonsv1.WaitingForFleetReason && kube.IsTurned(have, conditions[0]) {
		eventType := corev1.EventTypeWarning
		if result.reason == addonsv1.ManifestReadyReason {
			eventType = corev1.EventTypeNormal
		}
		r.recorder.Eventf(cluster, nil, eventType, result.reason, "Register", "%s", message.Short(result.message, message.Note))
	}
	return nil
}
