package desired

import (
	"fmt"
	"strings"

	"github.com/go-openapi/jsonpointer"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

// The most that Muster copies from one Cluster or ClusterClass. Server-side apply, admission policies and Fleet all
// take more time for each key, and everyone shares them.
const (
	// MaxCopiedKeys is how many labels, and how many annotations.
	MaxCopiedKeys = 512
	// MaxCopiedBytes is the length of all these keys and values together.
	MaxCopiedBytes = 128 << 10
)

// copies counts the keys, and the bytes of keys and values, that an object has to copy.
type copies struct{ labels, annotations, bytes int }

func copiesOf(in settings.Settings, labels, annotations map[string]string) copies {
	var all copies
	count := func(entries map[string]string) (keys int) {
		for key, value := range entries {
			if isCopied(in, key) {
				keys++
				all.bytes += len(key) + len(value)
			}
		}
		return keys
	}
	all.labels, all.annotations = count(labels), count(annotations)
	return all
}

// exceed reports whether the copies are larger than the bound divided by a number.
func (c copies) exceed(divisor int) bool {
	return divisor*max(c.labels, c.annotations) > MaxCopiedKeys || divisor*c.bytes > MaxCopiedBytes
}

// String says how much there is, and how much may be.
func (c copies) String() string {
	return fmt.Sprintf("it has %d labels and %d annotations to copy, of %d bytes together, and Muster copies at most %d labels, %d annotations and %d bytes",
		c.labels, c.annotations, c.bytes, MaxCopiedKeys, MaxCopiedKeys, MaxCopiedBytes)
}

// TooMuch returns why nothing is copied to the Fleet Cluster of a Cluster of this class, and what to do; empty if the
// copies of both are within the bound. Without a Cluster it judges the class alone. It is all or nothing: Fleet uninstalls
// what a missing label selected, and the author of the other labels would choose which one is missing.
func TooMuch(in settings.Settings, cluster *clusterv1.Cluster, class *Class) string {
	var reasons []string
	if cluster != nil {
		if its := copiesOf(in, cluster.Labels, cluster.Annotations); its.exceed(1) {
			reasons = append(reasons, fmt.Sprintf("nothing is copied from the Cluster, because %s: remove some", its))
		}
	}
	if its := copiesOf(in, classLabels(class), nil); its.exceed(1) {
		reasons = append(reasons, fmt.Sprintf("nothing is copied from ClusterClass %s/%s, because %s: remove some", class.Namespace, class.Name, its))
	}
	return strings.Join(reasons, "; ")
}

// NearlyTooMuch returns a warning about the labels and annotations of a Cluster or, without annotations, of a
// ClusterClass; empty if their copies take at most half of the bound.
func NearlyTooMuch(in settings.Settings, labels, annotations map[string]string) string {
	its := copiesOf(in, labels, annotations)
	switch {
	case its.exceed(1):
		return fmt.Sprintf("nothing is copied to Fleet: %s; what Fleet has stays as it is, and nothing new is imported: remove some", its)
	case its.exceed(2):
		return fmt.Sprintf("%s; above that, nothing is copied to Fleet any more", its)
	default:
		return ""
	}
}

// deepestPart is how many keys the path of a part has at most: more say nothing to a reader.
const deepestPart = 4

// BiggestPart returns the JSON pointer to the part of template values that takes most of them, and its size in bytes. It
// descends as long as one field takes more than half.
func BiggestPart(values map[string]any) (pointer string, bytes int) {
	var node any = values
	for range deepestPart {
		fields, _ := node.(map[string]any)
		key, size := "", 0
		for name, child := range fields {
			if its := len(canonical(child)); its > size || its == size && name < key {
				key, size = name, its
			}
		}
		if key == "" || pointer != "" && 2*size <= bytes {
			break
		}
		pointer, bytes, node = pointer+"/"+jsonpointer.Escape(key), size, fields[key]
	}
	return pointer, bytes
}
