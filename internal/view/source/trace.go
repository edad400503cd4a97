package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/targets"
	"github.com/muster-fleet/muster/internal/view/trace"
)

func labelsOf(object *manifests.Object) labels.Set { return object.Labels }
func nameOf(object *manifests.Object) fields.Set   { return fields.Set{"metadata.name": object.Name} }

// Trace reads the objects that decide whether a Bundle is on a Cluster. Each is named by namespace and
// name, or by name. It searches for a Cluster in the given namespace, then everywhere; for a Bundle in
// the namespaces from which the Cluster's Bundles come, then everywhere. The name of a HelmChartProxy stands for its
// Bundle; with ProxyPrefix before it, no Bundle has that name, and without, there may be both.
func Trace(ctx context.Context, reader client.Reader, namespace, bundle, cluster string) (all []*trace.Input, err error) {
	t := newTracing(reader)
	if err := t.cluster(ctx, namespace, cluster); err != nil {
		return nil, err
	}
	name, isProxy := strings.CutPrefix(bundle, ProxyPrefix)
	proxy, err := t.findProxy(ctx, name, t.near()...)
	if isProxy && err != nil {
		return nil, fmt.Errorf("HelmChartProxy %w", err)
	}
	if !isProxy {
		own := t.fork()
		err := own.bundle(ctx, bundle, t.near()...)
		isThere := err == nil && (own.in.Found != nil || own.in.Unread[view.Bundle] != "")
		if proxy == nil && err != nil {
			return nil, err
		}
		if proxy == nil || isThere {
			if err := own.read(ctx); err != nil {
				return nil, err
			}
			all = append(all, own.in)
		}
	}
	if proxy != nil {
		own := t.fork()
		if err := own.bundleOf(ctx, proxy); err != nil {
			return nil, err
		}
		if err := own.read(ctx); err != nil {
			return nil, err
		}
		all = append(all, own.in)
	}
	return all, nil
}

// ProxyPrefix is before the name of a HelmChartProxy, where it could be a Bundle's.
const ProxyPrefix = "helmchartproxy/"

// fork returns a tracing with the same Cluster.
func (t *tracing) fork() *tracing {
	in := *t.in
	in.Namespaces, in.Unread = map[string]map[string]string{}, maps.Clone(in.Unread)
	return &tracing{t.reader, &in}
}

// findProxy finds a HelmChartProxy in one of the namespaces, or else everywhere; it returns nil with each error.
func (t *tracing) findProxy(ctx context.Context, name string, near ...string) (*addonsv1.HelmChartProxy, error) {
	key, err := t.find(ctx, name, near, func() client.ObjectList {
		return metadataList(addonsv1.GroupVersion.WithKind("HelmChartProxyList"))
	})
	if err != nil {
		return nil, err
	}
	proxy := &addonsv1.HelmChartProxy{}
	if err := t.reader.Get(ctx, key, proxy); err != nil {
		return nil, err
	}
	return proxy, nil
}

// bundleOf reads the Bundle of a HelmChartProxy that has a target for the Cluster, or may get one.
func (t *tracing) bundleOf(ctx context.Context, proxy *addonsv1.HelmChartProxy) error {
	t.in.Proxy = client.ObjectKeyFromObject(proxy)
	t.in.Bundle = types.NamespacedName{Namespace: t.in.Cluster.Namespace, Name: plan.BundleName(proxy, t.in.Cluster, 0)}
	list := metadataList(fleetv1.SchemeGroupVersion.WithKind("BundleList"))
	err := t.reader.List(ctx, list, client.InNamespace(t.in.Bundle.Namespace), client.MatchingLabels(plan.Labels(t.in.Proxy)))
	for i := range list.Items {
		if !plan.IsBundleOf(proxy, t.in.Cluster, list.Items[i].Name) {
			continue
		}
		bundle := &fleetv1.Bundle{}
		if err = t.reader.Get(ctx, client.ObjectKeyFromObject(&list.Items[i]), bundle); err != nil {
			break
		}
		isTarget := t.in.Fleet != nil && slices.ContainsFunc(bundle.Spec.Targets, func(its fleetv1.BundleTarget) bool { return its.ClusterName == t.in.Fleet.Name })
		if t.in.Found == nil || isTarget {
			t.in.Found, t.in.Bundle = bundle, client.ObjectKeyFromObject(bundle)
		}
	}
	return t.note(view.Bundle, "Fleet", err)
}

