package view

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Build returns the graph of the objects.
func Build(objects *Objects) *Graph {
	b := &builder{Objects: objects, graph: &Graph{Counts: map[State]int{}, unread: objects.Unread}, classes: map[types.NamespacedName]*Node{}, namespaces: map[string]*Node{}, proxyOf: map[types.NamespacedName]types.NamespacedName{}, isNamed: map[types.NamespacedName]bool{}}
	current, err := settings.From(objects.Config)
	if err != nil {
		current = settings.Suspended(objects.Config)
		b.note("%s: its selectors cannot be parsed, so nothing changes until it is corrected: %s", Config, message.Text(err.Error()))
	}
	if objects.IsConfigGone {
		current = settings.Suspended(nil)
		b.note("%s: there is none any more: %s", Config, settings.MissingMeans)
	}
	b.settings = current
	b.notes()
	for key := range objects.Classes {
		b.class(key)
	}
	b.clusters()
	b.count(b.graph.Roots)
	b.sort()
	b.graph.Walk(func(node, _ *Node) { node.clean() })
	return b.graph
}

// clean makes names safe to show: anyone may have written them into a file.
func (n *Node) clean() {
	for _, text := range []*string{&n.ID, &n.Namespace, &n.Name} {
		*text = message.Text(*text)
	}
	for i := range n.Facts {
		n.Facts[i].Value = message.Text(n.Facts[i].Value)
	}
	n.Message, n.Do = message.Text(n.Message), message.Text(n.Do)
}

type builder struct {
	*Objects
	settings settings.Settings
	graph    *Graph
	classes  map[types.NamespacedName]*Node
	// namespaces are the nodes between a class and its Clusters, by ID.
	namespaces map[string]*Node
	// proxyOf has the HelmChartProxies by their first Bundle, for the namespaces and Clusters in isNamed.
	proxyOf map[types.NamespacedName]types.NamespacedName
	isNamed map[types.NamespacedName]bool
}

func (b *builder) note(format string, args ...any) {
	b.graph.Notes = append(b.graph.Notes, fmt.Sprintf(format, args...))
}

func (b *builder) notes() {
	for _, kind := range slices.Sorted(maps.Keys(b.Unread)) {
		b.note("%s: %s", kind.Plural(), message.Text(b.Unread[kind]))
	}
	for _, key := range sortedKeys(b.Clusters) {
		if cluster := b.Clusters[key]; b.Server != "" && cluster.Endpoint == b.Server && cluster.Imported != nil && cluster.Imported.Status == "True" {
			b.note("Cluster %s is this management cluster itself: who may write Bundles for it is cluster-admin here", message.Text(key.String()))
		}
	}
	for _, key := range sortedKeys(b.Proxies) {
		if rollout := b.Proxies[key].Rollout; rollout != "" {
			b.note("the rollout of HelmChartProxy %s is %s", message.Text(key.String()), message.Text(rollout))
		}
	}
}

// class returns the node of a class, or the node for Clusters without one.
func (b *builder) class(key types.NamespacedName) *Node {
	if node := b.classes[key]; node != nil {
		return node
	}
	node := &Node{ID: "class/" + key.String(), Kind: ClusterClass, Namespace: key.Namespace, Name: key.Name, State: Ready}
	switch {
	case key == noClass:
		node = &Node{ID: "no-class", Kind: NoClass, Name: "no class", State: Ready}
	case key == onlyInFleet:
		node = &Node{ID: "only-in-fleet", Kind: OnlyInFleet, Name: "only in Fleet", State: Ready}
	case !b.Classes[key] && b.Unread[ClusterClass] == "":
		node.State, node.Reason, node.Message = Problem, classNotThere, "Clusters use this ClusterClass, but it does not exist"
		node.advise()
	}
	b.classes[key] = node
	b.graph.Roots = append(b.graph.Roots, node)
	return node
}

var (
	noClass     = types.NamespacedName{}
	onlyInFleet = types.NamespacedName{Name: "/"} // No class has this name.
)

