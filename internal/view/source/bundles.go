package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/targets"
)

const (
	// bundlePage is how many Bundles are read at a time: one can be larger than a megabyte.
	bundlePage = 25
	// appliedLabel is on the Bundles of Fleet's agents, one for each Cluster, and of HelmChartProxies.
	appliedLabel = "objectset.rio.cattle.io/hash"
)

// Inspection has the Bundles that may reach some Clusters.
type Inspection struct {
	reader  client.Reader
	scope   Scope
	objects *view.Objects
	// clusters are the Fleet Clusters in question; nil means all.
	clusters map[types.NamespacedName]bool
	bundles  []*fleetv1.Bundle
	// failed are the nodes of those that failed.
	failed map[types.NamespacedName]*view.Node
	notes  []string
}

// Inspect reads the Bundles that may reach the Clusters of a graph, which was made of these objects. Without a graph it
// reads those that may reach any Cluster of the scope.
func Inspect(ctx context.Context, reader client.Reader, scope Scope, objects *view.Objects, graph *view.Graph) (*Inspection, error) {
	i := &Inspection{reader: reader, scope: scope, objects: objects, failed: map[types.NamespacedName]*view.Node{}}
	for _, namespace := range i.choose(graph) {
		if err := i.read(ctx, namespace); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(i.bundles, func(a, b *fleetv1.Bundle) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return i, nil
}

// choose sets the Clusters in question, and returns the namespaces from which Bundles may reach them; "" means all.
func (i *Inspection) choose(graph *view.Graph) []string {
	if graph == nil && i.scope.Namespace == "" {
		return []string{""}
	}
	i.clusters = map[types.NamespacedName]bool{}
	namespaces := map[string]bool{}
	if graph != nil {
		i.chooseFrom(graph)
	} else {
		namespaces[i.scope.Namespace] = true
		for key := range i.objects.FleetClusters {
			i.clusters[key] = true
		}
	}
	for key := range i.clusters {
		namespaces[key.Namespace] = true
	}
	with := slices.Collect(maps.Keys(namespaces))
	for key, mapping := range i.objects.Mappings {
		if slices.ContainsFunc(with, func(namespace string) bool { return targets.Leads(mapping, namespace, i.objects.Namespaces[namespace]) }) {
			namespaces[key.Namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(namespaces))
}

func (i *Inspection) chooseFrom(graph *view.Graph) {
	byNamespace := map[string]types.NamespacedName{}
	for key, fleet := range i.objects.FleetClusters {
		byNamespace[fleet.Namespace] = key
	}
	graph.Walk(func(node, _ *view.Node) {
		key, found := byNamespace[node.Fact(view.FactFleetNS)]
		if found && node.Fact(view.FactFleetNS) != "" {
			i.clusters[key] = true
		}
	})
}

func (i *Inspection) read(ctx context.Context, namespace string) error {
	others, err := labels.NewRequirement(appliedLabel, selection.DoesNotExist, nil)
	utilruntime.Must(err) // The label is constant.
	_, err = pager.Each(ctx, i.reader, &fleetv1.BundleList{}, func(list *fleetv1.BundleList) {
		for at := range list.Items {
			bundle := &list.Items[at]
			if !bundle.DeletionTimestamp.IsZero() {
				continue
			}
			i.bundles = append(i.bundles, cutBundle(bundle))
			if node := view.FailedBundle(bundle); node != nil {
				i.failed[client.ObjectKeyFromObject(bundle)] = node
			}
		}
	}, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*others)}, client.Limit(bundlePage))
	if err == nil || errors.Is(err, errNotInFile) {
		return nil // In a file, it is not an error to have none: the cluster may have none, or they were not exported.
	}
	why := unreadable(err, "Fleet")
	if why == "" {
		return fmt.Errorf("reading %s: %w", view.Bundle.Plural(), err)
	}
	of := view.Bundle.Plural()
	if namespace != i.scope.Namespace {
		of += " of namespace " + namespace
	}
	i.notes = append(i.notes, message.Text(fmt.Sprintf("%s: %s; they were not checked", of, why)))
	return nil
}

// Problems returns the Bundles that failed, and those that share their name on a Cluster in question. Notes say what
// could not be read.
func (i *Inspection) Problems(ctx context.Context) (problems []*view.Node, notes []string, err error) {
	twins := i.twins()
	if len(twins) == 0 && (i.clusters == nil || len(i.failed) == 0) {
		return i.failedOn(nil), i.notes, nil
	}
	index, why, err := i.index(ctx)
	if err != nil {
		return nil, nil, err
	}
	if index == nil {
		if i.clusters == nil {
			problems = i.failedOn(nil)
		}
		return problems, append(slices.Clone(i.notes), why), nil
	}
	problems = append(i.failedOn(index), i.sameNames(index, twins)...)
	slices.SortStableFunc(problems, func(a, b *view.Node) int { return strings.Compare(a.Key(), b.Key()) })
	return problems, i.notes, nil
}

// failedOn returns the failed Bundles; with an index those that are for the Clusters in question.
func (i *Inspection) failedOn(index *targets.Index) (result []*view.Node) {
	for _, bundle := range i.bundles {
		if node := i.failed[client.ObjectKeyFromObject(bundle)]; node != nil && (i.clusters == nil || len(i.membersOf(index, bundle)) > 0) {
			result = append(result, node)
		}
	}
	return result
}

// membersOf returns the Clusters in question that a Bundle targets, or may target if its targets cannot be parsed.
func (i *Inspection) membersOf(index *targets.Index, bundle *fleetv1.Bundle) []types.NamespacedName {
	members, err := index.MembersOf(bundle)
	if err != nil {
		members = index.Reached(bundle)
	}
	var result []types.NamespacedName
	for _, member := range members {
		if i.clusters == nil || i.clusters[member.NamespacedName] {
			result = append(result, member.NamespacedName)
		}
	}
	return result
}

// twins returns the Bundles that share their name with one that a mapping may lead to the same Clusters.
func (i *Inspection) twins() (result []*fleetv1.Bundle) {
	leaves := map[string]bool{} // Whether a namespace has mappings.
	for key := range i.objects.Mappings {
		leaves[key.Namespace] = true
	}
	count, mapped := map[string]int{}, map[string]bool{}
	for _, bundle := range i.bundles {
		count[bundle.Name]++
		mapped[bundle.Name] = mapped[bundle.Name] || leaves[bundle.Namespace]
	}
	for _, bundle := range i.bundles {
		if count[bundle.Name] > 1 && mapped[bundle.Name] {
			result = append(result, bundle)
		}
	}
	return result
}

// sameNames returns a node for each two Bundles that share their name on a Cluster.
func (i *Inspection) sameNames(index *targets.Index, twins []*fleetv1.Bundle) (result []*view.Node) {
	type place struct {
		name string
		on   types.NamespacedName
	}
	first := map[place]types.NamespacedName{}
	shared := map[[2]types.NamespacedName][]string{}
	for _, bundle := range twins { // They are sorted by namespace.
		key := client.ObjectKeyFromObject(bundle)
		for _, member := range i.membersOf(index, bundle) {
			here := place{bundle.Name, member}
			if other, taken := first[here]; taken {
				pair := [2]types.NamespacedName{other, key}
				shared[pair] = append(shared[pair], member.String())
			} else {
				first[here] = key
			}
		}
	}
	for pair, on := range shared {
		result = append(result, view.SameName(pair[0], pair[1], sortedStrings(on)))
	}
	slices.SortFunc(result, func(a, b *view.Node) int { return strings.Compare(a.Key()+a.Message, b.Key()+b.Message) })
	return result
}

// index reads the Clusters in question, and returns nil with a note if what decides about targets could not be read.
func (i *Inspection) index(ctx context.Context) (*targets.Index, string, error) {
	within := map[string]bool{"": i.clusters == nil}
	for key := range i.clusters {
		within[key.Namespace] = true
	}
	var clusters []*fleetv1.Cluster
	var unread error
	for namespace, wanted := range within {
		if !wanted {
			continue
		}
		_, err := pager.Each(ctx, i.reader, metadataList(fleetv1.SchemeGroupVersion.WithKind("ClusterList")), func(list *metav1.PartialObjectMetadataList) {
			clusters = append(clusters, withLabels(list)...)
		}, client.InNamespace(namespace))
		unread = errors.Join(unread, err)
	}
	cannot := func(kind view.Kind, why string) string {
		return message.Text(fmt.Sprintf("%s: %s; so it is unknown which Clusters the Bundles are for", kind.Plural(), why))
	}
	if unread != nil {
		why := unreadable(unread, "Fleet")
		if why == "" {
			return nil, "", fmt.Errorf("reading %s: %w", view.FleetCluster.Plural(), unread)
		}
		return nil, cannot(view.FleetCluster, why), nil
	}
	for _, kind := range []view.Kind{view.ClusterGroup, view.Mapping} {
		if why := i.objects.Unread[kind]; why != "" && why != errNotInFile.Error() {
			return nil, cannot(kind, why), nil
		}
	}
	return targets.NewIndex(clusters, slices.Collect(maps.Values(i.objects.Groups)), slices.Collect(maps.Values(i.objects.Mappings)), i.objects.Namespaces), "", nil
}

// withLabels returns Fleet Clusters with the fields by which Bundles target them.
func withLabels(list *metav1.PartialObjectMetadataList) (result []*fleetv1.Cluster) {
	for i := range list.Items {
		cluster := &fleetv1.Cluster{}
		cluster.Namespace, cluster.Name, cluster.Labels = list.Items[i].Namespace, list.Items[i].Name, list.Items[i].Labels
		result = append(result, cluster)
	}
	return result
}
