package sync

import (
	"context"
	"errors"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// attach makes the group in the workspace, then attaches the Cluster to Rancher's Fleet Cluster.
func (r *clusterReconciler) attach(ctx context.Context, s *scope) error {
	have := &fleetv1.Cluster{}
	found, err := r.applier.Store.Get(ctx, s.beside.Fleet, have)
	if err != nil || !found {
		return err
	}
	s.rancher = have
	if s.unresolved != "" || rancher.IsAttachedTo(have, s.cluster) && !s.in.Cluster.PatchResource {
		return nil // The attached fields stay as they are.
	}
	var taken rancher.TakenError
	group, err := r.targets.ensureInWorkspace(ctx, s.in, s.beside.Fleet.Namespace, s.cluster.Namespace, s.subject.Class)
	if errors.As(err, &taken) {
		s.foreign, err = taken.Error(), nil
	}
	if s.targets.Group, err = s.orForeign(group, err); err != nil {
		return err
	}
	want := desired.Attachment(s.in, s.beside.Fleet, have.UID, s.cluster, s.class, s.values, s.targets)
	lacks, others := desired.Unattached(want, have)
	if s.others = others; !lacks && want.Annotations[desired.HashAnnotation] == have.Annotations[desired.HashAnnotation] {
		return nil
	}
	if err := s.inflate(); err != nil {
		return err
	}
	want.Spec.TemplateValues.Data = s.values
	now, others, err := r.scopes.rancher.Attach(ctx, s.in, want, have, s.tooMuch != "")
	switch {
	case errors.As(err, &taken):
		s.foreign = taken.Error()
	case err != nil:
		return s.explained(err)
	default:
		s.rancher, s.others = now, others
	}
	return nil
}

// detach removes Muster's fields from the Fleet Clusters that the Cluster is no longer attached to. If
// that fails, the condition says so, and nothing else waits for it.
func (r *clusterReconciler) detach(ctx context.Context, s *scope) error {
	err := r.scopes.rancher.Detach(ctx, client.ObjectKeyFromObject(s.cluster), s.attachedTo())
	if errors.Is(err, kube.ErrBehind) {
		return err
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Muster's fields stay on a Fleet Cluster of Rancher; it is tried again")
		s.undetached, s.again = "; Muster's labels stay on another Fleet Cluster of Rancher: "+err.Error(), lastRetry
	}
	return nil
}