// clusters puts each Cluster below its class, and each Fleet Cluster without a Cluster below a node of its own.
func (b *builder) clusters() {
	taken := map[types.NamespacedName]bool{}
	byOrigin := b.byOrigin()
	for _, key := range sortedKeys(b.Clusters) {
		cluster := b.Clusters[key]
		fleetKey, fleet := b.fleetOf(key, cluster, byOrigin)
		if fleet != nil {
			taken[fleetKey] = true
		}
		judged := b.judgeCluster(key, cluster, fleet).besides(cluster.Held)
		judged.message = b.named(judged.message, key)
		node := b.clusterNode(key, judged)
		b.describe(node, fleetKey, fleet)
		if cluster.Imported != nil {
			node.addFact(FactSince, Age(b.Now.Sub(cluster.Imported.Since)))
		}
		namespace := b.namespace(cluster.Class, key.Namespace)
		b.judgeNamespace(namespace, cluster)
		namespace.Children = append(namespace.Children, node)
	}
	for _, key := range sortedKeys(b.FleetClusters) {
		if !taken[key] {
			b.onlyInFleet(key, b.FleetClusters[key])
		}
	}
}

// byOrigin maps Clusters to the Fleet Clusters that were made from them.
func (b *builder) byOrigin() map[types.NamespacedName]types.NamespacedName {
	result := map[types.NamespacedName]types.NamespacedName{}
	for _, key := range sortedKeys(b.FleetClusters) {
		fleet := b.FleetClusters[key]
		from := types.NamespacedName{Namespace: key.Namespace, Name: fleet.Origin.Name}
		if cluster := b.Clusters[fleet.Attached]; cluster != nil && cluster.Imported != nil && cluster.Imported.Reason == addonsv1.AttachedReason {
			from = fleet.Attached
		} else if !fleet.Ours || fleet.Origin.Name == "" {
			continue
		}
		if _, found := result[from]; !found {
			result[from] = key
		}
	}
	return result
}

// fleetOf returns the Fleet Cluster of a Cluster, or nil. A pin alone proves nothing.
func (b *builder) fleetOf(key types.NamespacedName, cluster *CAPICluster, byOrigin map[types.NamespacedName]types.NamespacedName) (types.NamespacedName, *InFleet) {
	pinned := types.NamespacedName{Namespace: key.Namespace, Name: cluster.Pin.ClusterName}
	if fleet := b.FleetClusters[pinned]; fleet != nil && (fleet.Origin.Name == "" || fleet.Origin.Name == key.Name) && fleet.Ours {
		return pinned, fleet
	}
	if made, found := byOrigin[key]; found {
		return made, b.FleetClusters[made]
	}
	return pinned, nil
}

func (b *builder) clusterNode(key types.NamespacedName, judged verdict) *Node {
	node := &Node{
		ID: ClusterID(key), Kind: Cluster, Namespace: key.Namespace, Name: key.Name,
		State: judged.state, Reason: judged.reason, Message: judged.message,
	}
	node.advise()
	return node
}

// ClusterID returns the ID of a Cluster's node.
func ClusterID(key types.NamespacedName) string { return "cluster/" + key.String() }

// describe adds facts from the Fleet Cluster, and its Bundles if they were read.
func (b *builder) describe(node *Node, key types.NamespacedName, fleet *InFleet) {
	if fleet == nil {
		return
	}
	switch {
	case fleet.LastSeen.IsZero():
		node.addFact(FactAgent, "never")
	case b.isStale(fleet):
		node.addFact(FactAgent, Age(b.Now.Sub(fleet.LastSeen))+"!")
	default:
		node.addFact(FactAgent, Age(b.Now.Sub(fleet.LastSeen)))
	}
	node.addFact(FactBundles, fleet.ReadyBundles)
	if fleet.ResourcesDesired > 0 {
		node.addFact(FactResources, fmt.Sprintf("%d/%d", fleet.ResourcesReady, fleet.ResourcesDesired))
	}
	node.addFact(FactFleet, key.Name)
	node.addFact(FactFleetNS, fleet.Namespace)
	if fleet.Namespace != "" {
		b.bundles(node, b.Deployments[fleet.Namespace])
	}
}

