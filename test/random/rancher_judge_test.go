package random

import (
	"fmt"
	"maps"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/rancher/player"
)

// rancherLag is how long Muster may act on what was true before.
const rancherLag = 5 * time.Second

// follow judges every event of a Fleet Cluster, until the watch ends.
func (s *rancherScene) follow(events <-chan watch.Event) {
	for event := range events {
		if fleet, ok := event.Object.(*fleetv1.Cluster); ok {
			s.see(fleet, event.Type == watch.Deleted)
		}
	}
}

func (s *rancherScene) see(fleet *fleetv1.Cluster, isDeleted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.all {
		switch {
		case fleet.Labels[player.ClusterNameLabel] == "" && fleet.Namespace == d.namespace && fleet.Name == d.name:
			s.events++
			s.seeOwn(d, fleet, isDeleted)
		case client.ObjectKeyFromObject(fleet) == d.fleetKey:
			s.events++
			s.seeRanchers(d, fleet, isDeleted)
		default:
			continue
		}
		d.review()
		return
	}
}

// seeOwn judges a Fleet Cluster of Muster's: it must not come beside Rancher's, nor where Rancher's will be.
func (s *rancherScene) seeOwn(d *downstream, fleet *fleetv1.Cluster, isDeleted bool) {
	isNew := d.own == nil || d.own.UID != fleet.UID
	if d.own = fleet; isDeleted {
		d.own = nil
		return
	}
	if !isNew {
		return
	}
	s.imported++
	made := fleet.CreationTimestamp.Time
	switch {
	case !d.mayImport:
		s.violates(d, "Muster imports a Cluster that it was to %s since it was last at rest", d.way())
	case !d.since.IsZero() && made.After(d.since.Add(rancherLag)):
		s.violates(d, "Muster imports a Cluster that it was to %s for %s", d.way(), made.Sub(d.since))
	case d.fleet != nil && made.After(d.fleetSince.Add(rancherLag)):
		s.violates(d, "Muster imports a Cluster that has had a Fleet Cluster of Rancher's for %s", made.Sub(d.fleetSince))
	}
}

// seeRanchers judges Rancher's Fleet Cluster: Muster changes none of Rancher's fields, and stays attached while it must.
func (s *rancherScene) seeRanchers(d *downstream, fleet *fleetv1.Cluster, isDeleted bool) {
	if isDeleted {
		d.fleet, d.isAttached = nil, false
		return
	}
	if d.fleet == nil {
		d.fleetSince = time.Now()
	}
	wasAttached := d.isAttached
	d.fleet = fleet
	if !slices.ContainsFunc(d.wants, func(want *fleetv1.Cluster) bool { return hasFieldsOf(fleet, want) }) {
		s.violates(d, "Rancher's fields differ: labels %v, spec %+v, finalizers %v", fleet.Labels, fleet.Spec, fleet.Finalizers)
	}
	if wasAttached && !isAttachedTo(fleet, d) && !d.mayImport && d.own == nil && d.cluster != nil {
		s.violates(d, "Muster gives up a Cluster that it was to %s", d.way())
	}
	if d.isAttached = isAttachedTo(fleet, d); d.isAttached && !wasAttached {
		s.attached++
	}
}

// isAttachedTo reports whether a Fleet Cluster has Muster's data for a Cluster.
func isAttachedTo(fleet *fleetv1.Cluster, d *downstream) bool {
	return d.cluster != nil && fleet.Annotations[domain+"/attached"] == d.namespace+"/"+d.name &&
		fleet.Annotations[domain+"/attached-uid"] == string(d.cluster.UID)
}

// hasFieldsOf reports whether a Fleet Cluster has all that Rancher wants, and nothing else but what Muster attaches.
func hasFieldsOf(fleet, want *fleetv1.Cluster) bool {
	spec := fleet.Spec.DeepCopy()
	spec.TemplateValues = nil
	owners := fleet.OwnerReferences
	return equality.Semantic.DeepEqual(*spec, want.Spec) && len(fleet.Finalizers) == 0 &&
		equality.Semantic.DeepEqual(owners, want.OwnerReferences) &&
		maps.Equal(want.Labels, sharedWith(fleet.Labels, want.Labels))
}

// sharedWith returns the entries whose keys both maps have.
func sharedWith(entries, other map[string]string) map[string]string {
	shared := maps.Clone(entries)
	maps.DeleteFunc(shared, func(key, _ string) bool { _, is := other[key]; return !is })
	return shared
}

func (s *rancherScene) violates(d *downstream, format string, of ...any) {
	s.violations = append(s.violations, fmt.Sprintf("%s %s/%s: %s\n  now: %s, since %s", time.Now().Format(time.TimeOnly), d.namespace, d.name, fmt.Sprintf(format, of...), d.facts, d.since.Format(time.TimeOnly)))
}
