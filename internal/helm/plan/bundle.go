package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// defaultTimeout and defaultHistory are the defaults of cluster-api-addon-provider-helm.
	defaultTimeout = 10 * time.Minute
	defaultHistory = 10

	// MaxTargets is the maximum number of targets in a Bundle. When one changes, Fleet sends a request for each
	// of them; but each further Bundle holds another copy of the chart.
	MaxTargets = 250

	// ChartAnnotation on a Bundle is the Chart that it carries, as JSON.
	ChartAnnotation = stamp.Domain + "/chart"
	// ContentLabel on a Bundle is the digest of all but its targets. Fleet copies it to the BundleDeployments
	// in the same write that changes them, so it shows which content they have.
	ContentLabel = stamp.Domain + "/content"

	// ValuesSecretType is the type of Secrets with values.
	ValuesSecretType corev1.SecretType = stamp.Domain + "/helm-values"
	// CredentialsSecretType is the type of Secrets with credentials. For HelmChartProxies, Muster writes only
	// Secrets of these two types.
	CredentialsSecretType corev1.SecretType = stamp.Domain + "/helm-access"

	// SecretKind is the kind of objects with values from Secrets.
	SecretKind = "Secret"
	// ConfigMapKind is the kind of all other objects with values.
	ConfigMapKind = "ConfigMap"
)

// Chart describes the chart that a Bundle carries, or that agents download.
type Chart struct {
	// Source is the repository, the name and the version in the HelmChartProxy.
	Source string `json:"source"`
	// Version is exact.
	Version string `json:"version"`
	// Digest is the digest of the files; empty if agents download them.
	Digest string `json:"digest,omitempty"`
	// Hooks says that the chart has hooks that run at an install or an upgrade, and DeleteHooks that it has
	// hooks that run at an uninstall.
	Hooks       bool `json:"hooks,omitempty"`
	DeleteHooks bool `json:"deleteHooks,omitempty"`
	// Agent says that the agents download the chart, and Large that the reason is its size: it does not fit
	// into a Bundle.
	Agent bool `json:"agent,omitempty"`
	Large bool `json:"large,omitempty"`
}

// emptyChart is the folder of an empty chart, which every Bundle with files carries: see Emptied.
const emptyChart = "muster-empty"

// WithEmptyChart returns the files of a Bundle: the chart's files and the empty chart.
func WithEmptyChart(files []fleetv1.BundleResource) []fleetv1.BundleResource {
	return append(slices.Clone(files), fleetv1.BundleResource{Name: emptyChart + "/Chart.yaml", Content: "apiVersion: v2\nname: " + emptyChart + "\nversion: 1.0.0\n"})
}

// DigestOfFiles returns the digest of the files of a Bundle.
func DigestOfFiles(files []fleetv1.BundleResource) string {
	sum := sha256.New()
	for _, its := range files {
		fmt.Fprintf(sum, "%d %d %d %s%s%s", len(its.Name), len(its.Content), len(its.Encoding), its.Name, its.Content, its.Encoding)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}

// SourceOf returns the Source of the chart of a HelmChartProxy.
func SourceOf(proxy *addonsv1.HelmChartProxy) string {
	return proxy.Spec.RepoURL + " " + proxy.Spec.ChartName + " " + proxy.Spec.Version
}

// ChartOf returns the chart of a Bundle.
func ChartOf(bundle *fleetv1.Bundle) (Chart, bool) {
	var chart Chart
	err := json.Unmarshal([]byte(bundle.Annotations[ChartAnnotation]), &chart)
	return chart, err == nil && chart.Version != ""
}

// NewBundle returns a Bundle without targets and files. Credentials is the digest of the Secret with
// which agents reach the repository; empty without one.
func NewBundle(proxy *addonsv1.HelmChartProxy, namespace, name string, chart Chart, credentials string) *fleetv1.Bundle {
	bundle := &fleetv1.Bundle{
		TypeMeta:   metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Bundle"},
		ObjectMeta: Meta(Key{Namespace: proxy.Namespace, Name: proxy.Name}, namespace, name),
	}
	spec := &bundle.Spec
	spec.DefaultNamespace = ReleaseNamespace(proxy)
	spec.ServiceAccount = proxy.Spec.ServiceAccount
	spec.Helm = helmOptions(proxy, chart)
	spec.KeepResources = IsInstallOnce(proxy)
	spec.DeleteCRDResources = !spec.KeepResources // As in Helm, CRDs in templates are deleted with the release.
	if ptr.Deref(proxy.Spec.CorrectDrift, false) {
		spec.CorrectDrift = &fleetv1.CorrectDrift{Enabled: true}
	}
	if chart.Agent {
		byAgents(proxy, bundle, chart.Version)
	}
	spec.TargetCustomizationMode = fleetv1.TargetCustomizationModeFirstMatch // This is the API server's default.
	bundle.Annotations[ChartAnnotation] = JSON(chart)
	bundle.Labels[unmappedLabel] = unmappedLabelValue
	bundle.Labels[ContentLabel] = Digest([]byte(JSON([]any{spec, chart.Version, chart.Digest, credentials})))
	return bundle
}

// byAgents makes the agents download the chart. Fleet turns a HelmOp into the same Bundle, but its controller
// would also ask the repository.
func byAgents(proxy *addonsv1.HelmChartProxy, bundle *fleetv1.Bundle, version string) {
	spec, helm := &proxy.Spec, bundle.Spec.Helm
	helm.Repo, helm.Chart, helm.Version = spec.RepoURL, spec.ChartName, version
	if isRegistry(spec.RepoURL) {
		helm.Repo, helm.Chart = strings.TrimSuffix(spec.RepoURL, "/")+"/"+spec.ChartName, ""
	}
	bundle.Spec.HelmOpOptions = &fleetv1.BundleHelmOptions{InsecureSkipTLSverify: spec.TLSConfig != nil && spec.TLSConfig.InsecureSkipTLSVerify}
	if NeedsCredentials(proxy) {
		bundle.Spec.HelmOpOptions.SecretName = CredentialsName(proxy, bundle.Name)
	}
}

// isRegistry reports whether a repository is an OCI registry.
func isRegistry(repoURL string) bool { return strings.HasPrefix(repoURL, "oci://") }

// CheckAgent returns an error if Fleet's agents cannot download a chart in some version.
func CheckAgent(repoURL, chart, version string) error {
	switch {
	case strings.HasSuffix(strings.ToLower(chart), ".tgz"):
		return fmt.Errorf("a name that ends in .tgz is treated as a URL by Fleet")
	case isRegistry(repoURL) && strings.Contains(version, "+"):
		return fmt.Errorf("version %s has build metadata, and Fleet does not find such versions in an OCI registry", version)
	}
	return nil
}

// NeedsCredentials reports whether access to the repository needs the contents of Secrets.
func NeedsCredentials(proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.Credentials != nil || proxy.Spec.TLSConfig != nil && proxy.Spec.TLSConfig.CASecretRef != nil
}

// Meta returns the metadata of an object that Muster creates for a HelmChartProxy. It has no owner reference to
// the HelmChartProxy: clusterctl move deletes HelmChartProxies, and the garbage collector would uninstall
// everything.
func Meta(proxy Key, namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: Labels(proxy), Annotations: map[string]string{ProxyAnnotation: proxy.String()},
	}
}