// read reads everything but the Cluster and the Bundle.
func (t *tracing) read(ctx context.Context) error {
	for _, read := range []func(context.Context) error{
		t.namespaces, t.mappings, t.groups, t.deployments, t.namesakes, t.policies,
	} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

type tracing struct {
	reader client.Reader
	in     *trace.Input
}

func newTracing(reader client.Reader) *tracing {
	return &tracing{reader: reader, in: &trace.Input{Namespaces: map[string]map[string]string{}, Unread: map[view.Kind]string{}}}
}

// note records a kind that could not be read; a missing object is no error.
func (t *tracing) note(kind view.Kind, by string, err error) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	why := unreadable(err, by)
	if why == "" {
		return fmt.Errorf("reading %s: %w", kind.Plural(), err)
	}
	t.in.Unread[kind] = why
	return nil
}

// cluster finds a Cluster and its Fleet Cluster.
func (t *tracing) cluster(ctx context.Context, namespace, name string) error {
	key, err := t.find(ctx, name, []string{namespace}, func() client.ObjectList {
		return metadataList(clusterv1.GroupVersion.WithKind("ClusterList"))
	}, func() client.ObjectList {
		return metadataList(fleetv1.SchemeGroupVersion.WithKind("ClusterList"))
	})
	if err != nil {
		return fmt.Errorf("cluster %w", err)
	}
	t.in.Cluster = key
	objects, err := Read(ctx, one{t.reader, key}, Scope{Namespace: key.Namespace})
	if err != nil {
		return err
	}
	objects.Now = now(t.reader)
	for kind, why := range objects.Unread {
		t.in.Unread[kind] = why
	}
	graph := view.Build(objects)
	fleetKey := key
	graph.Walk(func(node, _ *view.Node) {
		if node.Namespace == key.Namespace && node.Name == key.Name && (node.Kind == view.Cluster || node.Kind == view.FleetCluster && t.in.Judged == nil) {
			t.in.Judged = node
			if name := node.Fact(view.FactFleet); name != "" {
				fleetKey.Name = name
			} else if node.Kind == view.Cluster {
				fleetKey.Name = ""
			}
		}
	})
	t.in.CAPI = objects.Clusters[key]
	if fleetKey.Name == "" || objects.FleetClusters[fleetKey] == nil {
		return nil
	}
	fleet := &fleetv1.Cluster{}
	if err := t.reader.Get(ctx, fleetKey, fleet); err != nil {
		return t.note(view.FleetCluster, "Fleet", err)
	}
	t.in.Fleet = fleet
	return nil
}

// one is a reader whose lists have only one Cluster.
type one struct {
	client.Reader
	key types.NamespacedName
}

// List implements client.Reader. A Fleet Cluster may have another name than its Cluster, so it lists all of
// the namespace, reduced at once.
func (o one) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, ok := list.(*clusterv1.ClusterList); ok {
		options = append(options, client.MatchingFields{"metadata.name": o.key.Name})
	}
	return o.Reader.List(ctx, list, options...)
}

// Find returns the key of an object that is given by namespace and name, or by name alone: then it is in the given
// namespace, or in the only one that has an object of that name. Kind is that of the list.
func Find(ctx context.Context, reader client.Reader, namespace, name string, kind schema.GroupVersionKind) (types.NamespacedName, error) {
	return newTracing(reader).find(ctx, name, []string{namespace}, func() client.ObjectList { return metadataList(kind) })
}

