// Package plan decides what Fleet does for a HelmChartProxy: the Bundles with their targets, the
// objects with values, and the status. It is pure: it
// takes objects and the files of a chart and returns objects. It knows neither an API
// server nor Helm's library, so that `syncer render` and the webhook decide as the program
// does that fetches charts.
//
// A HelmChartProxy becomes Bundles in each namespace with selected Clusters, and each
// Cluster one target of one of them, by the name that it is pinned to in Fleet. Values that
// differ from Cluster to Cluster lie in a ConfigMap for each, which Fleet carries along:
// a change of one Cluster writes one object, and concerns no other.
package plan

import (
	"fmt"
	"regexp"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Keys of the objects that are made for a HelmChartProxy.
const (
	// ProxyLabel and ProxyNamespaceLabel name the HelmChartProxy; the first is shortened if
	// it does not fit a label value.
	ProxyLabel          = "helmchartproxy-name." + stamp.Domain
	ProxyNamespaceLabel = "helmchartproxy-namespace." + stamp.Domain
	// ProxyAnnotation holds its full name.
	ProxyAnnotation = stamp.Domain + "/helmchartproxy"
	// ChartAnnotation on a Bundle says which chart it holds: repository, name, version.
	ChartAnnotation = stamp.Domain + "/chart"
	// VersionAnnotation on a Bundle is the exact version of the chart.
	VersionAnnotation = stamp.Domain + "/chart-version"
	// InstalledOnAnnotation on a Bundle that is paused, because it is installed once, is the UID
	// of the Cluster that it is installed on.
	InstalledOnAnnotation = stamp.Domain + "/installed-on"
	// ValuesKey is the key of values in ConfigMaps and Secrets.
	ValuesKey = "values.yaml"
)

const (
	// unmappedLabel keeps a Bundle from being mapped to other namespaces: Muster's mappings leave
	// out what has it, for the sake of Fleet's agents, which have such Bundles, too. A Bundle that
	// names its targets would otherwise reach their namesakes.
	unmappedLabel      = "objectset.rio.cattle.io/hash"
	unmappedLabelValue = "muster-helmchartproxy"

	prefix = "hcp-"
	// longestName is what Helm allows for a release, and what Fleet's agents make one of.
	longestName = 53
)

// Key is what tells HelmChartProxies apart.
type Key = types.NamespacedName

// Labels returns the labels of everything that is made for a HelmChartProxy.
func Labels(proxy Key) map[string]string {
	name, _ := stamp.LabelValue(proxy.Name)
	return map[string]string{
		stamp.ManagedByLabel: stamp.ManagedBy,
		ProxyLabel:           name,
		ProxyNamespaceLabel:  proxy.Namespace,
	}
}

// BundleName returns the name of the first Bundle for Clusters of a namespace, or of that
// for one of them. A release of another name or namespace is another Bundle: a Bundle whose
// release is renamed keeps the old one for a quarter of an hour, and for good if it is deleted
// meanwhile.
func BundleName(proxy *addonsv1.HelmChartProxy, namespace, fleetCluster string) string {
	identity := strings.Join([]string{readable(client.ObjectKeyFromObject(proxy), namespace), ReleaseNamespace(proxy), ReleaseName(proxy), fleetCluster}, "/")
	return prefix + stamp.Label(identity, longestName-len(prefix))
}

// mostShards is how many Bundles one release can have in a namespace; each has at least
// fewestTargets.
const mostShards = 256

// IsBundleName reports whether a Bundle has a name that is given for the release that a
// HelmChartProxy has.
func IsBundleName(proxy *addonsv1.HelmChartProxy, bundle *fleetv1.Bundle) bool {
	targets := bundle.Spec.Targets // One that is for one Cluster has no other target.
	if len(targets) == 1 && bundle.Name == BundleName(proxy, bundle.Namespace, targets[0].ClusterName) {
		return true
	}
	first := BundleName(proxy, bundle.Namespace, "")
	for shard := range mostShards {
		if bundle.Name == shardName(first, shard) {
			return true
		}
	}
	return false
}

// MayBeOurs reports whether a name begins as all do that are given.
func MayBeOurs(name string) bool { return strings.HasPrefix(name, prefix) }

// IsGivenName reports whether a Bundle has a name that is given for a HelmChartProxy, which may
// be gone or have another release now, and for the release that the Bundle deploys.
func IsGivenName(proxy Key, bundle *fleetv1.Bundle) bool {
	if bundle.Spec.Helm == nil {
		return false
	}
	its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: proxy.Namespace, Name: proxy.Name}}
	its.Spec.ReleaseName, its.Spec.ReleaseNamespace = bundle.Spec.Helm.ReleaseName, bundle.Spec.DefaultNamespace
	return IsBundleName(its, bundle)
}

// IsValuesName reports whether an object with values has a name that is given.
func IsValuesName(proxy, object Key) bool {
	base := valuesBase(proxy, object.Namespace)
	_, isShared := NumberOf(object.Name, sharedName(base))
	return isShared || strings.HasPrefix(object.Name, valuesName(base, ""))
}

// valuesBase is how the names of the objects with values for a namespace of Clusters begin.
func valuesBase(proxy Key, namespace string) string {
	return prefix + stamp.Label(readable(proxy, namespace), longestName-len(prefix))
}

