package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// workspaceAnnotation lets Rancher turn an existing namespace into a Fleet workspace.
const workspaceAnnotation = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"

// namespaceReconciler keeps what Muster makes for all Clusters of a namespace: the groups of its classes and of the
// classes of other namespaces that Clusters use, the mappings to it, and the annotation on the Namespace.
type namespaceReconciler struct {
	client.Client
	targets  *targets
	settings *settings.Reader
	// namespaces is what the flag --namespace names; empty for all.
	namespaces map[string]cache.Config
}

// setUp registers the events that wake the reconciler. Those of Clusters, of which there may be thousands, are collected.
func (r *namespaceReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("namespace").
		WithOptions(controllerOptions(c.ClassConcurrency)).
		WatchesMetadata(namespaceMetadata(), enqueue(itself), builder.WithPredicates(kube.News)).
		Watches(&clusterv1.Cluster{}, soon(namespaceOf), builder.WithPredicates(specOrLabels)).
		Watches(&fleetv1.Cluster{}, soon(namespaceOf), builder.WithPredicates(useNews)).
		Watches(&fleetv1.ClusterGroup{}, enqueue(namespaceOf), builder.WithPredicates(kube.News)).
		Watches(&fleetv1.BundleNamespaceMapping{}, enqueue(namespaceOfMapping), builder.WithPredicates(kube.News)).
		WatchesMetadata(newClass(), enqueue(c.events.namespacesOfClass), builder.WithPredicates(watched(c.WatchFilter), kube.News)).
		Watches(&addonsv1.FleetAddonConfig{}, enqueue(c.events.allNamespaces), builder.WithPredicates(settingsNews)).
		Complete(kube.Consistent(patient{r}))
}

// namespaceOf returns the namespace of an object, as the key of a Namespace.
func namespaceOf(_ context.Context, object client.Object) []reconcile.Request {
	return requests(types.NamespacedName{Name: object.GetNamespace()})
}

// namespaceOfMapping returns the namespace of the Clusters that a mapping is for.
func namespaceOfMapping(_ context.Context, mapping client.Object) []reconcile.Request {
	return requests(types.NamespacedName{Name: mapping.GetName()})
}

// Reconcile restores what the Clusters of one namespace need, and removes what none needs. What fails stops none of the others.
func (r *namespaceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	current, err := r.settings.Current(ctx)
	if err != nil || current.Invalid != nil {
		return ctrl.Result{}, err
	}
	in, namespace := current.Settings, req.Name
	if !rancher.Reads(r.namespaces, namespace) {
		return ctrl.Result{}, nil
	}
	failed := []error{r.classGroups(ctx, in, namespace)}
	if !in.Cluster.Enabled { // Existing objects stay as they are.
		return ctrl.Result{}, errors.Join(failed...)
	}
	its, err := r.targets.needsOf(ctx, in, namespace)
	if err != nil {
		return ctrl.Result{}, errors.Join(append(failed, err)...)
	}
	failed = append(failed, r.groups(ctx, in, namespace, its), r.annotate(ctx, namespace, its))
	after, err := r.mappings(ctx, in, namespace, its)
	failed = append(failed, err)
	if errors.Is(its.err, rancher.ErrUnlisted) {
		after = kube.Sooner(after, passInterval)
	} else {
		failed = append(failed, its.err)
	}
	if err = errors.Join(failed...); err != nil && after > 0 && !errors.Is(err, kube.ErrBehind) {
		ctrl.LoggerFrom(ctx).Error(err, "An object of a namespace stays as it is; it is tried again")
		err = nil
	}
	return ctrl.Result{RequeueAfter: after}, err
}

// classGroups keeps the groups of the classes of a namespace.
func (r *namespaceReconciler) classGroups(ctx context.Context, in settings.Settings, namespace string) error {
	classes := classMetadataList()
	if err := r.List(ctx, classes, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ClusterClasses: %w", err)
	}
	var failed []error
	for i := range classes.Items {
		// The conditions of the Clusters report a foreign object.
		_, err := r.targets.ensureGroup(ctx, in, namespace, client.ObjectKeyFromObject(&classes.Items[i]))
		failed = append(failed, kube.IgnoreForeign(err))
	}
	return errors.Join(failed...)
}

