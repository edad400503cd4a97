package registrar

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/stamp"
)

// register creates the ClusterRegistration, as the agent would. It has no label of a
// token, whose account Fleet would let read the credential.
func (r *reconciler) register(ctx context.Context, v *visit) error {
	registration := &fleetv1.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.fleet.Namespace,
			Name:      v.registrationName(),
			Labels:    map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Cluster", Name: v.fleet.Name, UID: v.fleet.UID,
			}},
		},
		Spec: fleetv1.ClusterRegistrationSpec{ClientID: v.fleet.Spec.ClientID, ClientRandom: rand.Text()},
	}
	err := r.Create(ctx, registration, client.FieldOwner(FieldManager))
	metrics.Applied("ClusterRegistration", "created", err)
	if err != nil {
		return fmt.Errorf("creating ClusterRegistration: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Registered", "fleetCluster", client.ObjectKeyFromObject(v.fleet).String(), "registration", registration.Name)
	return nil
}

// inspect reads the Secret by a patch that changes nothing: to read Secrets, the registrar
// would have to be allowed to read all of them, while a policy says which it may patch.
func (r *reconciler) inspect(ctx context.Context, v *visit) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: v.cluster.Namespace, Name: stamp.ManifestSecret(v.cluster.Name)}}
	err := r.Patch(ctx, secret, client.RawPatch(types.MergePatchType, []byte("{}")), client.DryRunAll, client.FieldOwner(FieldManager))
	switch {
	case err == nil:
		v.secret, v.whose = secret, whoseIs(secret, v.cluster)
	case apierrors.IsNotFound(err):
		v.secret, v.whose = nil, nobodys
	case apierrors.IsForbidden(err):
		ctrl.LoggerFrom(ctx).Info("Left alone a Secret that is not Muster's", "secret", client.ObjectKeyFromObject(secret).String(), "refused", err.Error())
		v.secret, v.whose = nil, somebodys
	default:
		return fmt.Errorf("reading the Secret with the manifest: %w", err)
	}
	return nil
}

// rehearse has the API server judge the Secret as it will be written, but for the credential.
func (r *reconciler) rehearse(ctx context.Context, v *visit) error {
	want, err := manifestSecret(v)
	if err != nil {
		return err
	}
	if err := r.Create(ctx, want, client.DryRunAll, client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("the Secret with the manifest could not be written, so the cluster is not registered yet: %w", err)
	}
	return nil
}

// collect reads the credential that Fleet has made.
func (r *reconciler) collect(ctx context.Context, v *visit) error {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: r.RegistrationNamespace, Name: credentialSecret(v.current())}
	if err := r.live.Get(ctx, key, &secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Fleet's credential: %w", err)
	}
	v.credential = credentialOf(&secret)
	return nil
}

// handOut writes the Secret with the manifest.
func (r *reconciler) handOut(ctx context.Context, v *visit) error {
	want, err := manifestSecret(v)
	if err != nil {
		return err
	}
	if v.secret == nil {
		// Who has made one meanwhile is not written over.
		err = r.Create(ctx, want, client.FieldOwner(FieldManager))
		metrics.Applied("Secret", "created", err)
	} else {
		written := v.secret.DeepCopy() // Labels and annotations of others stay.
		written.Labels = stamp.Merge(written.Labels, want.Labels)
		written.Annotations = stamp.Merge(written.Annotations, want.Annotations)
		written.OwnerReferences, written.Data = want.OwnerReferences, want.Data
		err = r.Patch(ctx, written, client.MergeFromWithOptions(v.secret, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldManager))
		metrics.Applied("Secret", "updated", err)
	}
	if err != nil {
		return fmt.Errorf("writing the Secret with the manifest: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Wrote the manifest", "secret", client.ObjectKeyFromObject(want).String())
	return nil
}

// withdraw deletes the Secret with the manifest.
func (r *reconciler) withdraw(ctx context.Context, v *visit) error {
	err := r.Delete(ctx, v.secret, client.Preconditions{UID: ptr.To(v.secret.UID), ResourceVersion: ptr.To(v.secret.ResourceVersion)})
	err = client.IgnoreNotFound(err)
	metrics.Applied("Secret", "deleted", err)
	if err != nil {
		return fmt.Errorf("deleting the Secret with the manifest: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted the manifest", "secret", client.ObjectKeyFromObject(v.secret).String())
	return nil
}

// revoke deletes registrations that have been replaced. Fleet deletes their accounts.
func (r *reconciler) revoke(ctx context.Context, v *visit) error {
	for _, registration := range v.replaced() {
		err := client.IgnoreNotFound(r.Delete(ctx, &registration, client.Preconditions{UID: ptr.To(registration.UID)}))
		metrics.Applied("ClusterRegistration", "deleted", err)
		if err != nil {
			return fmt.Errorf("deleting ClusterRegistration: %w", err)
		}
		ctrl.LoggerFrom(ctx).Info("Revoked", "registration", client.ObjectKeyFromObject(&registration).String())
	}
	return nil
}

// tell writes the condition if it has news, and an event when its reason changes.
func (r *reconciler) tell(ctx context.Context, cluster *clusterv1.Cluster, result verdict) error {
	before := meta.FindStatusCondition(cluster.Status.Conditions, stamp.ManifestCondition)
	if result.keep || before == nil && result.reason == "" {
		return nil
	}
	conditions := []metav1.Condition{}
	if result.reason != "" {
		condition := metav1.Condition{
			Type: stamp.ManifestCondition, Status: result.status, Reason: result.reason, Message: result.message,
			LastTransitionTime: metav1.NewTime(r.now().Truncate(time.Second)),
		}
		if before != nil && before.Status == condition.Status {
			condition.LastTransitionTime = before.LastTransitionTime
			if before.Reason == condition.Reason && before.Message == condition.Message {
				return nil
			}
		}
		conditions = append(conditions, condition)
	}
	configuration, err := json.Marshal(map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(), "kind": clusterv1.ClusterKind,
		"metadata": map[string]any{"namespace": cluster.Namespace, "name": cluster.Name, "uid": cluster.UID},
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return err
	}
	target := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
	if err := r.Status().Patch(ctx, target, client.RawPatch(types.ApplyPatchType, configuration),
		client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing condition %s: %w", stamp.ManifestCondition, err))
	}
	r.echoes.Wrote(target)
	if result.reason != "" && result.reason != reasonWaiting && (before == nil || before.Reason != result.reason) {
		eventType := corev1.EventTypeWarning
		if result.reason == reasonReady {
			eventType = corev1.EventTypeNormal
		}
		r.recorder.Eventf(cluster, nil, eventType, result.reason, "Register", "%s", result.message)
	}
	return nil
}
