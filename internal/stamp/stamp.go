package stamp

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

// Subject holds the fields of a CAPI Cluster from which the stamp is computed.
type Subject struct {
	// Name is empty while the API server has yet to generate it.
	Name            string
	Labels          map[string]string
	Annotations     map[string]string
	NamespaceLabels map[string]string
	// Class is the ClusterClass that the topology names, with its namespace; zero without a topology.
	Class types.NamespacedName
}

// SubjectOf returns the Subject of an existing Cluster.
func SubjectOf(cluster *clusterv1.Cluster, namespaceLabels map[string]string) Subject {
	return Subject{
		Name: cluster.Name, Labels: cluster.Labels, Annotations: cluster.Annotations,
		NamespaceLabels: namespaceLabels, Class: cluster.GetClassKey(),
	}
}

// IsSelected reports whether settings select the Cluster, once it is stamped. If not, it says why.
func (s Subject) IsSelected(in settings.Cluster) (bool, string) {
	return Selected(in, WithClassLabels(s.Labels, s.Class), s.NamespaceLabels)
}

// Stamp holds the values that the keys of the stamp should have; empty means absent.
type Stamp struct {
	ClassName, ClassNamespace, ClassFullName string
	Pin                                      Pin
	// Shortened means that a new pin's name is not prefix + name + suffix.
	Shortened bool
}

// Pin is the part of the stamp that never changes while the Cluster lives.
type Pin struct {
	OwnedBy, ClusterName string
}

// PinOf returns the pin in annotations. A name that Fleet cannot use does not count: it would keep the
// Cluster out of Fleet forever.
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

// WithOwnPin returns the Cluster without a pin that it brings but that is another Cluster's, and the name in that
// pin; empty if the pin is its own or it brings none. A Cluster that is restored from a backup or moved by clusterctl
// brings its own pin. One whose manifest was copied and renamed brings another's, by which Fleet would show it under
// the other's name. IsMadeFrom reports whether a Fleet Cluster of this name says that it was made from a Cluster of this
// one's name.
func (s Subject) WithOwnPin(isMadeFrom func(fleetCluster string) bool) (own Subject, another string) {
	pin := PinOf(s.Annotations).ClusterName
	if pin == "" || s.Name == "" || isNameOf(pin, s.Name) || isMadeFrom(pin) {
		return s, ""
	}
	s.Annotations = maps.Clone(s.Annotations)
	delete(s.Annotations, ClusterNameAnnotation)
	return s, pin
}

// NotItsPin says that the pin that a new Cluster brings is another's.
func NotItsPin(another string) string {
	return fmt.Sprintf("annotation %s names Fleet Cluster %q, which is not this Cluster's: it is replaced", ClusterNameAnnotation, another)
}

// OnCreate returns the stamp of a Cluster that is being created. If the Cluster brings a pin of its own (see
// WithOwnPin), the pin is kept if the Cluster is selected. A Cluster without a name gets no pin: the syncer sets it.
func OnCreate(in settings.Settings, subject Subject) Stamp {
	stamp := classStamp(subject.Class)
	if selected, _ := subject.IsSelected(in.Cluster); !selected || subject.Name == "" {
		return stamp
	}
	name := PinOf(subject.Annotations).ClusterName
	if name == "" {
		name, stamp.Shortened = FleetName(in.Cluster, subject.Name)
	}
	stamp.Pin = Pin{OwnedBy: in.ConfigName, ClusterName: name}
	return stamp
}

// OnUpdate returns the stamp of a Cluster that is being updated and had the old pin. Whatever the
// request holds, the pin stays the same: a dropped or changed pin is restored, and a new one is
// removed. Only the syncer may set, change and remove pins: any user who may write a Cluster can write
// its annotations, so they prove nothing.
func OnUpdate(subject Subject, old Pin, bySyncer bool) Stamp {
	stamp := classStamp(subject.Class)
	stamp.Pin = old
	if bySyncer {
		stamp.Pin = PinOf(subject.Annotations)
	}
	return stamp
}

// OnSync returns the stamp of a Cluster that exists. Existing is the name of the Fleet Cluster that
// already belongs to it, or empty if there is none. OnSync pins the Cluster to that one even if it has
// another pin, because any user who may write annotations can set a pin. Otherwise the Cluster keeps
// its pin. Without a pin, it gets one if it is selected.
func OnSync(in settings.Settings, subject Subject, existing string) Stamp {
	stamp := classStamp(subject.Class)
	stamp.Pin = PinOf(subject.Annotations)
	selected, _ := subject.IsSelected(in.Cluster)
	if !selected && existing == "" {
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

// WithoutPin returns the stamp of a Cluster that is no longer imported: only its class.
func WithoutPin(subject Subject) Stamp { return classStamp(subject.Class) }

// WithClassLabels returns the labels that a Cluster has once it is stamped, which callers must not change. Selectors
// see these labels, so that they may name the class.
func WithClassLabels(labels map[string]string, class types.NamespacedName) map[string]string {
	stamped := classStamp(class)
	if class.Name != "" && labels[ClassNameLabel] == stamped.ClassName && labels[ClassNamespaceLabel] == stamped.ClassNamespace {
		return labels // Nearly all are stamped already.
	}
	return Merge(labels, stamped.LabelValues())
}

// Labels returns the two labels that name a class on Clusters, Fleet Clusters and ClusterGroups; nil
// for no class.
func Labels(class types.NamespacedName) map[string]string {
	if class.Name == "" {
		return nil
	}
	return classStamp(class).LabelValues()
}

// LabelValues returns the value that each label of the stamp should have; empty means absent.
func (s Stamp) LabelValues() map[string]string {
	return map[string]string{ClassNameLabel: s.ClassName, ClassNamespaceLabel: s.ClassNamespace}
}

// AnnotationValues returns the value that each annotation of the stamp should have; empty
// means absent.
func (s Stamp) AnnotationValues() map[string]string {
	return map[string]string{
		ClassFullNameAnnotation: s.ClassFullName,
		OwnedByAnnotation:       s.Pin.OwnedBy,
		ClusterNameAnnotation:   s.Pin.ClusterName,
	}
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

// Changes returns what must change in current to give its keys the wanted values: a value
// to set, or nil to remove the key. It returns nil if nothing differs.
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

// Selected reports whether a Cluster and its Namespace, with these labels, are selected for
// import. If not, why says which setting keeps the Cluster out, as the end of the sentence
// "Cluster is not imported into Fleet: …".
func Selected(cluster settings.Cluster, clusterLabels, namespaceLabels map[string]string) (selected bool, why string) {
	switch {
	case !cluster.Enabled:
		return false, "spec.cluster.enabled of the FleetAddonConfig is false"
	case !cluster.Selector.Matches(labels.Set(clusterLabels)):
		return false, fmt.Sprintf("its labels do not match spec.cluster.selector of the FleetAddonConfig (%s)", cluster.Selector)
	case !cluster.NamespaceSelector.Matches(labels.Set(namespaceLabels)):
		return false, fmt.Sprintf("the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (%s)", cluster.NamespaceSelector)
	default:
		return true, ""
	}
}
