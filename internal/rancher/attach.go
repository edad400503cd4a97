package rancher

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

	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// TakenError says why another object, or another writer, is in the way of an attachment.
type TakenError string

func (e TakenError) Error() string { return string(e) }

// Attach applies labels, annotations and template values to a Fleet Cluster of Rancher's. It returns the Fleet Cluster
// as it is then, and the names of the fields that others have set to other values. Rancher and Turtles write the same
// object, so Attach forces nothing. If another writer changes a value after it was applied, the value stays until
// Muster's own changes. IsPart means that want lacks the copies, which stay. The error is a TakenError, and nothing is
// written, if others own the annotations that name the owner of the attachment: without them, the other fields would
// never be removed.
func (c *Client) Attach(ctx context.Context, in settings.Settings, want, have *fleetv1.Cluster, isPart bool) (now *fleetv1.Cluster, others []string, err error) {
	if isPart {
		if want, err = c.withCopies(ctx, in, want); err != nil {
			return have, others, err
		}
	}
	err = c.Store.Try(want, want.Annotations[desired.HashAnnotation], func() (err error) {
		defer func() { metrics.Applied("Cluster", "attached", err) }()
		now, err = c.apply(ctx, want)
		switch others = conflictsOf(err); {
		case desired.NamesAttached(others):
			now, err = nil, nil
		case len(others) > 0:
			now, err = c.apply(ctx, desired.Without(want, others))
		}
		return err
	})
	if err == nil && now == nil {
		err = TakenError(fmt.Sprintf("Fleet Cluster %q of Rancher is not attached: the annotations %s and %s are those of another writer there, and say %q; who wrote them must take them off",
			client.ObjectKeyFromObject(have), stamp.AttachedAnnotation, stamp.AttachedUIDAnnotation, have.Annotations[stamp.AttachedAnnotation]))
	}
	return now, others, err
}

// withCopies returns an attachment with the copies that were applied before: an apply that does not name them would take
// them off. The cache does not hold whose fields they are.
func (c *Client) withCopies(ctx context.Context, in settings.Settings, want *fleetv1.Cluster) (*fleetv1.Cluster, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	if err := c.Live.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil {
		return nil, fmt.Errorf("reading Rancher's Fleet Cluster: %w", err)
	}
	before := &fleetv1.Cluster{}
	if err := managedfields.ExtractInto(live, typed.DeducedParseableType, AttachManager, before, ""); err != nil {
		return nil, fmt.Errorf("reading the fields of Rancher's Fleet Cluster that are Muster's: %w", err)
	}
	return desired.WithCopies(in, want, before), nil
}

// conflictsOf returns the labels, annotations and template values on which an apply conflicts with another manager.
func conflictsOf(err error) (names []string) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		name := strings.TrimPrefix(cause.Field, ".")
		if path, ok := strings.CutPrefix(name, desired.TemplateValues); ok {
			key, _, _ := strings.Cut(path, ".")
			name = desired.TemplateValues + key
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// apply applies an attachment without force. The UID ensures that the apply creates nothing.
func (c *Client) apply(ctx context.Context, want *fleetv1.Cluster) (*fleetv1.Cluster, error) {
	fields, err := desired.Configuration(want)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, client.ObjectKeyFromObject(want), fields)
}

func (c *Client) send(ctx context.Context, key types.NamespacedName, fields map[string]any) (*fleetv1.Cluster, error) {
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	ctrl.LoggerFrom(ctx).Info("Applying to Rancher's Fleet Cluster", "fleetCluster", key.String())
	written := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if err := c.Applier.Client.Patch(ctx, written, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(AttachManager)); err != nil {
		return nil, fmt.Errorf("applying to Rancher's Fleet Cluster %s: %w", key, err)
	}
	return written, c.Store.Wrote(ctx, written)
}

// Detach applies an empty attachment to the Fleet Clusters that a Cluster is attached to, except one. It fails if the
// Fleet Cluster has changed, because another Cluster may be attached by now.
func (c *Client) Detach(ctx context.Context, cluster, but types.NamespacedName) error {
	if c == nil {
		return nil
	}
	attached, err := c.attached(ctx, cluster)
	if err != nil {
		return err
	}
	for i := range attached {
		key := client.ObjectKeyFromObject(&attached[i])
		if key == but {
			continue
		}
		current := &fleetv1.Cluster{}
		found, err := c.Store.Get(ctx, key, current)
		if err != nil {
			return err
		}
		if !found || !current.DeletionTimestamp.IsZero() || !IsAttached(current) {
			continue
		}
		if _, err := c.send(ctx, key, map[string]any{
			"apiVersion": fleetv1.SchemeGroupVersion.String(), "kind": "Cluster",
			"metadata": map[string]any{"uid": current.UID, "resourceVersion": current.ResourceVersion},
		}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