// find returns the key of an object that is given by namespace and name, or by name alone.
func (t *tracing) find(ctx context.Context, name string, namespaces []string, lists ...func() client.ObjectList) (types.NamespacedName, error) {
	if namespace, name, found := strings.Cut(name, "/"); found {
		return types.NamespacedName{Namespace: namespace, Name: name}, nil
	}
	found := map[types.NamespacedName]bool{}
	var forbidden error
	list := func(options ...client.ListOption) error {
		for _, list := range lists {
			list := list()
			err := t.reader.List(ctx, list, append(options, client.MatchingFields{"metadata.name": name})...)
			if err != nil && unreadable(err, "") == "" {
				return err
			}
			if err != nil {
				forbidden = err
			}
			each(list, func(object client.Object) { found[client.ObjectKeyFromObject(object)] = true })
		}
		return nil
	}
	for _, namespace := range namespaces {
		if namespace == "" {
			continue
		}
		if err := list(client.InNamespace(namespace)); err != nil {
			return types.NamespacedName{}, err
		}
		if len(found) > 0 {
			return types.NamespacedName{Namespace: namespace, Name: name}, nil
		}
	}
	if err := list(); err != nil {
		return types.NamespacedName{}, err
	}
	return only(found, name, namespaces, forbidden)
}

// only returns the one key that was found, or an error that says why there is not exactly one.
func only(found map[types.NamespacedName]bool, name string, namespaces []string, forbidden error) (types.NamespacedName, error) {
	var keys []string
	for key := range found {
		if len(found) == 1 {
			return key, nil
		}
		keys = append(keys, key.String())
	}
	switch {
	case len(keys) > 0:
		return types.NamespacedName{}, fmt.Errorf("%q is in several namespaces; name one of %s", name, strings.Join(sortedStrings(keys), ", "))
	case meta.IsNoMatchError(forbidden):
		return types.NamespacedName{}, fmt.Errorf("%q was not found: %w", name, forbidden)
	case forbidden != nil:
		return types.NamespacedName{}, fmt.Errorf("%q is not in %s, and you may not search other namespaces; name it as NAMESPACE/%s", name, strings.Join(sortedStrings(namespaces), ", "), name)
	}
	return types.NamespacedName{}, fmt.Errorf("%q does not exist in any namespace", name)
}

// near returns the namespaces from which the Cluster's Bundles come.
func (t *tracing) near() []string {
	near := []string{t.in.Cluster.Namespace}
	if t.in.CAPI != nil {
		near = append(near, t.in.CAPI.Class.Namespace)
	}
	return near
}

// bundle finds the Bundle in one of the namespaces, or else everywhere.
func (t *tracing) bundle(ctx context.Context, name string, near ...string) error {
	key, err := t.find(ctx, name, near, func() client.ObjectList {
		return metadataList(fleetv1.SchemeGroupVersion.WithKind("BundleList"))
	})
	if err != nil {
		return fmt.Errorf("bundle %w", err)
	}
	t.in.Bundle = key
	bundle := &fleetv1.Bundle{}
	err = t.reader.Get(ctx, key, bundle)
	if err == nil {
		t.in.Found = bundle
	}
	return t.note(view.Bundle, "Fleet", err)
}

