// Package plan decides what Fleet deploys for a HelmChartProxy: the names, the Bundles with their targets, and
// the conditions. It is pure: it takes objects and returns objects, and knows neither an API server nor Helm's
// library, so that `kubectl muster render`, the webhook and the controllers decide alike.
//
// Each selected Cluster has one HelmReleaseProxy and is one target of one Bundle. The values of each Cluster
// are in a ConfigMap or Secret of their own, so that a change of one Cluster does not affect the others.
package plan

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Keys of the objects that Muster creates for a HelmChartProxy.
const (
	// ProxyLabel and ProxyNamespaceLabel name the HelmChartProxy; the first is shortened if
	// it does not fit a label value.
	ProxyLabel          = stamp.HelmChartProxyLabel
	ProxyNamespaceLabel = "helmchartproxy-namespace." + stamp.Domain
	// ProxyAnnotation holds the full name of the HelmChartProxy.
	ProxyAnnotation = stamp.Domain + "/helmchartproxy"
	// DeletedAnnotation on a Bundle says that its HelmChartProxy was deleted, and neither moved to another
	// management cluster nor lost: only the targets of Clusters that are being moved stay.
	DeletedAnnotation = stamp.Domain + "/helmchartproxy-deleted"
	// BundleAnnotation on a HelmReleaseProxy names its Bundle, which is in the namespace of the Cluster.
	BundleAnnotation = stamp.Domain + "/bundle"
	// ReleaseAnnotation on an object with values holds the full name of the HelmReleaseProxy.
	ReleaseAnnotation = stamp.Domain + "/helmreleaseproxy"
	// Finalizer is on HelmChartProxies and HelmReleaseProxies until their releases are uninstalled.
	Finalizer = stamp.Domain + "/helm"
	// ValuesKey is the default key of values in ConfigMaps and Secrets.
	ValuesKey = "values.yaml"
)

const (
	// unmappedLabel keeps a Bundle from being mapped to other namespaces: Muster's mappings skip Bundles with
	// this label, because Fleet's agent Bundles have it. A Bundle that names its targets would otherwise reach
	// Clusters of the same name in other namespaces.
	unmappedLabel      = "objectset.rio.cattle.io/hash"
	unmappedLabelValue = "muster-helmchartproxy"

	prefix = "hcp-"
	// longestName is the longest release name that Helm allows; Fleet's agents derive one from a Bundle's name.
	longestName = 53
	// mostShards is enough for 50 000 Clusters in a namespace, even with the least room in each Bundle.
	// longestShard is how much longer the shard makes a name.
	mostShards   = 999
	longestShard = 4
	// onlyHash is so short that stamp.Label keeps only the hash.
	onlyHash = 9
)

// Key names a HelmChartProxy, a HelmReleaseProxy or a Cluster.
type Key = types.NamespacedName

// Labels returns the labels of every object that Muster creates for a HelmChartProxy.
func Labels(proxy Key) map[string]string {
	name, _ := stamp.LabelValue(proxy.Name)
	return map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, ProxyLabel: name, ProxyNamespaceLabel: proxy.Namespace}
}

// ProxyOf returns the HelmChartProxy in an object's annotation.
func ProxyOf(object metav1.Object) (Key, bool) {
	namespace, name, found := strings.Cut(object.GetAnnotations()[ProxyAnnotation], "/")
	return Key{Namespace: namespace, Name: name}, found
}

// ClusterOf returns the Cluster of a HelmReleaseProxy.
func ClusterOf(release *addonsv1.HelmReleaseProxy) Key {
	return Key{Namespace: release.Spec.ClusterRef.Namespace, Name: release.Spec.ClusterRef.Name}
}

// BundleName returns the name of a Bundle for the Clusters of a namespace: the shard with this number, or with
// InstallOnce the Bundle of one Cluster. A release with another name or namespace gets another Bundle: Fleet
// keeps the old release of a renamed Bundle for a quarter of an hour.
func BundleName(proxy *addonsv1.HelmChartProxy, cluster Key, shard int) string {
	only := ""
	if IsInstallOnce(proxy) {
		only = cluster.Name
	}
	identity := strings.Join([]string{readable(Key{Namespace: proxy.Namespace, Name: proxy.Name}, cluster.Namespace), ReleaseNamespace(proxy), ReleaseName(proxy), only}, "/")
	return shardName(prefix+stamp.Label(identity, longestName-len(prefix)-longestShard), shard)
}

func shardName(first string, shard int) string {
	if shard == 0 {
		return first
	}
	return fmt.Sprintf("%s-%d", first, shard) // The name of the first Bundle ends with a longer hash.
}