func helmOptions(proxy *addonsv1.HelmChartProxy, chart Chart) *fleetv1.HelmOptions {
	options := &proxy.Spec.Options
	helm := &fleetv1.HelmOptions{
		ReleaseName:       ReleaseName(proxy),
		DisablePreProcess: true,
		Force:             options.Upgrade.Force,
		TakeOwnership:     options.TakeOwnership,
		MaxHistory:        cmp.Or(options.Upgrade.MaxHistory, defaultHistory),
		Atomic:            options.Atomic,
	}
	// Without a timeout Fleet gives hooks 30 s (seen on Fleet 0.16), and with one it waits for all resources.
	if Waits(proxy) || chart.Hooks {
		timeout := ptr.Deref(options.Timeout, metav1.Duration{Duration: defaultTimeout})
		helm.TimeoutSeconds = max(1, int(timeout.Seconds()))
		helm.WaitForJobs = options.WaitForJobs
	}
	if !HasValues(proxy) {
		// Without values, Helm would keep the values of the last release.
		helm.Values = &fleetv1.GenericMap{Data: map[string]any{"global": map[string]any{}}}
	}
	return helm
}

// Waits reports whether the author asks Helm to wait.
func Waits(proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.Options.Wait || proxy.Spec.Options.Atomic
}

// HasValues reports whether releases have values of their own. In a rollout every release has values: the name of
// their object shows whether Fleet has applied a change to a Cluster.
func HasValues(proxy *addonsv1.HelmChartProxy) bool { return SetsValues(proxy) || IsStaged(proxy) }

// SetsValues reports whether a HelmChartProxy sets any values.
func SetsValues(proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.ValuesTemplate != "" || len(proxy.Spec.ValuesFrom) > 0
}

// StrategyFor returns the rollout strategy with which Fleet updates only some targets of a Bundle, and leaves the
// BundleDeployments of all others as they are; nil if it may update all. Fleet updates the targets that a partition
// lists, all in one pass, and also creates BundleDeployments only for those (test/differential compares this).
func StrategyFor(targets []fleetv1.BundleTarget, isHeld func(fleetCluster string) bool) *fleetv1.RolloutStrategy {
	var listed []fleetv1.Partition
	for _, target := range targets {
		if !isHeld(target.ClusterName) {
			listed = append(listed, fleetv1.Partition{Name: target.ClusterName, ClusterName: target.ClusterName})
		}
	}
	switch {
	case len(listed) == len(targets):
		return nil
	case len(listed) == 0: // Without any partition, Fleet updates all targets.
		listed = append(listed, fleetv1.Partition{Name: noCluster, ClusterName: noCluster})
	}
	return &fleetv1.RolloutStrategy{Partitions: listed}
}

