package store

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// digestKeyName is the Secret with the key for digests, in the program's own namespace.
	digestKeyName                   = "muster-helm-digest-key"
	digestKeyType corev1.SecretType = stamp.Domain + "/digest-key"
)

// keyed makes digests with a key that only the program has.
type keyed struct {
	client client.Client
	live   client.Reader
	// namespace is the program's own.
	namespace string

	mu  sync.Mutex
	key []byte
}

// Digest returns the digest of values, with a key: people who may not read Secrets read annotations, and
// could guess a short password from a plain digest.
func (k *keyed) Digest(ctx context.Context, values any) (string, error) {
	key, err := k.load(ctx)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(values)
	if err != nil {
		return "", err
	}
	digest := hmac.New(sha256.New, key)
	digest.Write(data)
	return hex.EncodeToString(digest.Sum(nil)[:16]), nil
}

// load reads the key of digests, or makes one. Without the key, all values count as changed once.
func (k *keyed) load(ctx context.Context) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return k.key, nil
	}
	secret := &corev1.Secret{}
	err := k.live.Get(ctx, client.ObjectKey{Namespace: k.namespace, Name: digestKeyName}, secret)
	if apierrors.IsNotFound(err) {
		key := make([]byte, sha256.Size)
		_, _ = rand.Read(key) // rand.Read never fails.
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: digestKeyName, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}},
			Type:       digestKeyType, Data: map[string][]byte{"key": key},
		}
		err = k.client.Create(ctx, secret, client.FieldOwner(FieldManager))
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", k.namespace, digestKeyName, err)
	}
	k.key = secret.Data["key"]
	return k.key, nil
}
