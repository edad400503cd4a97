package oracle

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Helm is the part of the state that is about HelmChartProxies: what users ask for, and what Fleet receives. The
// names of the objects and their number are not part of the contract, so the model compares only their effect.
type Helm struct {
	Proxies map[Key]*addonsv1.HelmChartProxy
	// Published holds the versions of each chart in the repository, the newest last.
	Published map[string][]string
	// Down means that the repository does not answer, and that the program knows only the charts in Bundles.
	Down bool
	// Sources are the ConfigMaps and Secrets that hold values.
	Sources map[Source]map[string]any

	// Policies are Fleet's, in the namespaces of Clusters.
	Policies map[Key]*fleetv1.Policy

	// Seen are the HelmChartProxies that have each release by now, where the contract leaves a choice.
	Seen map[Claim][]Key
	// shares are the HelmChartProxies that may have each release; nil if no two want the same one.
	shares map[Claim][]Key

	// Carriers are the releases that Fleet receives.
	Carriers map[Carriage]*Carrier
	// Asked holds, for each Bundle, or for each Cluster with InstallOnce, the chart that it was last written for. A
	// Bundle without targets has a chart, too.
	Asked map[Carriage]string
	// Installed holds the UIDs of the carriers that Fleet reports as completely installed; with InstallOnce, with
	// the name of the Cluster.
	Installed map[types.UID]string
	// ReleaseProxies holds the Clusters that have a HelmReleaseProxy, each with its reason. Matching holds the
	// Clusters that the status of a HelmChartProxy names.
	ReleaseProxies map[Key]map[string]string
	Matching       map[Key][]string
	// Observed holds the HelmChartProxies whose status has their generation.
	Observed map[Key]bool
	// Wrong lists objects and values that must never exist.
	Wrong []string
	// Garbage lists the Secrets that only the garbage collector may delete, and has yet to. LeftOver lists ConfigMaps
	// that the program has yet to delete.
	Garbage, LeftOver []string
	// Used are the ConfigMaps and Secrets that carriers refer to.
	Used map[Source]bool
}

// Source names an object with values.
type Source struct {
	Kind string
	Key
}

// Carriage is a release that Fleet carries for a HelmChartProxy to the Clusters of a namespace. There may be two
// for a while: Clusters that are moved keep theirs.
type Carriage struct {
	Proxy              Key
	Namespace, Release string
	// Only is the only Fleet Cluster that has the release, with InstallOnce.
	Only string
}

// Carrier is what Fleet receives for the Clusters of a namespace.
type Carrier struct {
	// Download specifies who downloads the chart: with Manager the Bundle holds it, with Agent the agent does it.
	Download                                string
	Chart, Version, ReleaseName, ReleasedIn string
	CorrectDrift                            bool
	ServiceAccount                          string
	// Once means that the release stays even if the carrier goes. Paused means that Fleet does not touch it.
	Once, Paused bool
	// Targets holds the values by Fleet Cluster.
	Targets map[string]any
	// UID is the UID of the object. If the object is made again, Fleet uninstalls its releases meanwhile.
	UID types.UID `json:"-"`
}

// Release names the release, with its namespace.
func (c *Carrier) Release() string { return c.ReleasedIn + "/" + c.ReleaseName }

// DeepCopy returns a copy.
func (c *Carrier) DeepCopy() *Carrier {
	other := *c
	other.Targets = maps.Clone(c.Targets)
	return &other
}

func newHelm() Helm {
	return Helm{
		Proxies: map[Key]*addonsv1.HelmChartProxy{}, Published: map[string][]string{}, Sources: map[Source]map[string]any{},
		Policies: map[Key]*fleetv1.Policy{}, Asked: map[Carriage]string{}, Installed: map[types.UID]string{}, Used: map[Source]bool{},
		Carriers: map[Carriage]*Carrier{}, ReleaseProxies: map[Key]map[string]string{}, Matching: map[Key][]string{}, Observed: map[Key]bool{},
	}
}

