package sync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// attach makes the group in the workspace, then applies labels, annotations and template values to Rancher's
// Fleet Cluster. Rancher and Turtles write the same object, so attach forces nothing. If another writer
// changes a value after it was applied, the value stays until Muster's own changes.
func (r *clusterReconciler) attach(ctx context.Context, s *scope) error {
	have := &fleetv1.Cluster{}
	found, err := r.applier.Store.Get(ctx, s.beside.Fleet, have)
	if err != nil || !found {
		return err
	}
	s.rancher = have
	if s.unresolved != "" || stamp.IsAttachedTo(have, s.cluster) && !s.in.Cluster.PatchResource {
		return nil // The attached fields stay as they are.
	}
	group, err := r.targets.ensureInWorkspace(ctx, s.in, s.beside.Fleet.Namespace, s.cluster.Namespace, s.subject.Class)
	if taken := (*groupTakenError)(nil); errors.As(err, &taken) {
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
	if s.tooMuch != "" {
		if want, err = r.withCopies(ctx, s.in, want); err != nil {
			return err
		}
	}
	var written *fleetv1.Cluster
	err = r.applier.Store.Try(want, want.Annotations[desired.HashAnnotation], func() (err error) {
		written, others, err = r.applyAttachment(ctx, want)
		return err
	})
	switch {
	case err != nil:
		return s.explained(err)
	case written == nil:
		s.foreign = fmt.Sprintf("Fleet Cluster %q of Rancher is not attached: the annotations %s and %s are those of another writer there, and say %q; who wrote them must take them off",
			s.beside.Fleet, stamp.AttachedAnnotation, stamp.AttachedUIDAnnotation, have.Annotations[stamp.AttachedAnnotation])
	default:
		s.rancher, s.others = written, others
	}
	return nil
}

// withCopies returns an attachment with the copies that were applied before: an apply that does not name them would take
// them off. The cache does not hold whose fields they are.
func (r *clusterReconciler) withCopies(ctx context.Context, in settings.Settings, want *fleetv1.Cluster) (*fleetv1.Cluster, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil {
		return nil, fmt.Errorf("reading Rancher's Fleet Cluster: %w", err)
	}
	before := &fleetv1.Cluster{}
	if err := managedfields.ExtractInto(live, typed.DeducedParseableType, stamp.AttachManager, before, ""); err != nil {
		return nil, fmt.Errorf("reading the fields of Rancher's Fleet Cluster that are Muster's: %w", err)
	}
	return desired.WithCopies(in, want, before), nil
}

// applyAttachment applies an attachment. If other managers own some of its fields with other values,
// it leaves these fields out and returns their names. It writes nothing if these include the
// annotations that name the owner of the attachment: without them, the other fields would never be removed.
func (r *clusterReconciler) applyAttachment(ctx context.Context, want *fleetv1.Cluster) (written *fleetv1.Cluster, others []string, err error) {
	defer func() { metrics.Applied("Cluster", "attached", err) }()
	written, err = r.applyAttached(ctx, want)
	others = conflictsOf(err)
	switch {
	case desired.NamesAttached(others):
		return nil, others, nil
	case len(others) > 0:
		written, err = r.applyAttached(ctx, desired.Without(want, others))
	}
	return written, others, err
}

// conflictsOf returns the names of the fields on which an apply conflicts with another manager.
func conflictsOf(err error) (names []string) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		names = append(names, attachedField(strings.TrimPrefix(cause.Field, ".")))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// attachedField returns the name of the label, annotation or template value that a path leads to.
func attachedField(path string) string {
	if rest, ok := strings.CutPrefix(path, desired.TemplateValues); ok {
		key, _, _ := strings.Cut(rest, ".")
		return desired.TemplateValues + key
	}
	return path
}

// applyAttached applies without force, under its own field manager. The UID ensures that the apply
// creates nothing.
func (r *clusterReconciler) applyAttached(ctx context.Context, want *fleetv1.Cluster) (*fleetv1.Cluster, error) {
	fields, err := desired.Configuration(want)
	if err != nil {
		return nil, err
	}
	return r.sendAttached(ctx, client.ObjectKeyFromObject(want), fields)
}

func (r *clusterReconciler) sendAttached(ctx context.Context, key types.NamespacedName, fields map[string]any) (*fleetv1.Cluster, error) {
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	ctrl.LoggerFrom(ctx).Info("Applying to Rancher's Fleet Cluster", "fleetCluster", key.String())
	written := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if err := r.Patch(ctx, written, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(stamp.AttachManager)); err != nil {
		return nil, fmt.Errorf("applying to Rancher's Fleet Cluster %s: %w", key, err)
	}
	return written, r.applier.Store.Wrote(ctx, written)
}

// detach removes Muster's fields from the Fleet Clusters that the Cluster is no longer attached to. If
// that fails, the condition says so, and nothing else waits for it.
func (r *clusterReconciler) detach(ctx context.Context, s *scope) error {
	err := r.detachAll(ctx, client.ObjectKeyFromObject(s.cluster), s.attachedTo())
	if errors.Is(err, kube.ErrBehind) {
		return err
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Muster's fields stay on a Fleet Cluster of Rancher; it is tried again")
		s.undetached, s.again = "; Muster's labels stay on another Fleet Cluster of Rancher: "+err.Error(), lastRetry
	}
	return nil
}

// detachAll applies an empty attachment to the Fleet Clusters that a Cluster is attached to, except
// one. It fails if the Fleet Cluster has changed, because another Cluster may be attached by now.
func (r *clusterReconciler) detachAll(ctx context.Context, cluster, but types.NamespacedName) error {
	attached, err := r.scopes.rancher.attached(ctx, cluster)
	if err != nil {
		return err
	}
	for i := range attached {
		key := client.ObjectKeyFromObject(&attached[i])
		if key == but {
			continue
		}
		current := &fleetv1.Cluster{}
		found, err := r.applier.Store.Get(ctx, key, current)
		if err != nil {
			return err
		}
		if !found || !current.DeletionTimestamp.IsZero() || !stamp.IsAttached(current) {
			continue
		}
		if _, err := r.sendAttached(ctx, key, map[string]any{
			"apiVersion": fleetv1.SchemeGroupVersion.String(), "kind": "Cluster",
			"metadata": map[string]any{"uid": current.UID, "resourceVersion": current.ResourceVersion},
		}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
