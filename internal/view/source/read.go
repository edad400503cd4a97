package source

import (
	"context"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/view"
)

// Scope limits the graph.
type Scope struct {
	// Namespace is the only one whose Clusters are shown; empty means all.
	Namespace string
	// Bundles means that the Bundles on each Cluster are read, too.
	Bundles bool
}

// clock is implemented by a Reader with its own time.
type clock interface{ Now() time.Time }

// now returns the time from which ages are counted.
func now(reader client.Reader) time.Time {
	if file, ok := reader.(clock); ok {
		return file.Now()
	}
	return time.Now()
}

// Read reads the objects of a graph once.
func Read(ctx context.Context, reader client.Reader, scope Scope) (*view.Objects, error) {
	objects := view.NewObjects()
	objects.Now = now(reader)
	for _, feed := range feeds() {
		if scope.Namespace != "" && feed.kind == view.Namespace {
			continue // The function beyond reads this kind.
		}
		_, err := feed.read(ctx, reader, scope, objects)
		if err := note(objects, feed, err); err != nil {
			return nil, err
		}
	}
	objects.IsConfigGone = objects.Config == nil && objects.Unread[view.Config] == "" && isRecorded(ctx, reader)
	if err := beyond(ctx, reader, scope, objects); err != nil {
		return nil, err
	}
	if scope.Bundles {
		return objects, Bundles(ctx, reader, scope, objects)
	}
	return objects, nil
}

// isRecorded reports whether there was a FleetAddonConfig, as far as the user may read that.
func isRecorded(ctx context.Context, reader client.Reader) bool {
	records := &metav1.PartialObjectMetadataList{}
	records.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	err := reader.List(ctx, records, client.MatchingFields{metav1.ObjectNameField: settings.RecordName}, client.Limit(1))
	return err == nil && slices.ContainsFunc(records.Items, func(its metav1.PartialObjectMetadata) bool { return its.Name == settings.RecordName })
}

// note records a kind that could not be read, and returns any other error.
func note(objects *view.Objects, feed feed, err error) error {
	if err == nil {
		delete(objects.Unread, feed.kind)
		return nil
	}
	why := unreadable(err, feed.by)
	if why == "" {
		return fmt.Errorf("reading %s: %w", feed.kind.Plural(), err)
	}
	objects.Unread[feed.kind] = why
	return nil
}

// read lists a feed into objects, and returns the version of the list.
func (f feed) read(ctx context.Context, reader client.Reader, scope Scope, objects *view.Objects) (version string, err error) {
	last, err := pager.Each(ctx, reader, f.list, func(list client.ObjectList) {
		each(list, func(object client.Object) { f.put(objects, object) })
	}, f.within(scope)...)
	if f.isAbsent(err) {
		return "", nil
	}
	return last.GetResourceVersion(), err
}

func (f feed) within(scope Scope) []client.ListOption {
	if f.wide || scope.Namespace == "" {
		return nil
	}
	return []client.ListOption{client.InNamespace(scope.Namespace)}
}

// beyond reads objects outside the namespace in scope: the classes of its Clusters, and the mappings to the
// namespace.
func beyond(ctx context.Context, reader client.Reader, scope Scope, objects *view.Objects) error {
	if scope.Namespace == "" {
		return nil
	}
	byKind := map[view.Kind]feed{}
	for _, feed := range feeds() {
		byKind[feed.kind] = feed
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	wanted := map[types.NamespacedName]client.Object{{Name: scope.Namespace}: namespace}
	if err := get(ctx, reader, objects, byKind[view.Namespace], wanted); err != nil {
		return err
	}
	classes, mappings := map[types.NamespacedName]client.Object{}, map[types.NamespacedName]client.Object{}
	for _, cluster := range objects.Clusters {
		if cluster.Class.Name == "" || cluster.Class.Namespace == scope.Namespace {
			continue
		}
		class := &metav1.PartialObjectMetadata{}
		class.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind))
		classes[cluster.Class] = class
		mappings[types.NamespacedName{Namespace: cluster.Class.Namespace, Name: scope.Namespace}] = &fleetv1.BundleNamespaceMapping{}
	}
	if err := get(ctx, reader, objects, byKind[view.ClusterClass], classes); err != nil {
		return err
	}
	return get(ctx, reader, objects, byKind[view.Mapping], mappings)
}

// get reads objects one by one, and skips those that do not exist.
func get(ctx context.Context, reader client.Reader, objects *view.Objects, feed feed, wanted map[types.NamespacedName]client.Object) error {
	for key, object := range wanted {
		err := reader.Get(ctx, key, object)
		if err == nil {
			feed.put(objects, object)
			continue
		}
		if client.IgnoreNotFound(err) == nil {
			continue
		}
		if err := note(objects, feed, err); err != nil {
			return err
		}
	}
	return nil
}

// Bundles reads the BundleDeployments of all Clusters, or of the Clusters of a namespace.
func Bundles(ctx context.Context, reader client.Reader, scope Scope, objects *view.Objects) error {
	options := []client.ListOption{}
	if scope.Namespace != "" {
		options = append(options, client.MatchingLabels{fleetv1.ClusterNamespaceLabel: scope.Namespace})
	}
	return bundles(ctx, reader, objects, options...)
}

// BundlesOf reads the BundleDeployments in the Fleet namespace of a Cluster.
func BundlesOf(ctx context.Context, reader client.Reader, fleetNamespace string, objects *view.Objects) error {
	return bundles(ctx, reader, objects, client.InNamespace(fleetNamespace))
}

func bundles(ctx context.Context, reader client.Reader, objects *view.Objects, options ...client.ListOption) error {
	_, err := pager.Each(ctx, reader, &fleetv1.BundleDeploymentList{}, func(list *fleetv1.BundleDeploymentList) {
		for i := range list.Items {
			namespace := list.Items[i].Namespace
			objects.Deployments[namespace] = append(objects.Deployments[namespace], view.CutDeployment(&list.Items[i]))
		}
	}, options...)
	return note(objects, feed{kind: view.Deployment, by: "Fleet"}, err)
}