// readable names a HelmChartProxy. What is made of several may meet in one namespace.
func readable(proxy Key, namespace string) string {
	if proxy.Namespace == namespace {
		return proxy.Name
	}
	return proxy.Namespace + "/" + proxy.Name
}

// shardName returns the name of a further Bundle.
func shardName(first string, shard int) string {
	if shard == 0 {
		return first
	}
	return stamp.Label(fmt.Sprintf("%s/%d", first, shard), longestName)
}

// ReleaseName returns the name of the release. It is the same on every Cluster.
func ReleaseName(proxy *addonsv1.HelmChartProxy) string {
	if proxy.Spec.ReleaseName != "" {
		return proxy.Spec.ReleaseName
	}
	return stamp.Label(proxy.Name, longestName)
}

// GeneratedName matches the names that Helm generates for releases: something of the chart's name,
// and the second.
var GeneratedName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?-[0-9]{10}$`)

// IsGeneratedOf reports whether Helm may have generated a name for a release of a chart.
func IsGeneratedOf(chart, name string) bool {
	base, _, _ := strings.Cut(chart[strings.LastIndex(chart, "/")+1:], ".")
	return len(name) <= longestName && GeneratedName.MatchString(name) && name[:len(name)-len("-1234567890")] == base
}

// ReleaseNamespace returns the namespace of the release.
func ReleaseNamespace(proxy *addonsv1.HelmChartProxy) string {
	if proxy.Spec.ReleaseNamespace != "" {
		return proxy.Spec.ReleaseNamespace
	}
	return "default"
}

// sharedName is the name of the object with values for all Clusters of a namespace, and
// valuesName that of one Cluster's. No Bundle of ours has a dot in its name: Fleet deletes
// Secrets that are named like one.
func sharedName(bundle string) string { return bundle + ".for-all" }

func valuesName(bundle, fleetCluster string) string { return bundle + ValuesSuffix(fleetCluster) }

const accessInfix = ".for-agents-"

// AccessName returns the name of the Secret with which agents of a namespace of Clusters reach the
// repository. Another repository has another Secret: nobody is to send to one what is for the other.
func AccessName(proxy *addonsv1.HelmChartProxy, namespace string) string {
	// No name has a slash in front: it makes the hash be of all.
	return valuesBase(client.ObjectKeyFromObject(proxy), namespace) + accessInfix + stamp.Label("/"+proxy.Spec.RepoURL, onlyHash)
}

// IsAccessName reports whether a Secret in a namespace of Clusters has a name that AccessName gives.
func IsAccessName(proxy Key, namespace, name string) bool {
	hash, found := strings.CutPrefix(name, valuesBase(proxy, namespace)+accessInfix)
	return found && onlyHashes.MatchString(hash)
}

// MirrorName returns the name of the HelmReleaseProxy for a Cluster.
func MirrorName(proxy Key, cluster Key) string {
	if cluster.Namespace != proxy.Namespace {
		return OtherMirrorName(proxy, cluster)
	}
	return stamp.Subdomain(proxy.Name + "-" + cluster.Name)
}

// OtherMirrorName is the name where another HelmChartProxy and Cluster have the first one: names
// that are joined by dashes can be taken apart in several ways.
func OtherMirrorName(proxy Key, cluster Key) string {
	// No name has a slash: it makes the hash be of all.
	hash := stamp.Label("/"+proxy.Name+"/"+cluster.String(), onlyHash)
	return stamp.Subdomain(proxy.Name + "-" + cluster.Name + "-" + hash)
}

// onlyHash is so short that nothing but the hash is left.
const onlyHash = 9

var onlyHashes = regexp.MustCompile(`^[0-9a-f]{8}$`)

// SharedName returns the name of the object with values for all Clusters of a namespace.
func SharedName(proxy Key, namespace string) string { return sharedName(valuesBase(proxy, namespace)) }

// ValuesName returns the name of the object with one Cluster's values.
func ValuesName(proxy Key, namespace, fleetCluster string) string {
	return valuesName(valuesBase(proxy, namespace), fleetCluster)
}

// ValuesSuffix is how the names of the objects with a Cluster's values end.
func ValuesSuffix(fleetCluster string) string { return ".for." + fleetCluster }

// ProxyOf returns the HelmChartProxy that an object was made for, if it says so.
func ProxyOf(object metav1.Object) (Key, bool) {
	namespace, name, found := strings.Cut(object.GetAnnotations()[ProxyAnnotation], "/")
	return Key{Namespace: namespace, Name: name}, found
}

// maxExpanded is how large values may be, in bytes or so, once every alias in them stands for
// what it refers to: reading them does that.
const maxExpanded = 2 * MaxValues

// isBomb reports whether values become too large when their aliases are resolved.
func isBomb(values []byte) bool {
	var document yaml.Node
	if yaml.Unmarshal(values, &document) != nil {
		return false // Whoever reads them says so.
	}
	return expanded(&document, map[*yaml.Node]int{}) > maxExpanded
}

// expanded returns the size of a node with its aliases resolved, or something beyond what is
// allowed.
func expanded(node *yaml.Node, known map[*yaml.Node]int) int {
	if size, found := known[node]; found {
		return size
	}
	known[node] = maxExpanded + 1 // In case that it holds itself.
	size := len(node.Value) + 1
	if node.Kind == yaml.AliasNode {
		size = expanded(node.Alias, known)
	}
	for _, child := range node.Content {
		if size += expanded(child, known); size > maxExpanded {
			break
		}
	}
	known[node] = size
	return size
}
