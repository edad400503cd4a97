package sync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

const (
	// secondLook is how long after a mapping began to map Fleet is to look again: Fleet's own view of
	// the mapping may have lagged behind the first time.
	secondLook = 15 * time.Second
	// bundlesAtOnce is how many Bundles are annotated each second: Fleet works out the targets of
	// each.
	bundlesAtOnce = 10
)

// follow makes Fleet look twice at the Bundles of a mapping that has begun to map, because Fleet watches
// no mappings. The mapping's annotation records the progress, and the reconciles of Clusters copy it to
// their Fleet Clusters. In a workspace, where the Fleet Clusters are Rancher's, follow annotates the
// Bundles instead.
func (t *targets) follow(ctx context.Context, in settings.Settings, key types.NamespacedName) (time.Duration, error) {
	var mapping fleetv1.BundleNamespaceMapping
	found, err := t.Store.Get(ctx, key, &mapping)
	note, isAsked := mapping.Annotations[desired.RetargetAnnotation], slices.Contains(in.Mappings, key)
	isSecond := strings.HasSuffix(note, desired.RetargetAgain)
	if err != nil || !found || note == "" || !desired.Maps(&mapping) || isSecond && !isAsked {
		return 0, err
	}
	if isAsked {
		if isLeft, err := t.retargetBundles(ctx, &mapping); err != nil || isLeft {
			return time.Second, err
		}
	}
	var next any // Nothing is left to do.
	if !isSecond {
		if wait := t.progress(&mapping).began.Add(secondLook).Sub(t.now()); wait > 0 {
			return wait, nil
		}
		next = note + desired.RetargetAgain
	}
	_, err = t.Patch(ctx, &mapping, retargeting(next))
	return 0, err
}

// retargetBundles annotates some of a mapping's Bundles, and reports whether any is left.
func (t *targets) retargetBundles(ctx context.Context, mapping *fleetv1.BundleNamespaceMapping) (isLeft bool, err error) {
	selector, err := metav1.LabelSelectorAsSelector(desired.Mapping(mapping.Namespace, mapping.Name).BundleSelector)
	if err != nil {
		return false, err
	}
	begun, bundles := desired.Begun(mapping), &metav1.PartialObjectMetadataList{}
	bundles.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("BundleList"))
	var names []string
	if _, err := pager.Each(ctx, t.live, bundles, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			bundle := &page.Items[i]
			if bundle.DeletionTimestamp.IsZero() && bundle.Annotations[desired.RetargetAnnotation] != begun {
				names = append(names, bundle.Name)
			}
		}
	}, client.InNamespace(mapping.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return false, fmt.Errorf("listing Bundles: %w", err)
	}
	// In another order each time: otherwise, ten that are always refused would keep the others waiting.
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:min(bundlesAtOnce, len(names))]
	var refused []error
	for _, name := range names {
		if err := t.retarget(ctx, types.NamespacedName{Namespace: mapping.Namespace, Name: name}, begun); err != nil {
			refused = append(refused, err)
		}
	}
	if len(refused) < len(names) {
		return true, nil // The next round tries the refused ones again, and brings others.
	}
	return false, errors.Join(refused...)
}

// retarget makes Fleet work out the targets of a Bundle again.
func (t *targets) retarget(ctx context.Context, key types.NamespacedName, value string) error {
	bundle := &metav1.PartialObjectMetadata{}
	bundle.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Bundle"))
	bundle.Namespace, bundle.Name = key.Namespace, key.Name
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, desired.RetargetAnnotation, value)
	err := t.Client.Patch(ctx, bundle, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("making Fleet look again at Bundle %s: %w", key, err)
	}
	ctrl.LoggerFrom(ctx).Info("Made Fleet work out a bundle's targets again", "bundle", key.String())
	return nil
}

// retarget notes on a Fleet Cluster which mappings have begun to map, so that Fleet looks at its Bundles
// again. It changes nothing else: the Cluster is deselected, or patchResource is off.
func (r *clusterReconciler) retarget(ctx context.Context, s *scope) (err error) {
	if s.begun, err = begunFor(ctx, r.Client, r.applier.Store, s.cluster.Namespace, use{}); err != nil {
		return err
	}
	have := s.fleet.Annotations[desired.RetargetAnnotation]
	noted := desired.Retargeted(have, s.begun)
	if noted == have {
		return nil
	}
	return r.patchFleetCluster(ctx, s, retargeting(noted))
}

// retargeting returns a change of the RetargetAnnotation; nil removes it.
func retargeting(value any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{desired.RetargetAnnotation: value}}}
}

// begunFor returns the mappings to a namespace that began to map when it had Fleet Clusters already. The cache may not
// show the one that was just made for a use, and of an unread namespace it shows none.
func begunFor(ctx context.Context, reader client.Reader, store *kube.Store, namespace string, made use) ([]string, error) {
	var list fleetv1.BundleNamespaceMappingList
	into := client.MatchingFields{byMapped: namespace}
	if err := reader.List(ctx, &list, into, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing BundleNamespaceMappings: %w", err)
	}
	var keys []types.NamespacedName
	if !made.isZero() {
		keys = append(keys, made.mapping())
	}
	for i := range list.Items {
		keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
	}
	var begun []string
	for _, key := range keys {
		var mapping fleetv1.BundleNamespaceMapping
		if found, err := store.Get(ctx, key, &mapping); err != nil {
			return nil, err
		} else if found && stamp.IsOurs(&mapping) {
			begun = append(begun, desired.Begun(&mapping))
		}
	}
	slices.Sort(begun)
	return slices.DeleteFunc(slices.Compact(begun), func(noted string) bool { return noted == "" }), nil
}

// mappedBy indexes mappings by the namespace of the Clusters that they are for.
func mappedBy(mapping client.Object) []string { return []string{mapping.GetName()} }