// groups keeps the groups for classes of other namespaces, and deletes unused groups. A group whose class exists is in use.
func (r *namespaceReconciler) groups(ctx context.Context, in settings.Settings, namespace string, its *needs) error {
	var failed []error
	if in.Cluster.ApplyClassGroup {
		for used := range its.made {
			_, err := r.targets.ensureGroup(ctx, in, namespace, used.class)
			failed = append(failed, kube.IgnoreForeign(err))
		}
	}
	var groups fleetv1.ClusterGroupList
	if err := r.List(ctx, &groups, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return errors.Join(append(failed, fmt.Errorf("listing ClusterGroups: %w", err))...)
	}
	for i := range groups.Items {
		group := &groups.Items[i]
		switch key := client.ObjectKeyFromObject(group); {
		case isOfWorkspace(group):
			failed = append(failed, kube.IgnoreForeign(r.targets.keepOfWorkspace(ctx, in, key)))
		case !in.Cluster.ApplyClassGroup || !its.retained[key]:
			failed = append(failed, r.targets.removeGroup(ctx, in, key))
		}
	}
	return errors.Join(failed...)
}

// mappings keeps the mappings to a namespace, retires unused ones, and returns when to look again.
func (r *namespaceReconciler) mappings(ctx context.Context, in settings.Settings, namespace string, its *needs) (after time.Duration, err error) {
	var mappings fleetv1.BundleNamespaceMappingList
	if err := r.List(ctx, &mappings, client.MatchingFields{byMapped: namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("listing BundleNamespaceMappings: %w", err)
	}
	wanted := map[types.NamespacedName]bool{}
	for _, key := range in.Mappings { // An administrator asks for them. They are into a workspace of Rancher.
		if key.Name == namespace && rancher.Reads(r.namespaces, key.Namespace) {
			wanted[key] = true
		}
	}
	if in.Cluster.ApplyClassGroup {
		for used := range its.made {
			wanted[used.mapping()] = true
		}
	}
	var failed []error
	add := func(again time.Duration, err error) {
		after, failed = kube.Sooner(after, again), append(failed, kube.IgnoreForeign(err))
	}
	for key := range wanted { // First what is needed: to retire a mapping takes long.
		add(r.targets.keepMapping(ctx, in, key))
	}
	for i := range mappings.Items {
		if key := client.ObjectKeyFromObject(&mappings.Items[i]); stamp.IsOurs(&mappings.Items[i]) && !wanted[key] {
			wanted[key] = true
			add(r.targets.removeMapping(ctx, in, key, its))
		}
	}
	r.targets.forgetAllBut(namespace, wanted)
	return after, errors.Join(failed...)
}

// annotate sets or removes the annotation on a Namespace: it is set for a maker, and stays for a retainer. Nothing waits for
// it: only Rancher reads it, and a refusal by a policy or RBAC is logged and otherwise ignored.
func (r *namespaceReconciler) annotate(ctx context.Context, name string, its *needs) error {
	namespace := namespaceMetadata()
	if err := r.Get(ctx, client.ObjectKey{Name: name}, namespace, client.UnsafeDisableDeepCopy); err != nil || !namespace.DeletionTimestamp.IsZero() {
		return client.IgnoreNotFound(err)
	}
	_, has := namespace.Annotations[workspaceAnnotation]
	value := `"true"`
	switch {
	case its.hasMaker == has, has && (its.hasRetainer || !stamp.IsManager(namespace)):
		return nil
	case has:
		value = "null"
	}
	// A merge patch, not an apply: an apply would recreate a Namespace that has just been
	// deleted.
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, workspaceAnnotation, value)
	namespace = namespace.DeepCopy()
	err := r.Patch(ctx, namespace, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager))
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		ctrl.LoggerFrom(ctx).Info("The Namespace may not be annotated, so Rancher makes no workspace of it; nothing else depends on it",
			"namespace", name, "reason", err.Error())
		return nil
	}
	return client.IgnoreNotFound(err)
}

// namespaceMetadata returns an empty Namespace, for reading and caching only its metadata.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}
