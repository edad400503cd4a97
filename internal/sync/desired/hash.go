package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// seal writes the hash of a desired object into its HashAnnotation.
func seal[T client.Object](object T) T {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[HashAnnotation] = Hash(object)
	object.SetAnnotations(annotations)
	return object
}

// Hash returns a hash of a value's canonical JSON: the same for values that are
// equal once they have been through an API server.
func Hash(value any) string {
	data, err := json.Marshal(value)
	if err != nil { // Only values that came from JSON are hashed.
		panic(fmt.Sprintf("hashing %T: %v", value, err))
	}
	// Through JSON once more: an int64 and the float64 that a cache decodes it to
	// are the same number.
	var plain any
	if err := json.Unmarshal(data, &plain); err == nil {
		if again, err := json.Marshal(plain); err == nil {
			data = again
		}
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// TargetingAnnotation on a Fleet Cluster notes which ClusterGroup and
// BundleNamespaceMapping it is targeted through.
const TargetingAnnotation = stamp.Domain + "/targeting"

// MarkTargets notes the UIDs of group and mapping on a Fleet Cluster; empty for none.
func MarkTargets(cluster *fleetv1.Cluster, group, mapping types.UID) {
	delete(cluster.Annotations, HashAnnotation)
	if group != "" || mapping != "" {
		cluster.Annotations[TargetingAnnotation] = Hash([]types.UID{group, mapping})
	}
	seal(cluster)
}