func (c Helm) copy() Helm {
	c.Proxies, c.Carriers, c.Sources, c.Policies = copyMap(c.Proxies), copyMap(c.Carriers), maps.Clone(c.Sources), copyMap(c.Policies)
	c.ReleaseProxies, c.Matching, c.Observed = maps.Clone(c.ReleaseProxies), maps.Clone(c.Matching), maps.Clone(c.Observed)
	for proxy, reported := range c.ReleaseProxies {
		c.ReleaseProxies[proxy] = maps.Clone(reported)
	}
	c.Wrong, c.Garbage, c.LeftOver = slices.Clone(c.Wrong), slices.Clone(c.Garbage), slices.Clone(c.LeftOver)
	c.Asked, c.Installed = maps.Clone(c.Asked), maps.Clone(c.Installed)
	return c
}

// convergeHelm makes what HelmChartProxies ask for. If a HelmChartProxy is gone, its carriers keep only the targets of
// moved Clusters.
func (s *State) convergeHelm(in settings) {
	helm := &s.Helm
	helm.Wrong, helm.Garbage, helm.LeftOver = nil, nil, nil
	for of, carrier := range helm.Carriers {
		if helm.Proxies[of.Proxy] == nil {
			helm.carry(of, s.withMoved(of.Namespace, carrier))
		}
	}
	maps.DeleteFunc(helm.Asked, func(of Carriage, _ string) bool { return helm.Proxies[of.Proxy] == nil && !helm.isCarried(of) })
	maps.DeleteFunc(helm.ReleaseProxies, func(proxy Key, _ map[string]string) bool { return helm.Proxies[proxy] == nil })
	maps.DeleteFunc(helm.Matching, func(proxy Key, _ []string) bool { return helm.Proxies[proxy] == nil })
	maps.DeleteFunc(helm.Observed, func(proxy Key, _ bool) bool { return helm.Proxies[proxy] == nil })
	s.share(in)
	s.convergeProxies(in)
}

func (s *State) convergeProxies(in settings) {
	for key, proxy := range s.Helm.Proxies {
		if !has(proxy.Annotations, pauseAnnotation) { // Otherwise Muster writes nothing.
			s.convergeProxy(in, key, proxy)
		}
	}
}

// carry records what Fleet receives; nil removes it.
func (c *Helm) carry(of Carriage, carrier *Carrier) {
	if c.Carriers[of] = carrier; carrier == nil {
		delete(c.Carriers, of)
	}
}

// isCarried reports whether any carrier has the release.
func (c *Helm) isCarried(of Carriage) bool {
	for other := range c.Carriers {
		if other.Proxy == of.Proxy && other.Namespace == of.Namespace && other.Release == of.Release {
			return true
		}
	}
	return false
}

func (s *State) convergeProxy(in settings, key Key, proxy *addonsv1.HelmChartProxy) {
	helm := &s.Helm
	namespaces, releaseProxies := map[string][]*clusterv1.Cluster{}, map[string]string{}
	carriages, bundles := map[Carriage]bool{}, map[Carriage]bool{}
	wanted, _, retained := s.wanted(proxy)
	for _, cluster := range s.chartClusters(proxy) {
		namespaces[cluster.Namespace] = append(namespaces[cluster.Namespace], cluster)
		releaseProxies[client.ObjectKeyFromObject(cluster).String()] = s.reported(in, proxy, cluster)
		of := Carriage{Proxy: key, Namespace: cluster.Namespace, Release: wanted.Release()}
		if wanted.Once {
			if s.isRetained(proxy, cluster) {
				continue // It has its release, whatever the release's name is now.
			}
			fleet := s.fleetClusterOf(in, cluster)
			of.Only = "Cluster " + cluster.Name
			if bundles[of] = true; fleet == nil {
				continue
			}
			of.Only = fleet.Name
		} else {
			bundles[of] = true
		}
		carriages[of] = true
	}
	for of := range helm.Carriers {
		if of.Proxy == key {
			carriages[of] = true
		}
	}
	for of := range carriages {
		helm.carry(of, s.carrier(in, proxy, of, namespaces[of.Namespace]))
	}
	maps.DeleteFunc(helm.Asked, func(of Carriage, _ string) bool {
		return of.Proxy == key && !bundles[of] && !helm.isCarried(of) && !((retained || s.refuses(proxy, of.Namespace)) && len(namespaces[of.Namespace]) > 0)
	})
	for of := range bundles {
		// While the releases are frozen, a Bundle that is there waits for them, and a new one gets no targets.
		if !retained && !s.refuses(proxy, of.Namespace) && !s.waits(proxy, of) && (!in.freezes(proxy) || helm.Asked[of] == "") {
			helm.Asked[of] = asked(proxy)
		}
	}
	helm.Matching[key], helm.ReleaseProxies[key] = slices.Sorted(maps.Keys(releaseProxies)), releaseProxies
	if len(releaseProxies) == 0 {
		delete(helm.Matching, key)
		delete(helm.ReleaseProxies, key)
	}
	helm.Observed[key] = true
}

