package plan

import (
	"regexp"
	"strconv"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/util/intstr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Place is where values lie: in which object, and under which keys of it. Values that have changed get
// another place, and what is read somewhere stays as it is. For agents copy an object as soon as it
// changes, however the rollout is bounded, and try such a change only once: one that is refused then
// is lost, and the release counts as ready (seen on Fleet 0.16).
type Place struct {
	// Number tells the objects apart that take turns. They are few: Fleet and its agents keep their
	// copies of each as long as the release is there.
	Number int
	// Revision is in the keys, and grows: an agent that still has an older copy of the object finds
	// nothing in it, and waits. It says nothing of what the values are, which may be secret.
	Revision int
}

// mostPlaces is how many objects take turns.
const mostPlaces = 8

var revisionInKey = regexp.MustCompile(`^.+-([1-9][0-9]{0,8})[.]yaml$`)

// MaxUnavailable returns what bounds the rollout; nil if nothing does.
func MaxUnavailable(spec *addonsv1.HelmChartProxySpec) *intstr.IntOrString {
	if spec.Rollout == nil {
		return nil
	}
	return spec.Rollout.MaxUnavailable
}

// IsStaged reports whether values that have changed get another place. A Bundle that installs once
// has one target, and is held then.
func (in Input) IsStaged() bool {
	return in.Proxy.Spec.ReconcileStrategy != addonsv1.ReconcileStrategyInstallOnce
}

// Next returns the next place that is free: rather one whose object is not there, which may be on its way
// to agents still. There is none if all objects are read somewhere.
func (p Place) Next(isUsed, isThere func(number int) bool) (next Place, found bool) {
	next = p
	for number := range mostPlaces {
		if number == p.Number || isUsed(number) {
			continue
		}
		if !isThere(number) {
			return Place{number, p.Revision + 1}, true
		}
		if !found {
			next, found = Place{number, p.Revision + 1}, true
		}
	}
	return next, found
}

// Of returns the name of the object, of the name of the first.
func (p Place) Of(first string) string {
	if p.Number == 0 {
		return first
	}
	return first + "." + strconv.Itoa(p.Number)
}

func (p Place) key(key string) string {
	if p.Revision == 0 {
		return key
	}
	return strings.TrimSuffix(key, ".yaml") + "-" + strconv.Itoa(p.Revision) + ".yaml"
}

// NumberOf returns the number of an object, if it has the name of the first, or one of those that take
// turns with it.
func NumberOf(name, first string) (number int, found bool) {
	if name == first {
		return 0, true
	}
	suffix, found := strings.CutPrefix(name, first+".")
	number, err := strconv.Atoi(suffix)
	return number, found && err == nil && number > 0 && number < mostPlaces && suffix == strconv.Itoa(number)
}

// FirstOf returns the name of the first of the objects that take turns with one, if it has a number. A
// name may also end like this by itself.
func FirstOf(name string) string {
	if at := strings.LastIndexByte(name, '.'); at >= 0 {
		if _, found := NumberOf(name, name[:at]); found {
			return name[:at]
		}
	}
	return name
}

// SharedNames returns the names of the objects that take turns with the values for all Clusters.
func SharedNames(proxy Key, namespace string) (names []string) {
	for number := range mostPlaces {
		names = append(names, Place{Number: number}.Of(SharedName(proxy, namespace)))
	}
	return names
}

// SharedPlace returns where the values for all Clusters lie that a Bundle names, and the kind of the
// object; none if it names none.
func SharedPlace(proxy Key, bundle *fleetv1.Bundle) (place Place, kind string) {
	return placeIn(bundle.Spec.Helm, SharedName(proxy, bundle.Namespace))
}

// KeptShared returns the values for all Clusters that a Bundle names, to stay as they are; nil if there is
// none that does.
func KeptShared(proxy Key, bundle *fleetv1.Bundle) *Shared {
	if bundle == nil {
		return nil
	}
	place, kind := SharedPlace(proxy, bundle)
	kept := &Shared{Secret: kind == SecretKind, Kept: true}
	for _, from := range bundle.Spec.Helm.ValuesFrom {
		its, name, key := named(from)
		if its != kind || name != place.Of(SharedName(proxy, bundle.Namespace)) {
			continue
		}
		if place.Revision > 0 {
			key = strings.TrimSuffix(key, "-"+strconv.Itoa(place.Revision)+".yaml") + ".yaml"
		}
		kept.Keys = append(kept.Keys, key)
	}
	return kept
}

// OwnPlace returns where a Cluster's own values lie that a target names, and the kind of the object; none
// if it names none.
func OwnPlace(proxy Key, namespace string, target *fleetv1.BundleTarget) (place Place, kind string) {
	return placeIn(target.Helm, ValuesName(proxy, namespace, target.ClusterName))
}

func placeIn(helm *fleetv1.HelmOptions, first string) (place Place, kind string) {
	if helm == nil {
		return Place{}, ""
	}
	for _, from := range helm.ValuesFrom {
		kind, name, key := named(from)
		number, is := NumberOf(name, first)
		if !is {
			continue
		}
		place = Place{Number: number}
		if its := revisionInKey.FindStringSubmatch(key); its != nil {
			place.Revision, _ = strconv.Atoi(its[1]) // It has at most nine digits.
		}
		return place, kind
	}
	return Place{}, ""
}

// named returns what values are read from.
func named(from fleetv1.ValuesFrom) (kind, name, key string) {
	switch {
	case from.ConfigMapKeyRef != nil:
		return configMapKind, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key
	case from.SecretKeyRef != nil:
		return SecretKind, from.SecretKeyRef.Name, from.SecretKeyRef.Key
	}
	return "", "", ""
}