func (b *builder) onlyInFleet(key types.NamespacedName, fleet *InFleet) {
	judged := b.judgeFleet(fleet)
	class := onlyInFleet
	switch {
	case b.Unread[Cluster] != "" && fleet.Ours:
		// Only the Fleet Cluster can be read.
		class = fleet.Class
	case fleet.Ours:
		judged = verdict{Problem, reasonClusterGone, "Muster made it, and the Cluster from which it was made is gone"}
	}
	judged.message = b.named(judged.message, key)
	node := b.clusterNode(key, judged)
	if class == onlyInFleet {
		node.ID, node.Kind = "fleet-cluster/"+key.String(), FleetCluster
	}
	b.describe(node, key, fleet)
	namespace := b.namespace(class, key.Namespace)
	namespace.Children = append(namespace.Children, node)
}

// namespace returns the node of a namespace below a class.
func (b *builder) namespace(class types.NamespacedName, namespace string) *Node {
	root := b.class(class)
	id := "namespace/" + namespace + "/" + root.ID
	if node := b.namespaces[id]; node != nil {
		return node
	}
	node := &Node{ID: id, Kind: Namespace, Name: namespace, State: Ready}
	if root.Kind == ClusterClass {
		group := class.Name
		if class.Namespace != namespace {
			group = stamp.GroupName(class.Name, class.Namespace)
			node.addFact(FactMapping, class.Namespace+" → "+namespace)
		}
		node.Facts = append([]Fact{{FactGroup, group}}, node.Facts...)
	}
	b.namespaces[id] = node
	root.Children = append(root.Children, node)
	return node
}

// judgeNamespace looks for the group and the mapping that an imported Cluster needs.
func (b *builder) judgeNamespace(namespace *Node, cluster *CAPICluster) {
	isImported := cluster.Imported != nil && cluster.Imported.Status == "True" && cluster.Imported.Reason == addonsv1.ImportedReason
	group := namespace.Fact(FactGroup)
	if namespace.State != Ready || !isImported || group == "" {
		return
	}
	judged := verdict{state: Ready}
	crosses := namespace.Fact(FactMapping) != ""
	mapping := b.Mappings[types.NamespacedName{Namespace: cluster.Class.Namespace, Name: namespace.Name}]
	wanted := b.settings.Class.Enabled
	if crosses {
		wanted = b.settings.Cluster.ApplyClassGroup
	}
	switch {
	case !wanted || b.Unread[Config] != "":
		return
	case b.Groups[types.NamespacedName{Namespace: namespace.Name, Name: group}] == nil && b.Unread[ClusterGroup] == "":
		judged = verdict{Problem, reasonNoGroup, fmt.Sprintf("there is no ClusterGroup %q in namespace %s, so Bundles that target it are not deployed here", group, namespace.Name)}
	case !crosses || b.Unread[Mapping] != "":
	case mapping == nil:
		judged = verdict{Problem, reasonNoMapping, fmt.Sprintf("there is no BundleNamespaceMapping %q in namespace %s, so none of its Bundles are deployed here", namespace.Name, cluster.Class.Namespace)}
	case mapping.BundleSelector == nil || mapping.NamespaceSelector == nil:
		judged = verdict{Problem, reasonMappingRetire, fmt.Sprintf("BundleNamespaceMapping %q in namespace %s maps nothing", namespace.Name, cluster.Class.Namespace)}
	}
	namespace.State, namespace.Reason, namespace.Message = judged.state, judged.reason, judged.message
	namespace.advise()
}

// bundleInText matches what Fleet's messages say about a Bundle that may be a HelmChartProxy's.
var bundleInText = regexp.MustCompile(`Bundle (hcp-[a-z0-9-]+)`)

// named returns a message about a Cluster, with the names of HelmChartProxies instead of those of their Bundles.
func (b *builder) named(text string, cluster types.NamespacedName) string {
	return bundleInText.ReplaceAllStringFunc(text, func(found string) string {
		b.nameBundles(types.NamespacedName{Namespace: cluster.Namespace})
		b.nameBundles(cluster)
		bundle := strings.TrimPrefix(found, "Bundle ")
		for _, first := range []string{bundle, bundle[:strings.LastIndex(bundle, "-")]} { // Further ones end with a number.
			key := types.NamespacedName{Namespace: cluster.Namespace, Name: first} // Bundles are in the namespace of their Clusters.
			if proxy, known := b.proxyOf[key]; known && plan.IsBundleOf(b.Proxies[proxy].names, cluster, bundle) {
				return "HelmChartProxy " + proxy.String()
			}
		}
		return found
	})
}

