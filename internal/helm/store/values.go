package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
)

// Outside its own namespace the program may only create and update Secrets: the API server answers a get, a patch
// and a delete with the contents of a Secret, before it evaluates a policy, or without one. So it writes its
// Secrets whole, without reading them. It empties unused Secrets, and the garbage collector deletes them.

// PutValues writes an object with values or credentials, a ConfigMap or a Secret. It may not read
// Secrets, so it compares a Secret with its last write.
func (s *Store) PutValues(ctx context.Context, want client.Object) error {
	if secret, ok := want.(*corev1.Secret); ok {
		return s.putSecret(ctx, secret)
	}
	return s.putConfigMap(ctx, want.(*corev1.ConfigMap))
}

func (s *Store) putConfigMap(ctx context.Context, want *corev1.ConfigMap) error {
	have, err := read(ctx, s, client.ObjectKeyFromObject(want), &corev1.ConfigMap{})
	if err != nil {
		return err
	}
	if have == nil {
		return s.CreateFor(ctx, want)
	}
	if proxy, _ := plan.ProxyOf(want); !IsFor(have, proxy) {
		return &TakenError{want}
	}
	if kube.Contains(have.Annotations, want.Annotations) && reflect.DeepEqual(have.OwnerReferences, want.OwnerReferences) && dataDigest(want) == dataDigest(have) {
		return nil
	}
	// The cache does not know the existing keys, and a merge would leave them.
	patch := []operation{{Op: "add", Path: "/data", Value: want.Data}, {Op: "add", Path: "/metadata/ownerReferences", Value: want.OwnerReferences}}
	if have.BinaryData != nil {
		patch = append(patch, operation{Op: "remove", Path: "/binaryData"})
	}
	annotations := maps.Clone(have.Annotations)
	maps.Copy(annotations, want.Annotations)
	return s.change(ctx, have, want, sameObject, append(patch, mapChanges("/metadata/annotations", have.Annotations, annotations)...))
}

func (s *Store) putSecret(ctx context.Context, want *corev1.Secret) error {
	key, digest := client.ObjectKeyFromObject(want), plan.Digest([]byte(plan.JSON(want)))
	if last, found := s.secrets.Get(key); found && last == digest {
		return nil
	}
	err := s.Update(ctx, want.DeepCopy(), client.FieldOwner(FieldManager))
	if apierrors.IsNotFound(err) {
		err = s.Create(ctx, want.DeepCopy(), client.FieldOwner(FieldManager))
	}
	switch {
	case isOfOthers(err):
		return &TakenError{want}
	case err != nil:
		return fmt.Errorf("changing %s: %w", describe(want), err)
	}
	s.secrets.Set(key, digest, TrustInterval)
	return nil
}

// HasSecret reports whether a Secret exists, without reading it: the API server answers a write of another version with
// Conflict, and NotFound if there is no Secret. The answer holds for TrustInterval.
func (s *Store) HasSecret(ctx context.Context, key plan.Key) (bool, error) {
	if _, found := s.secrets.Get(key); found {
		return true, nil
	}
	const never = "9223372036854775807" // etcd never reaches this version.
	err := s.Update(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, ResourceVersion: never}})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsConflict(err):
		s.secrets.Set(key, "", TrustInterval)
		return true, nil
	}
	return false, fmt.Errorf("looking for Secret %s: %w", key, err)
}

// HasValues reports whether an object with values exists: a ConfigMap, or a Secret, as HasSecret does. It reads a ConfigMap past
// the cache if the cache lacks it.
func (s *Store) HasValues(ctx context.Context, key plan.Key, isSecret bool) (bool, error) {
	if isSecret {
		return s.HasSecret(ctx, key)
	}
	have, err := read(ctx, s, key, &corev1.ConfigMap{})
	if have == nil && err == nil {
		err = s.Live.Get(ctx, key, &corev1.ConfigMap{})
	}
	return err == nil, client.IgnoreNotFound(err)
}

// IsIntact reports whether a ConfigMap with values is unchanged, by the cache. The contents of Secrets are not cached.
func (s *Store) IsIntact(ctx context.Context, key plan.Key, isSecret bool, digest string) bool {
	if isSecret {
		return true
	}
	have := &corev1.ConfigMap{}
	return s.Get(ctx, key, have, client.UnsafeDisableDeepCopy) == nil && dataDigest(have) == digest
}

// ObjectDigest returns the digest of a ConfigMap, as IsIntact compares it.
func ObjectDigest(object client.Object) string {
	if configMap, ok := object.(*corev1.ConfigMap); ok {
		return dataDigest(configMap)
	}
	return ""
}

// RemoveValues removes an object with values: a ConfigMap, and a Secret if there may be one. The program may not read
// Secrets to find out.
func (s *Store) RemoveValues(ctx context.Context, proxy, key plan.Key, isSecret bool) error {
	have, err := read(ctx, s, key, &corev1.ConfigMap{})
	if err == nil && have != nil && IsFor(have, proxy) {
		err = s.Remove(ctx, have)
	}
	if err != nil || !isSecret {
		return err
	}
	return s.RemoveSecret(ctx, proxy, key, plan.ValuesSecretType)
}

// RemoveAllValues removes both objects with the values of a Fleet Cluster.
func (s *Store) RemoveAllValues(ctx context.Context, proxy plan.Key, namespace, fleetCluster string, isSecret bool) error {
	var errs []error
	for revision := range 2 {
		key := plan.Key{Namespace: namespace, Name: plan.ValuesName(proxy, namespace, fleetCluster, revision)}
		errs = append(errs, s.RemoveValues(ctx, proxy, key, isSecret))
	}
	return errors.Join(errs...)
}

// RemoveSecret empties a Secret of ours, and leaves it to the garbage collector: its only owner never existed. It
// does not touch anyone else's Secret. It cannot empty an immutable Secret: an event on the HelmChartProxy
// says so, and the Secret goes with its owner.
func (s *Store) RemoveSecret(ctx context.Context, proxy, key plan.Key, of corev1.SecretType) error {
	s.secrets.Delete(key)
	secret := &corev1.Secret{ObjectMeta: plan.Meta(proxy, key.Namespace, key.Name), Type: of}
	sum := sha256.Sum256([]byte(key.String())) // It is the same each time, so that a Secret is emptied once.
	never := types.UID(fmt.Sprintf("%x-%x-0000-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:14]))
	secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: key.Name, UID: never}}
	err := s.Update(ctx, secret, client.FieldOwner(FieldManager))
	switch {
	case apierrors.IsNotFound(err), isOfOthers(err):
		return nil
	case apierrors.IsInvalid(err): // Muster's own fields are valid.
		ctrl.LoggerFrom(ctx).Info("Left a Secret that cannot be emptied", "object", describe(secret), "because", err.Error())
		s.warn(ctx, proxy, "SecretNotEmptied", "Delete", "Secret %s is immutable and cannot be emptied: it stays until its owner is deleted, unless you delete it", key)
		return nil
	case err != nil:
		return fmt.Errorf("emptying Secret %s: %w", key, err)
	}
	ctrl.LoggerFrom(ctx).Info("Emptied, for the garbage collector", "object", describe(secret))
	return nil
}
