package desired

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/stamp"
)

// Object is an API object, like client.Object of controller-runtime: this package knows no client.
type Object interface {
	metav1.Object
	runtime.Object
}

// seal writes the hash of a desired object into its HashAnnotation.
func seal[T Object](object T) T {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[HashAnnotation] = Hash(summary(object))
	object.SetAnnotations(annotations)
	return object
}

// sealIf seals an object that is whole.
func sealIf[T Object](isWhole bool, object T) T {
	if isWhole {
		return seal(object)
	}
	return object
}

// summary returns the part of an object that is hashed: the applied fields. Template values, most of
// an object, are replaced by their hash.
func summary(object Object) map[string]any {
	fields, err := Configuration(object)
	if err != nil { // Every field of a desired object has a JSON form.
		panic(fmt.Sprintf("hashing %T: %v", object, err))
	}
	if cluster, ok := object.(*fleetv1.Cluster); ok && cluster.Spec.TemplateValues != nil {
		fields["spec"].(map[string]any)["templateValues"] = map[string]any{HashAnnotation: HashOfValues(cluster.Spec.TemplateValues.Data)}
	}
	return fields
}

// Configuration returns a desired object as it is applied. It holds only the desired fields, without
// the status fields that a newer version of Fleet's Go module adds. It shares the template values with
// the object.
func Configuration(want Object) (map[string]any, error) {
	// Template values are maps already, and most of the object.
	var values *fleetv1.GenericMap
	if cluster, ok := want.(*fleetv1.Cluster); ok {
		short := *cluster
		values, short.Spec.TemplateValues = short.Spec.TemplateValues, nil
		want = &short
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	if spec, ok := fields["spec"].(map[string]any); ok && values != nil {
		spec["templateValues"] = values.Data
	}
	return fields, nil
}

// shortKey is the key of ShortValues. It cannot be guessed: otherwise template values could be forged
// that pass for the ones with this hash.
var shortKey = rand.Text()

// ShortValues replaces template values by their hash, because a cache holds thousands. Values that are
// short already stay as they are.
func ShortValues(values map[string]any) map[string]any {
	return map[string]any{shortKey: HashOfValues(values)}
}

// ShortValuesByKey is ShortValues for template values that others may write, too. It also keeps a hash
// of each value that Muster may write.
func ShortValuesByKey(values map[string]any) map[string]any {
	if _, isShort := values[shortKey]; isShort {
		return values
	}
	short := ShortValues(values)
	for _, key := range []string{ClusterValue, ControlPlaneValue, InfrastructureValue, VariablesValue} {
		if value, found := values[key]; found {
			short[key] = ShortValues(map[string]any{key: value})
		}
	}
	return short
}

// HashOfValues returns the hash of template values, whole or short.
func HashOfValues(values map[string]any) string {
	if hash, ok := values[shortKey].(string); ok {
		return hash
	}
	return Hash(values)
}

// Hash returns a hash of a value's canonical JSON. It is the same for values that are equal once they
// have been through an API server.
func Hash(value any) string {
	sum := sha256.Sum256(canonical(value))
	return hex.EncodeToString(sum[:16])
}

// TargetingAnnotation on a Fleet Cluster records which ClusterGroup and
// BundleNamespaceMapping it is targeted through.
const TargetingAnnotation = stamp.Domain + "/targeting"

// Targets are the UIDs of the ClusterGroup and the BundleNamespaceMapping that a Fleet
// Cluster is targeted through; empty for none.
type Targets struct{ Group, Mapping types.UID }

// annotation returns the value of the TargetingAnnotation; empty if there are no targets.
func (t Targets) annotation() string {
	if t == (Targets{}) {
		return ""
	}
	return Hash([]types.UID{t.Group, t.Mapping})
}

// RetargetAnnotation makes Fleet look again: Fleet watches Bundles and Fleet Clusters, but not the
// mappings between them. A mapping carries it if it has begun to map to a namespace that had Fleet
// Clusters already. The value is the generation of the mapping, then the same with RetargetAgain. A
// Fleet Cluster carries what Begun returns for these mappings, and a Bundle of a mapping into a
// workspace does, too. A Fleet Cluster without its namespace in Fleet also carries a Look.
const RetargetAnnotation = stamp.Domain + "/retarget"

// RetargetAgain ends the RetargetAnnotation of a mapping that Fleet is to look at for the second time.
const RetargetAgain = ".again"

const generation = `[0-9]{1,19}(\.again)?`

// begun matches the RetargetAnnotation of a mapping, and noted what Begun returns.
var (
	begun = regexp.MustCompile(`^` + generation + `$`)
	noted = regexp.MustCompile(`^[0-9A-Za-z-]{1,36}\.` + generation + `$`)
)

// Begun returns the mapping and what its RetargetAnnotation says; empty if it has none. What else is written there
// counts for nothing, nor does a mapping that maps nothing: whoever can make one that maps can do far more.
func Begun(mapping *fleetv1.BundleNamespaceMapping) string {
	value := mapping.Annotations[RetargetAnnotation]
	if !begun.MatchString(value) || !mapping.DeletionTimestamp.IsZero() || !Maps(mapping) {
		return ""
	}
	return string(mapping.UID) + "." + value
}

// Retargeted returns the RetargetAnnotation of a Fleet Cluster whose namespace has these begun
// mappings. It keeps a value that names all of them, unless another writer wrote it: a mapping that
// goes does not change the value.
func Retargeted(have string, begun []string) string {
	known := strings.Fields(have)
	isForeign := func(word string) bool { return !noted.MatchString(word) && !looked.MatchString(word) }
	if !slices.ContainsFunc(begun, func(mapping string) bool { return !slices.Contains(known, mapping) }) && !slices.ContainsFunc(known, isForeign) {
		return have
	}
	if last := LookOf(have); last != (Look{}) {
		return last.In(strings.Join(begun, " "))
	}
	return strings.Join(begun, " ")
}