// nameBundles finds, once, the names of the Bundles in a namespace or, with InstallOnce, those of a Cluster. Others write the
// messages, with any number of names.
func (b *builder) nameBundles(of types.NamespacedName) {
	if b.isNamed[of] {
		return
	}
	b.isNamed[of] = true
	for key, proxy := range b.Proxies {
		if plan.IsInstallOnce(proxy.names) == (of.Name != "") {
			b.proxyOf[types.NamespacedName{Namespace: of.Namespace, Name: plan.BundleName(proxy.names, of, 0)}] = key
		}
	}
}

// bundles puts Bundles below a Cluster, and their troubled resources below them.
func (b *builder) bundles(cluster *Node, deployments []*Deployed) {
	for _, deployed := range deployments {
		node := &Node{
			ID: "bundle/" + deployed.Bundle.String() + "/" + cluster.ID, Kind: Bundle,
			Namespace: deployed.Bundle.Namespace, Name: deployed.Bundle.Name,
			State: judgeBundles(deployed.State), Reason: string(deployed.State), Message: deployed.Message,
		}
		if deployed.Proxy.Name != "" {
			node.Kind, node.Namespace, node.Name = HelmChartProxy, deployed.Proxy.Namespace, deployed.Proxy.Name
		} else {
			node.addFact(FactSource, deployed.Source)
		}
		if node.State == Ready {
			node.Message = ""
		}
		node.advise()
		if deployed.Desired > 0 {
			node.addFact(FactResources, fmt.Sprintf("%d/%d", deployed.Ready, deployed.Desired))
		}
		for i, trouble := range deployed.Troubled {
			node.Children = append(node.Children, &Node{
				ID: fmt.Sprintf("resource/%d/%s", i, node.ID), Kind: Resource, Namespace: trouble.Namespace, Name: trouble.Kind + " " + trouble.Name,
				State: node.State, Message: trouble.Why,
			})
		}
		cluster.Children = append(cluster.Children, node)
	}
	sortNodes(cluster.Children)
}

// count counts the Clusters below each node.
func (b *builder) count(nodes []*Node) {
	for _, root := range nodes {
		root.Counts = map[State]int{}
		root.addFact(FactNamespaces, strconv.Itoa(len(root.Children)))
		for _, namespace := range root.Children {
			namespace.Counts = map[State]int{}
			for _, cluster := range namespace.Children {
				namespace.Counts[cluster.State]++
			}
			for state, count := range namespace.Counts {
				root.Counts[state] += count
				b.graph.Counts[state] += count
			}
		}
	}
}

func (b *builder) sort() {
	last := func(node *Node) int {
		return slices.Index([]Kind{ClusterClass, NoClass, OnlyInFleet}, node.Kind)
	}
	slices.SortFunc(b.graph.Roots, func(x, y *Node) int {
		return cmp.Or(cmp.Compare(last(x), last(y)), strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	for _, root := range b.graph.Roots {
		// The class's own namespace comes first.
		slices.SortFunc(root.Children, func(x, y *Node) int {
			return cmp.Or(boolRank(x.Name == root.Namespace, y.Name == root.Namespace), strings.Compare(x.Name, y.Name))
		})
		for _, namespace := range root.Children {
			sortNodes(namespace.Children)
		}
	}
}

func boolRank(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	default:
		return 1
	}
}

// sortNodes puts the worst first.
func sortNodes(nodes []*Node) {
	slices.SortFunc(nodes, func(x, y *Node) int {
		return cmp.Or(cmp.Compare(x.State.rank(), y.State.rank()), strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
}

func sortedKeys[V any](objects map[types.NamespacedName]V) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(objects), func(a, b types.NamespacedName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}