// IsBundleOf reports whether a Bundle may hold the wanted release of a Cluster.
func IsBundleOf(proxy *addonsv1.HelmChartProxy, cluster Key, bundle string) bool {
	shard, _ := strconv.Atoi(bundle[strings.LastIndex(bundle, "-")+1:])
	first := BundleName(proxy, cluster, 0)
	return bundle == first || shard > 0 && shard <= mostShards && bundle == shardName(first, shard)
}

// MayBeOurs reports whether an object's name has the prefix of all names from this package.
func MayBeOurs(name string) bool { return strings.HasPrefix(name, prefix) }

// IsInstallOnce reports whether Muster leaves releases alone once they are installed.
func IsInstallOnce(proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.ReconcileStrategy == addonsv1.ReconcileStrategyInstallOnce
}

// IsInstalledOnce reports whether an InstallOnce release is already installed, by Muster or by
// cluster-api-addon-provider-helm. The annotation of the latter is not enough: a user could forge it to keep a
// Cluster without the release.
func IsInstalledOnce(proxy *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy) bool {
	if !IsInstallOnce(proxy) {
		return false
	}
	record := RecordOf(release)
	return record.Installed || record.FleetCluster == "" &&
		release.Annotations[addonsv1.ReleaseInstalledAnnotation] == "true" && release.Status.Status == Deployed && release.Status.Revision > 0
}

// base returns the prefix of the names of values for the Clusters of a namespace. Unlike these names, the name
// of a Bundle has no dot: Fleet deletes Secrets that are named like a Bundle.
func base(proxy Key, namespace string) string {
	return prefix + stamp.Label(readable(proxy, namespace), longestName-len(prefix))
}

// readable returns the name of a HelmChartProxy, with its namespace if the Clusters are in another one: objects
// of several HelmChartProxies may meet there.
func readable(proxy Key, namespace string) string {
	if proxy.Namespace == namespace {
		return proxy.Name
	}
	return proxy.Namespace + "/" + proxy.Name
}

// ValuesName returns the name of the object with a Cluster's values, by Fleet Cluster. There are two such
// objects: agents read one while Muster writes the other.
func ValuesName(proxy Key, namespace, fleetCluster string, revision int) string {
	name := base(proxy, namespace) + ".for." + fleetCluster
	if revision%2 == 1 {
		return name + ".1"
	}
	return name
}

// CredentialsName returns the name of the Secret with which the agents of a Bundle's targets reach the
// repository. Each repository has its own Secret, so that none gets the credentials of another.
func CredentialsName(proxy *addonsv1.HelmChartProxy, bundle string) string {
	// No name starts with a slash, so the hash covers everything.
	return bundle + ".for-agents-" + stamp.Label("/"+proxy.Spec.RepoURL, onlyHash)
}

// ReleaseName returns the name of the release, the same on every Cluster.
func ReleaseName(proxy *addonsv1.HelmChartProxy) string {
	return cmp.Or(proxy.Spec.ReleaseName, stamp.Label(proxy.Name, longestName))
}

// generatedName matches the names that Helm generates for releases: part of the chart's name, and the time in
// seconds.
var generatedName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?-[0-9]{10}$`)

// IsGeneratedOf reports whether Helm may have generated a name for a release of a chart.
func IsGeneratedOf(chart, name string) bool {
	base, _, _ := strings.Cut(chart[strings.LastIndex(chart, "/")+1:], ".")
	return len(name) <= longestName && generatedName.MatchString(name) && name[:len(name)-len("-1234567890")] == base
}

// ReleaseNamespace returns the namespace of the release on each Cluster.
func ReleaseNamespace(proxy *addonsv1.HelmChartProxy) string {
	return cmp.Or(proxy.Spec.ReleaseNamespace, "default")
}

// ReleaseProxyNames returns the names that the HelmReleaseProxy of a Cluster may have. It gets the second name
// if the first is taken: different pairs of names may give the same text when joined by dashes.
func ReleaseProxyNames(proxy, cluster Key) []string {
	hash := stamp.Label("/"+proxy.Name+"/"+cluster.String(), onlyHash)
	other := stamp.Subdomain(proxy.Name + "-" + cluster.Name + "-" + hash)
	if cluster.Namespace != proxy.Namespace {
		return []string{other}
	}
	return []string{stamp.Subdomain(proxy.Name + "-" + cluster.Name), other}
}

// OwnerOf returns the owner reference of a HelmReleaseProxy to its HelmChartProxy; nil if it has none.
func OwnerOf(release metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(release)
	if owner == nil || owner.APIVersion != addonsv1.GroupVersion.String() || owner.Kind != "HelmChartProxy" {
		return nil
	}
	return owner
}
