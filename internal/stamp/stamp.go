package stamp

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/settings"
)

// Subject is what of a CAPI Cluster the stamp is computed from.
type Subject struct {
	// Name is empty while the API server has yet to generate it.
	Name            string
	Labels          map[string]string
	Annotations     map[string]string
	NamespaceLabels map[string]string
	// Class is the ClusterClass the topology names, its namespace filled in; zero without a topology.
	Class types.NamespacedName
}

// Stamp is what the keys of the stamp are to be; an empty field means the key is absent.
type Stamp struct {
	ClassName, ClassNamespace, ClassFullName string
	Pin                                      Pin
	// Shortened says that a new pin's name is not prefix + name + suffix.
	Shortened bool
}

// Pin is the part of the stamp that never changes while the Cluster lives.
type Pin struct {
	OwnedBy, ClusterName string
}

// PinOf returns the pin that annotations hold. A name that Fleet cannot use pins
// nothing: kept, it would keep the Cluster out of Fleet for good.
func PinOf(annotations map[string]string) Pin {
	pin := Pin{OwnedBy: annotations[OwnedByAnnotation], ClusterName: annotations[ClusterNameAnnotation]}
	if !IsFleetName(pin.ClusterName) {
		pin.ClusterName = ""
	}
	return pin
}

// IsComplete reports whether the pin names an owner and a Fleet Cluster, that is,
// whether the Cluster was claimed.
func (p Pin) IsComplete() bool { return p.OwnedBy != "" && p.ClusterName != "" }

// OnCreate returns the stamp of a Cluster that is being created. A pin it brings
// along (restored from a backup, moved by clusterctl) is kept if Fleet can use it.
// Without a name there is no pin: the syncer sets it.
func OnCreate(in settings.Settings, subject Subject) Stamp {
	stamp := classStamp(subject.Class)
	if selected, _ := Selected(in.Cluster, stamp.merge(subject.Labels), subject.NamespaceLabels); !selected || subject.Name == "" {
		return stamp
	}
	name := PinOf(subject.Annotations).ClusterName
	if name == "" {
		name, stamp.Shortened = FleetName(in.Cluster, subject.Name)
	}
	stamp.Pin = Pin{OwnedBy: in.ConfigName, ClusterName: name}
	return stamp
}

// OnUpdate returns the stamp of a Cluster that is being updated from one that had the
// old pin. Whatever the request holds, the pin stays what it was: one that is dropped or
// altered is restored, one that is new goes, and none is made. Only the syncer may pin,
// pin again and unpin: whoever may write a Cluster may write its annotations, so they
// prove nothing.
func OnUpdate(subject Subject, old Pin, bySyncer bool) Stamp {
	stamp := classStamp(subject.Class)
	stamp.Pin = old
	if bySyncer {
		stamp.Pin = PinOf(subject.Annotations)
	}
	return stamp
}

// OnSync returns the stamp of a Cluster that exists. Existing is the name of the Fleet
// Cluster that belongs to it already, or empty if there is none: a selected Cluster is
// pinned to that, also where another pin stands, for a pin is the word of whoever may
// write annotations. Otherwise a pin it has stays, and one that is missing is made. An
// unselected Cluster is left as it is.
func OnSync(in settings.Settings, subject Subject, existing string) Stamp {
	stamp := classStamp(subject.Class)
	stamp.Pin = PinOf(subject.Annotations)
	if selected, _ := Selected(in.Cluster, stamp.merge(subject.Labels), subject.NamespaceLabels); !selected {
		return stamp
	}
	stamp.Pin.OwnedBy = in.ConfigName
	if existing != "" {
		stamp.Pin.ClusterName = existing
	}
	if stamp.Pin.ClusterName == "" {
		stamp.Pin.ClusterName, stamp.Shortened = FleetName(in.Cluster, subject.Name)
	}
	return stamp
}

// WithoutPin returns the stamp of a Cluster that is no longer imported: its class only.
func WithoutPin(subject Subject) Stamp { return classStamp(subject.Class) }

// WithClassLabels returns the labels as they are once stamped. Selectors are matched
// against these, so that they may name the class.
func WithClassLabels(labels map[string]string, class types.NamespacedName) map[string]string {
	stamped := classStamp(class)
	return stamped.merge(labels)
}

// Labels returns the two labels that name a class, as they are on Clusters, Fleet
// Clusters and ClusterGroups; nil for no class.
func Labels(class types.NamespacedName) map[string]string {
	if class.Name == "" {
		return nil
	}
	stamp := classStamp(class)
	return map[string]string{ClassNameLabel: stamp.ClassName, ClassNamespaceLabel: stamp.ClassNamespace}
}

// LabelValues returns what each label key of the stamp is to be; empty means absent.
func (s Stamp) LabelValues() map[string]string {
	return map[string]string{ClassNameLabel: s.ClassName, ClassNamespaceLabel: s.ClassNamespace}
}

// AnnotationValues returns what each annotation key of the stamp is to be; empty means absent.
func (s Stamp) AnnotationValues() map[string]string {
	return map[string]string{
		ClassFullNameAnnotation: s.ClassFullName,
		OwnedByAnnotation:       s.Pin.OwnedBy,
		ClusterNameAnnotation:   s.Pin.ClusterName,
	}
}

// merge returns the labels as they are once stamped: selectors may name the stamp's labels.
func (s Stamp) merge(labels map[string]string) map[string]string {
	return Merge(labels, s.LabelValues())
}

// Merge returns a copy of current in which keys have the wanted values; empty means absent.
func Merge(current, wanted map[string]string) map[string]string {
	merged := maps.Clone(current)
	if merged == nil {
		merged = map[string]string{}
	}
	for key, value := range wanted {
		if value == "" {
			delete(merged, key)
		} else {
			merged[key] = value
		}
	}
	return merged
}

func classStamp(class types.NamespacedName) Stamp {
	if class.Name == "" {
		return Stamp{}
	}
	stamp := Stamp{ClassNamespace: class.Namespace}
	var shortened bool
	if stamp.ClassName, shortened = LabelValue(class.Name); shortened {
		stamp.ClassFullName = class.Name
	}
	return stamp
}

// Changes returns what must change in current for its keys to be as wanted: a
// value to set, or nil to remove. It returns nil if nothing differs.
func Changes(current, wanted map[string]string) map[string]*string {
	var changes map[string]*string
	for key, value := range wanted {
		have, found := current[key]
		switch {
		case value == "" && !found, value != "" && found && have == value:
			continue
		case changes == nil:
			changes = map[string]*string{}
		}
		if value == "" {
			changes[key] = nil
		} else {
			changes[key] = &value
		}
	}
	return changes
}
