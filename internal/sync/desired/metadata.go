package desired

import (
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/stamp"
)

// Keys of the objects that we make, and the field manager of every write.
const (
	ManagedByLabel         = stamp.ManagedByLabel
	ManagedBy              = stamp.ManagedBy
	ImportedFromAnnotation = stamp.ImportedFromAnnotation
	FieldManager           = stamp.FieldManager

	// HashAnnotation holds the hash of what was last applied. It tells a field that we no
	// longer want from one that someone else added, without keeping managedFields in memory.
	HashAnnotation = stamp.Domain + "/applied-hash"
	// ClassAnnotation holds the full class name of a Fleet Cluster whose label holds a shortened one.
	ClassAnnotation = stamp.ClassFullNameAnnotation
)

// reserved are the prefixes of labels and annotations that are never copied to a Fleet
// object, beside copies of the object they are on: they steer Fleet and Rancher
// (fleet.cattle.io/cluster-management makes Fleet ignore a cluster), or describe the object
// they were copied from.
var reserved = []string{
	"fleet.cattle.io/",
	"management.cattle.io/",
	"objectset.rio.cattle.io/",
	"meta.helm.sh/",
	stamp.Domain + "/",
}

func isReserved(key string) bool {
	if IsCopy(key) {
		return true
	}
	for _, prefix := range reserved {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// copied returns the entries of the maps that may be copied to a Fleet object;
// where maps share a key the last one wins.
func copied(sources ...map[string]string) map[string]string {
	result := map[string]string{}
	for _, source := range sources {
		maps.Copy(result, source)
	}
	maps.DeleteFunc(result, func(key, _ string) bool { return isReserved(key) })
	return result
}

// Class is the part of a ClusterClass that is used: its metadata. Nil stands for a class that
// does not exist (yet).
type Class = metav1.PartialObjectMetadata

func classLabels(class *Class) map[string]string {
	if class == nil {
		return nil
	}
	return class.Labels
}