// isRetained reports whether a Cluster has an InstallOnce release already.
func (s *State) isRetained(proxy *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster) bool {
	for of, carrier := range s.Helm.Carriers {
		if carrier.Once && of.Proxy == client.ObjectKeyFromObject(proxy) && of.Namespace == cluster.Namespace && s.Helm.Installed[carrier.UID] == cluster.Name {
			return true
		}
	}
	return false
}

// asked names the release that a HelmChartProxy specifies.
func asked(proxy *addonsv1.HelmChartProxy) string {
	download := cmp.Or(proxy.Spec.Download, addonsv1.DownloadManager)
	return strings.Join([]string{proxy.Spec.ChartName, proxy.Spec.Version, string(download)}, " ")
}

// waits reports whether a Bundle that does not exist yet waits for its chart.
func (s *State) waits(proxy *addonsv1.HelmChartProxy, of Carriage) bool {
	return s.Helm.Down && proxy.Spec.Download != addonsv1.DownloadAgent && s.Helm.Asked[of] != asked(proxy)
}

// carrier returns what Fleet receives for the given Clusters of one namespace, or nil if that is nothing. If the
// HelmChartProxy has another release now, only the targets of moved Clusters and an InstallOnce release stay.
func (s *State) carrier(in settings, proxy *addonsv1.HelmChartProxy, of Carriage, clusters []*clusterv1.Cluster) *Carrier {
	old := s.Helm.Carriers[of]
	carrier, shared, retained := s.wanted(proxy)
	if old == nil {
		old = &Carrier{}
	}
	installedOn := s.Helm.Installed[old.UID]
	isRetained := carrier.Once && installedOn != ""
	retained = retained || s.refuses(proxy, of.Namespace) || in.freezes(proxy) && of.Release == carrier.Release()
	if !retained && !isRetained && of.Release != carrier.Release() {
		if retained = s.Helm.Down && carrier.Download == "Manager"; !retained { // Otherwise nothing can take its place.
			return s.withMoved(of.Namespace, old)
		}
	}
	carrier.UID = old.UID
	if retained || isRetained {
		carrier = old.DeepCopy()
	}
	carrier.Targets, carrier.Paused = map[string]any{}, isRetained && (old.Paused || !in.freezes(proxy))
	stay := func(name string) {
		if last, was := old.Targets[name]; was {
			carrier.Targets[name] = last
		}
	}
	for _, name := range s.movedOf(of.Namespace, old) {
		stay(name)
	}
	for _, cluster := range clusters {
		if isRetained {
			if cluster.Name == installedOn {
				stay(of.Only)
			}
			continue
		}
		fleet := s.fleetClusterOf(in, cluster)
		if fleet == nil || !isKnown(cluster, fleet) || of.Only != "" && of.Only != fleet.Name {
			continue // It is not in Fleet.
		}
		bundle := of
		if of.Only != "" {
			bundle.Only = "Cluster " + cluster.Name
		}
		own, rendered := s.renderedFor(in, proxy, cluster)
		isUnpinned := !in.enabled && !isClaimed(cluster) // The syncer pins nothing, and without a pin a release gets nothing new.
		if retained || isPaused(cluster) || isUnpinned || !rendered || s.waits(proxy, bundle) {
			stay(fleet.Name) // It keeps its last.
			continue
		}
		if !s.Helm.isFor(client.ObjectKeyFromObject(proxy), Claim{of.Namespace, fleet.Name, of.Release}) {
			continue
		}
		values, _ := own.(map[string]any)
		carrier.Targets[fleet.Name] = plain(merged(shared, values))
	}
	if len(carrier.Targets) == 0 {
		return nil
	}
	return carrier
}

