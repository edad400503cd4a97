package registrar

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// recordType is the type of the Secrets that hold records.
	recordType   = stamp.Domain + "/agent-record"
	recordPrefix = "muster-agent-"

	recordNamespace        = "namespace"
	recordName             = "name"
	recordUID              = "uid"
	recordRegistration     = "registration"
	recordRegistrationName = "registrationName"
	recordRotation         = "rotation"
)

// record is the registrar's memory of a Cluster. It is stored in a Secret in the namespace where Fleet
// leaves credentials, because the registrar may not read the Secret that it issues: RBAC cannot allow
// it to read one Secret of a tenant without the others.
type record struct {
	// token is the issued credential; registration and registrationName identify the
	// ClusterRegistration that it comes from.
	token, registrationName string
	registration            types.UID
	// rotation is the digest of the stamp.RotateAnnotation that the registrar followed last.
	rotation string
	// secret is the cached Secret; nil if there is none.
	secret *corev1.Secret
}

// digest returns a SHA-256 digest, in hexadecimal; empty for an empty value.
func digest(value string) string {
	if value == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

// recordKey returns the key of the Secret that holds a Cluster's record.
func (r *reconciler) recordKey(cluster types.NamespacedName) client.ObjectKey {
	return client.ObjectKey{Namespace: r.RegistrationNamespace, Name: recordPrefix + digest(cluster.String())[:digestLength]}
}

// clusterOf returns the Cluster to which a record belongs.
func clusterOf(secret *corev1.Secret) types.NamespacedName {
	return types.NamespacedName{Namespace: string(secret.Data[recordNamespace]), Name: string(secret.Data[recordName])}
}

// recordOf reads the record of a Cluster. It deletes a record with another UID: that Cluster is
// gone.
func (r *reconciler) recordOf(ctx context.Context, cluster types.NamespacedName, uid types.UID) (record, error) {
	secret := &corev1.Secret{}
	if err := r.Get(ctx, r.recordKey(cluster), secret); err != nil {
		return record{}, client.IgnoreNotFound(err)
	}
	if types.UID(secret.Data[recordUID]) != uid {
		return record{}, client.IgnoreNotFound(r.Delete(ctx, secret, client.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}))
	}
	return record{
		token: string(secret.Data[tokenKey]), rotation: string(secret.Data[recordRotation]), secret: secret,
		registration: types.UID(secret.Data[recordRegistration]), registrationName: string(secret.Data[recordRegistrationName]),
	}, nil
}

// save writes a Cluster's record. It fails if the cached record is outdated.
func (r *reconciler) save(ctx context.Context, s *scope, recorded record) error {
	key := r.recordKey(client.ObjectKeyFromObject(s.cluster))
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}},
		Type:       recordType,
		Data: map[string][]byte{
			recordNamespace: []byte(s.cluster.Namespace), recordName: []byte(s.cluster.Name), recordUID: []byte(s.cluster.UID),
			tokenKey: []byte(recorded.token), recordRotation: []byte(recorded.rotation),
			recordRegistration: []byte(recorded.registration), recordRegistrationName: []byte(recorded.registrationName),
		},
	}
	var err error
	if s.recorded.secret == nil {
		err = r.Create(ctx, secret, client.FieldOwner(FieldManager))
	} else {
		secret.ResourceVersion = s.recorded.secret.ResourceVersion
		err = r.Update(ctx, secret, client.FieldOwner(FieldManager))
	}
	if apierrors.IsAlreadyExists(err) && r.isForeign(ctx, key) {
		err = fmt.Errorf("Secret %s has the name that Muster needs for a record, but is not Muster's; delete it", key) //nolint:staticcheck // Secret is the name of a kind.
	}
	if err != nil {
		return fmt.Errorf("recording the issued credential: %w", err)
	}
	recorded.secret = secret
	s.recorded = recorded
	return nil
}

// isForeign reports whether a Secret that is not a record has a record's name. The cache does not show such
// Secrets.
func (r *reconciler) isForeign(ctx context.Context, key client.ObjectKey) bool {
	var secret corev1.Secret
	return r.live.Get(ctx, key, &secret) == nil && secret.Type != recordType
}

// Parts of the messages of the policy muster-registrar-secrets.
const (
	refusesOthers          = "muster-registrar may touch only Secrets"
	refusesEarlierClusters = "muster-registrar may not change whose a Secret is"
)

// refusal returns the outcome if an error says that the Secret's name is taken; nil for any other
// error, such as a quota, a role or another policy.
func (s *scope) refusal(err error) *outcome {
	var result outcome
	name, wait := stamp.ManifestSecret(s.cluster.Name), checkInterval
	if s.now.Sub(s.cluster.CreationTimestamp.Time) < checkInterval { // The garbage collector is about to delete it.
		wait = pollInterval
	}
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusesEarlierClusters):
		result = waiting(addonsv1.SecretConflictReason, fmt.Sprintf("Secret %q still belongs to an earlier Cluster of this name; Muster recreates it once the garbage collector has deleted it", name), wait)
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusesOthers), apierrors.IsInvalid(err) && isOfType(err):
		result = waiting(addonsv1.SecretConflictReason, fmt.Sprintf("Secret %q is not Muster's, and Muster leaves it unchanged; delete or rename it", name), checkInterval)
	default:
		return nil
	}
	return &result
}

// isOfType reports whether the API server rejects the type, which is immutable in a Secret.
func isOfType(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "type"
	})
}