// noCluster matches no Fleet Cluster, because names have no slash.
const noCluster = "muster/nobody"

// TargetOf returns the target for a release with a record; false if its values are not written yet.
func TargetOf(proxy *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy, record Record) (fleetv1.BundleTarget, bool) {
	target := fleetv1.BundleTarget{Name: record.FleetCluster, ClusterName: record.FleetCluster}
	if record.FleetCluster == "" || HasValues(proxy) && record.Digest == "" {
		return target, false
	}
	target.Helm = &fleetv1.HelmOptions{}
	if release.Spec.ReleaseName != ReleaseName(proxy) {
		target.Helm.ReleaseName = release.Spec.ReleaseName
	}
	if record.Digest != "" {
		name := ValuesName(Key{Namespace: proxy.Namespace, Name: proxy.Name}, release.Spec.ClusterRef.Namespace, record.FleetCluster, record.Revision)
		target.Helm.ValuesFrom = valuesFrom(record, name)
		target.DownstreamResources = []fleetv1.DownstreamResource{{Kind: KindOfValues(record.Secret), Name: name}}
	}
	if record.Leaving == Emptied && !release.DeletionTimestamp.IsZero() {
		target.Helm.Chart = emptyChart
	}
	if record.Rollout != nil {
		target.Helm.Version = record.Rollout.Version
	}
	if target.Helm.ReleaseName == "" && target.Helm.Chart == "" && target.Helm.Version == "" && target.Helm.ValuesFrom == nil {
		target.Helm = nil
	}
	target.ForceSyncGeneration = record.Sync
	if !record.Installed && !record.Unforced {
		// With Force, Helm installs by client-side apply, and later upgrades win over changes by others, as
		// with Helm 3. Force is not part of the deployment's ID: its removal deploys nothing, and takes effect
		// with the next change.
		target.CorrectDrift = &fleetv1.CorrectDrift{Enabled: ptr.Deref(proxy.Spec.CorrectDrift, false), Force: true}
	}
	return target, true
}

// KindOfValues returns the kind of an object with values, by whether they are from a Secret.
func KindOfValues(isSecret bool) string {
	if isSecret {
		return SecretKind
	}
	return ConfigMapKind
}

func valuesFrom(record Record, name string) []fleetv1.ValuesFrom {
	var result []fleetv1.ValuesFrom
	for _, key := range record.Keys {
		of, key := fleetv1.LocalObjectReference{Name: name}, record.Key(key)
		if record.Secret {
			result = append(result, fleetv1.ValuesFrom{SecretKeyRef: &fleetv1.SecretKeySelector{LocalObjectReference: of, Key: key}})
		} else {
			result = append(result, fleetv1.ValuesFrom{ConfigMapKeyRef: &fleetv1.ConfigMapKeySelector{LocalObjectReference: of, Key: key}})
		}
	}
	return result
}

// Shard returns the Bundle for a Cluster: the first one with room. Counts are the current numbers of targets in
// each Bundle.
func Shard(proxy *addonsv1.HelmChartProxy, cluster Key, counts map[Key]int) string {
	for shard := 0; ; shard++ {
		name := BundleName(proxy, cluster, shard)
		if IsInstallOnce(proxy) || counts[Key{Namespace: cluster.Namespace, Name: name}] < mostTargets(proxy) {
			return name
		}
	}
}

// mostTargets returns how many targets fit into a Bundle: each target names all layers of its values, and etcd limits
// the size of the Bundle with its chart.
func mostTargets(proxy *addonsv1.HelmChartProxy) int {
	const layers = 4
	return MaxTargets / (1 + len(proxy.Spec.ValuesFrom)/layers)
}

// SortTargets puts targets into the order in which a Bundle has them.
func SortTargets(targets []fleetv1.BundleTarget) {
	slices.SortFunc(targets, func(a, b fleetv1.BundleTarget) int { return cmp.Compare(a.ClusterName, b.ClusterName) })
}

// Digest returns a digest that fits a label value.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// JSON returns a value of the API, which can always be encoded, as JSON.
func JSON(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// OwnedBy returns the owner references of an object that is deleted with its Bundle.
func OwnedBy(bundle *fleetv1.Bundle) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Bundle", Name: bundle.Name, UID: bundle.UID}}
}

// KeepsLabel on a BundleDeployment of Muster names the Bundle for whose Clusters it keeps a Content.
const KeepsLabel = "keeps-content-of." + stamp.Domain

// Keeper returns a BundleDeployment that deploys nothing, and keeps a Content from being deleted.
func Keeper(proxy, bundle Key, content string) *fleetv1.BundleDeployment {
	keeper := &fleetv1.BundleDeployment{ObjectMeta: Meta(proxy, bundle.Namespace, bundle.Name+".keeps-"+stamp.Label("/"+content, onlyHash))}
	keeper.Labels[KeepsLabel], keeper.Labels[fleetv1.ContentNameLabel] = bundle.Name, content
	keeper.Spec.Paused = true
	return keeper
}