// wanted returns the release that a HelmChartProxy specifies, with the values that all Clusters share. If these
// are not available, retained is true: the carrier stays, except for Clusters that are no longer selected.
func (s *State) wanted(proxy *addonsv1.HelmChartProxy) (carrier *Carrier, shared map[string]any, retained bool) {
	carrier = &Carrier{
		Download: "Manager", Chart: proxy.Spec.ChartName, Version: resolve(proxy.Spec.Version, s.Helm.Published[proxy.Spec.ChartName]),
		ReleaseName: cmp.Or(proxy.Spec.ReleaseName, nameOfRelease(proxy.Name)), ReleasedIn: cmp.Or(proxy.Spec.ReleaseNamespace, "default"),
		CorrectDrift: ptr.Deref(proxy.Spec.CorrectDrift, false), ServiceAccount: proxy.Spec.ServiceAccount, Once: proxy.Spec.ReconcileStrategy == addonsv1.ReconcileStrategyInstallOnce,
	}
	if proxy.Spec.Download == addonsv1.DownloadAgent {
		carrier.Download = "Agent"
	}
	shared, readable := s.sharedValues(proxy)
	return carrier, shared, carrier.Version == "" || !readable || s.Helm.Down && !s.isAtHand(proxy)
}

// refuses reports whether Fleet's Policies refuse the Bundle of a HelmChartProxy in a namespace. All that are there count
// together: if any requires a ServiceAccount, there must be one, and if any lists the allowed ones, it must be in a list.
func (s *State) refuses(proxy *addonsv1.HelmChartProxy, namespace string) bool {
	isRequired, allowed := false, []string{}
	for key, policy := range s.Helm.Policies {
		if key.Namespace == namespace {
			isRequired, allowed = isRequired || policy.RequireServiceAccount, append(allowed, policy.AllowedServiceAccounts...)
		}
	}
	if proxy.Spec.ServiceAccount == "" {
		return isRequired
	}
	return len(allowed) > 0 && !slices.Contains(allowed, proxy.Spec.ServiceAccount)
}

// isAtHand reports whether a Bundle in the namespace of a HelmChartProxy has the chart that it asks for. Bundles in
// other namespaces belong to other tenants.
func (s *State) isAtHand(proxy *addonsv1.HelmChartProxy) bool {
	for of, what := range s.Helm.Asked {
		if of.Proxy == client.ObjectKeyFromObject(proxy) && of.Namespace == proxy.Namespace && what == asked(proxy) {
			return true
		}
	}
	return false
}

// movedOf returns the targets that stay even if their Cluster goes: the Cluster of a released Fleet Cluster is
// being moved to another management cluster, or was, and still runs.
func (s *State) movedOf(namespace string, carrier *Carrier) []string {
	var moved []string
	for name := range carrier.Targets {
		if fleet := s.FleetClusters[Key{Namespace: namespace, Name: name}]; fleet != nil && isOurs(fleet) && fleet.Annotations[released] == "true" {
			moved = append(moved, name)
		}
	}
	return moved
}

// withMoved returns a carrier with only the targets of moved Clusters; nil if there are none.
func (s *State) withMoved(namespace string, carrier *Carrier) *Carrier {
	moved := s.movedOf(namespace, carrier)
	if len(moved) == 0 {
		return nil
	}
	carrier = carrier.DeepCopy()
	maps.DeleteFunc(carrier.Targets, func(name string, _ any) bool { return !slices.Contains(moved, name) })
	return carrier
}

