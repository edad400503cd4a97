package sources

import (
	"context"
	"io"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/sync/observed"
)

// Digest writes what Values would read of the objects that a Cluster refers to, as it is
// cached, and reports whether all of it could be read.
func (s *Sources) Digest(ctx context.Context, cluster *clusterv1.Cluster, digest io.Writer) bool {
	for _, ref := range referencesOf(cluster) {
		kind := s.kinds.known(ref.GroupKind())
		if kind == nil || !s.digest(ctx, kind, cluster, ref, digest) {
			return false
		}
	}
	return true
}

func (s *Sources) digest(ctx context.Context, kind *kind, cluster *clusterv1.Cluster, ref clusterv1.ContractVersionedObjectReference, digest io.Writer) bool {
	kind.mu.RLock()
	defer kind.mu.RUnlock()
	crd := CRD()
	// A cached read waits for the first list, which may never come.
	if kind.watched.Empty() || !kind.isListed() || s.Get(ctx, client.ObjectKey{Name: contract.CalculateCRDName(ref.APIGroup, ref.Kind)}, crd, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	object := ofKind(kind.watched)
	if s.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}, object, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	// The CRD says in which version the object is to be read.
	for _, part := range []string{kind.watched.String(), string(crd.UID), crd.ResourceVersion, string(object.GetUID()), observed.Content(object)} {
		if _, err := io.WriteString(digest, part+"\x00"); err != nil {
			return false
		}
	}
	return true
}
