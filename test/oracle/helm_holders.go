package oracle

import (
	"cmp"
	"slices"
)

// Claim is a release on a Fleet Cluster.
type Claim struct{ namespace, fleetCluster, release string }

// asker is a HelmChartProxy that asks for a release. waits means that it did when Muster was at rest last. While its chart is
// not to be had, it may still ask for an earlier release.
type asker struct {
	Key
	waits bool
}

// Holders returns the HelmChartProxies that have each release: those with a target for it.
func (c *Helm) Holders() map[Claim][]Key {
	result := map[Claim][]Key{}
	for of, carrier := range c.Carriers {
		for fleetCluster := range carrier.Targets {
			its := Claim{of.Namespace, fleetCluster, of.Release}
			result[its] = append(result[its], of.Proxy)
		}
	}
	return result
}

// askers returns the HelmChartProxies that ask for each release. One that is paused, or that a Policy refuses, asks for
// nothing.
func (s *State) askers(in settings) map[Claim][]asker {
	result := map[Claim][]asker{}
	for key, proxy := range s.Helm.Proxies {
		if has(proxy.Annotations, pauseAnnotation) {
			continue
		}
		wanted, _, retained := s.wanted(proxy)
		for _, cluster := range s.chartClusters(proxy) {
			fleet := s.fleetClusterOf(in, cluster)
			if fleet == nil || !isKnown(cluster, fleet) || s.isRetained(proxy, cluster) || s.refuses(proxy, cluster.Namespace) {
				continue
			}
			its := Claim{cluster.Namespace, fleet.Name, wanted.Release()}
			waits := !retained && s.Helm.ReleaseProxies[key][Key{Namespace: cluster.Namespace, Name: cluster.Name}.String()] == "ReleaseTaken"
			result[its] = append(result[its], asker{key, waits})
		}
	}
	return result
}

// share decides which HelmChartProxies may have each release: the one that has it and keeps its target, or else the first
// asker. It decides nothing if no two want the same one.
func (s *State) share(in settings) {
	s.Helm.shares = nil
	asked, had := s.askers(in), s.Helm.Holders()
	isContended := false
	for its, all := range asked {
		others := slices.DeleteFunc(slices.Clone(had[its]), func(holder Key) bool { return holder == all[0].Key })
		isContended = isContended || len(all) > 1 || len(others) > 0
	}
	if !isContended {
		return
	}
	kept := s.Copy()
	kept.Helm.shares = had
	kept.convergeProxies(in)
	s.Helm.shares = kept.Helm.Holders()
	for its, all := range asked {
		if len(s.Helm.shares[its]) == 0 {
			s.Helm.shares[its] = []Key{s.Helm.first(its, all)}
		}
	}
}

// first returns which of several gets a release that none has: one of another namespace than the Cluster's, and then the
// first by name. Some may ask only now: Muster may see any of the askers before the first waiting one first.
func (c *Helm) first(its Claim, all []asker) Key {
	slices.SortFunc(all, func(a, b asker) int {
		isOwn := func(a asker) int { return map[bool]int{true: 1}[a.Namespace == its.namespace] }
		return cmp.Or(isOwn(a)-isOwn(b), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})
	for _, asking := range all {
		if slices.Contains(c.Seen[its], asking.Key) {
			return asking.Key
		}
		if asking.waits {
			break
		}
	}
	return all[0].Key
}

// IsShared reports whether two HelmChartProxies want the same release.
func (c *Helm) IsShared() bool { return c.shares != nil }

// isFor reports whether a HelmChartProxy may have a release.
func (c *Helm) isFor(proxy Key, its Claim) bool {
	return c.shares == nil || slices.Contains(c.shares[its], proxy)
}