// reported returns the reasons that the condition ClusterAvailable of a HelmReleaseProxy may have. The condition
// reports problems of the Cluster.
func (s *State) reported(in settings, proxy *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster) string {
	fleet := s.fleetClusterOf(in, cluster)
	wanted, _, retained := s.wanted(proxy)
	_, rendered := s.renderedFor(in, proxy, cluster)
	refused := s.refuses(proxy, cluster.Namespace)
	isTaken := fleet != nil && !s.Helm.isFor(client.ObjectKeyFromObject(proxy), Claim{cluster.Namespace, fleet.Name, wanted.Release()})
	reasons := []string{"Available"}
	switch {
	case in.freezes(proxy): // It stays as it was, if it was reported at all.
		reasons = append(reasons, "", "GetClusterFailed", "PolicyRefuses", "ReleaseTaken", "ValueParsingFailed", "HelmReleaseProxyCreationFailed", "HelmReleaseProxySpecsUpdating")
	case fleet == nil || !isKnown(cluster, fleet):
		reasons = []string{"GetClusterFailed"}
	case !isClaimed(cluster) || cluster.Annotations[pinnedName] != fleet.Name: // It has lost its pin.
		reasons = append(reasons, "GetClusterFailed", "PolicyRefuses", "ReleaseTaken", "ValueParsingFailed", "HelmReleaseProxyCreationFailed")
	case s.isRetained(proxy, cluster):
		reasons = append(reasons, "GetClusterFailed") // It may be in Fleet by another name now.
	case !retained && !refused && isTaken:
		reasons = []string{"ReleaseTaken"}
	case refused:
		reasons = []string{"PolicyRefuses"}
	case retained || isPaused(cluster) || s.Helm.Down:
		reasons = append(reasons, "ValueParsingFailed", "HelmReleaseProxyCreationFailed") // The HelmChartProxy reports it.
	case !rendered:
		reasons = []string{"ValueParsingFailed"}
	}
	if (retained || s.Helm.Down) && !in.freezes(proxy) { // It may still ask for an earlier release, which another has.
		reasons = append(reasons, "ReleaseTaken")
	}
	return strings.Join(reasons, orElse)
}

// chartClusters returns the Clusters that a HelmChartProxy selects, of its own namespace or of
// those that its namespaceSelector matches.
func (s *State) chartClusters(proxy *addonsv1.HelmChartProxy) []*clusterv1.Cluster {
	selector, namespaces := parse(&proxy.Spec.ClusterSelector), parse(proxy.Spec.NamespaceSelector)
	var selected []*clusterv1.Cluster
	for _, key := range sorted(s.Clusters) {
		isReached := key.Namespace == proxy.Namespace
		if proxy.Spec.NamespaceSelector != nil {
			isReached = namespaces.Matches(labels.Set(s.Namespaces[key.Namespace].Labels))
		}
		if isReached && selector.Matches(stampedLabels(s.Clusters[key])) {
			selected = append(selected, s.Clusters[key])
		}
	}
	return selected
}

// resolve returns the version that a chart is installed at, or "" if there is none.
func resolve(asked string, published []string) string {
	var found string
	for _, version := range published {
		major, isRange := strings.CutSuffix(asked, ".x")
		if asked == "" || asked == version || isRange && strings.HasPrefix(version, major+".") {
			found = version
		}
	}
	return found
}

// longestRelease is the longest name of a release.
const longestRelease = 53

// Shortened stands for the end of a name that is shortened somehow.
const Shortened = "…"

// nameOfRelease returns the default name of the release for a HelmChartProxy without one.
func nameOfRelease(proxy string) string {
	if len(proxy) <= longestRelease && isDNSLabel(proxy) {
		return proxy
	}
	readable, _, _ := strings.Cut(proxy, ".")
	return readable[:min(len(readable), longestRelease/2)] + Shortened
}