func (t *tracing) namespaces(ctx context.Context) error {
	list := metadataList(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	delete(t.in.Unread, view.Namespace)
	_, err := pager.Each(ctx, t.reader, list, func(list *metav1.PartialObjectMetadataList) {
		for i := range list.Items {
			t.in.Namespaces[list.Items[i].Name] = list.Items[i].Labels
		}
	})
	return t.note(view.Namespace, "Kubernetes", err)
}

func (t *tracing) mappings(ctx context.Context) error {
	delete(t.in.Unread, view.Mapping)
	_, err := pager.Each(ctx, t.reader, &fleetv1.BundleNamespaceMappingList{}, func(list *fleetv1.BundleNamespaceMappingList) {
		for i := range list.Items {
			t.in.Mappings = append(t.in.Mappings, &list.Items[i])
		}
	}, client.InNamespace(t.in.Bundle.Namespace))
	return t.note(view.Mapping, "Fleet", err)
}

// namesakes reads the Bundles of the same name in the other namespaces from which Bundles reach the Cluster, and the
// mappings from there, as far as the user may read them.
func (t *tracing) namesakes(ctx context.Context) error {
	if t.in.Found == nil || t.in.Fleet == nil {
		return nil
	}
	namespace := t.in.Fleet.Namespace
	from := map[string]bool{namespace: true}
	_, err := pager.Each(ctx, t.reader, &fleetv1.BundleNamespaceMappingList{}, func(list *fleetv1.BundleNamespaceMappingList) {
		for i := range list.Items {
			mapping := &list.Items[i]
			if mapping.Namespace != t.in.Bundle.Namespace && targets.Leads(mapping, namespace, t.in.Namespaces[namespace]) {
				t.in.Mappings = append(t.in.Mappings, mapping)
				from[mapping.Namespace] = true
			}
		}
	})
	if err != nil && unreadable(err, "Fleet") == "" {
		return fmt.Errorf("reading %s: %w", view.Mapping.Plural(), err)
	}
	delete(from, t.in.Bundle.Namespace)
	for _, namespace := range slices.Sorted(maps.Keys(from)) {
		other := &fleetv1.Bundle{}
		err := t.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: t.in.Bundle.Name}, other)
		switch {
		case err == nil:
			t.in.Namesakes = append(t.in.Namesakes, other)
		case !apierrors.IsNotFound(err) && unreadable(err, "Fleet") == "":
			return fmt.Errorf("reading %s: %w", view.Bundle.Plural(), err)
		}
	}
	return nil
}

// policies reads Fleet's Policies in the namespace of the Bundle. Fleet before 0.16 has none.
func (t *tracing) policies(ctx context.Context) error {
	_, err := pager.Each(ctx, t.reader, &fleetv1.PolicyList{}, func(list *fleetv1.PolicyList) {
		t.in.Policies = append(t.in.Policies, list.Items...)
	}, client.InNamespace(t.in.Bundle.Namespace))
	if meta.IsNoMatchError(err) || errors.Is(err, errNotInFile) {
		return nil
	}
	return t.note(view.Policy, "Fleet", err)
}

// groups reads the groups in the namespace of the Fleet Cluster.
func (t *tracing) groups(ctx context.Context) error {
	delete(t.in.Unread, view.ClusterGroup)
	namespace := t.in.Cluster.Namespace
	if t.in.Fleet != nil {
		namespace = t.in.Fleet.Namespace
	}
	return t.groupsIn(ctx, namespace)
}

// groupsIn reads the groups of a namespace, or of all if it is empty.
func (t *tracing) groupsIn(ctx context.Context, namespace string) error {
	_, err := pager.Each(ctx, t.reader, &fleetv1.ClusterGroupList{}, func(list *fleetv1.ClusterGroupList) {
		for i := range list.Items {
			t.in.Groups = append(t.in.Groups, &list.Items[i])
		}
	}, client.InNamespace(namespace))
	return t.note(view.ClusterGroup, "Fleet", err)
}

func (t *tracing) deployments(ctx context.Context) error {
	if t.in.Fleet == nil || t.in.Fleet.Status.Namespace == "" {
		return nil
	}
	return t.deploymentsBy(ctx, func(deployment *fleetv1.BundleDeployment) {
		t.in.Deployments = append(t.in.Deployments, deployment)
	}, client.InNamespace(t.in.Fleet.Status.Namespace), client.MatchingLabels{fleetv1.BundleLabel: t.in.Bundle.Name})
}

func (t *tracing) deploymentsBy(ctx context.Context, visit func(*fleetv1.BundleDeployment), options ...client.ListOption) error {
	_, err := pager.Each(ctx, t.reader, &fleetv1.BundleDeploymentList{}, func(list *fleetv1.BundleDeploymentList) {
		for i := range list.Items {
			visit(&list.Items[i])
		}
	}, options...)
	if errors.Is(err, errNotInFile) {
		err = nil // In a file, it is not an error to have none: the cluster may have none, or they were not exported.
	}
	return t.note(view.Deployment, "Fleet", err)
}

func sortedStrings(in []string) []string { return slices.Sorted(slices.Values(in)) }
