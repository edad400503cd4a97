package desired

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// The labels with which Turtles' successor of CAAPF names a class.
const (
	turtlesClassLabel          = "cluster-api.cattle.io/clusterclass-name"
	turtlesClassNamespaceLabel = "cluster-api.cattle.io/clusterclass-namespace"
)

// Attachment returns the fields that Muster adds to the Fleet Cluster that Rancher has for a CAPI
// Cluster: the fields of Muster's own Fleet Cluster by which bundles are targeted and rendered, and
// the namespace of the Cluster. It copies no key of Rancher's domain. If there is TooMuch to copy, it has what is not copied,
// and WithCopies adds the rest.
func Attachment(in settings.Settings, fleet types.NamespacedName, uid types.UID, cluster *clusterv1.Cluster, class *Class, values map[string]any, targets Targets) *fleetv1.Cluster {
	labels, annotations, _ := metadataOf(in, cluster, class, targets)
	labels, annotations = withoutRancher(labels), withoutRancher(annotations)
	if cluster.GetClassKey().Name != "" {
		labels[turtlesClassLabel], labels[turtlesClassNamespaceLabel] = labels[stamp.ClassNameLabel], labels[stamp.ClassNamespaceLabel]
	}
	labels[stamp.OriginNamespaceLabel] = cluster.Namespace

	annotations[stamp.AttachedAnnotation] = cluster.Namespace + "/" + cluster.Name
	annotations[stamp.AttachedUIDAnnotation] = string(cluster.UID)
	return seal(&fleetv1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: fleet.Namespace, Name: fleet.Name, UID: uid, Labels: labels, Annotations: annotations},
		Spec:       fleetv1.ClusterSpec{TemplateValues: &fleetv1.GenericMap{Data: values}},
	})
}

// WithCopies returns an attachment with the copies in the attachment that was applied before it: its template values, and the
// labels and annotations that may be copied.
func WithCopies(in settings.Settings, want, before *fleetv1.Cluster) *fleetv1.Cluster {
	whole := want.DeepCopy()
	whole.Spec.TemplateValues = before.Spec.TemplateValues
	for _, pair := range []struct{ into, from map[string]string }{{whole.Labels, before.Labels}, {whole.Annotations, before.Annotations}} {
		for key, value := range withoutRancher(copied(in, pair.from)) {
			pair.into[key] = value
		}
	}
	return whole
}

// withoutRancher drops, from a map of our own, the keys that Rancher itself keeps off its Fleet
// Clusters, and the key of the label that marks Muster's own. The policy muster-syncer-fleet allows
// that key neither as a label nor as an annotation.
func withoutRancher(entries map[string]string) map[string]string {
	delete(entries, stamp.ManagedByLabel)
	maps.DeleteFunc(entries, func(key, _ string) bool {
		return strings.Contains(key, "cattle.io") || strings.HasPrefix(key, "kubectl.kubernetes.io")
	})
	return entries
}

// Unattached compares an attachment with the Fleet Cluster as cached. Lacks means that a label or an
// annotation is missing. Others are the names of fields with another value, and of missing template
// values: Turtles' successor of CAAPF replaces all template values.
func Unattached(want, have *fleetv1.Cluster) (lacks bool, others []string) {
	for _, pair := range []struct {
		of         string
		want, have map[string]string
	}{{"metadata.labels.", want.Labels, have.Labels}, {"metadata.annotations.", want.Annotations, have.Annotations}} {
		for key, value := range pair.want {
			switch got, found := pair.have[key]; {
			case !found:
				lacks = true
			case got != value && key != HashAnnotation:
				others = append(others, pair.of+key)
			}
		}
	}
	var values map[string]any
	if have.Spec.TemplateValues != nil {
		values = have.Spec.TemplateValues.Data
	}
	for key, value := range ShortValuesByKey(want.Spec.TemplateValues.Data) {
		if key != shortKey && !reflect.DeepEqual(value, values[key]) {
			others = append(others, TemplateValues+key)
		}
	}
	slices.Sort(others)
	return lacks, others
}

// TemplateValues is the path of the template values.
const TemplateValues = "spec.templateValues."

// Without returns an attachment without the fields of these names.
func Without(want *fleetv1.Cluster, names []string) *fleetv1.Cluster {
	rest := want.DeepCopy()
	for _, name := range names {
		if key, ok := strings.CutPrefix(name, TemplateValues); ok {
			delete(rest.Spec.TemplateValues.Data, key)
		}
		delete(rest.Labels, strings.TrimPrefix(name, "metadata.labels."))
		delete(rest.Annotations, strings.TrimPrefix(name, "metadata.annotations."))
	}
	return rest
}

// NamesAttached reports whether the annotations that say whose an attachment is are among these names.
func NamesAttached(names []string) bool {
	return slices.Contains(names, "metadata.annotations."+stamp.AttachedAnnotation) || slices.Contains(names, "metadata.annotations."+stamp.AttachedUIDAnnotation)
}

// WorkspaceGroup returns the ClusterGroup, in a workspace of Rancher's, for the attached Clusters of a
// namespace that use a class. A workspace holds Clusters of many namespaces.
func WorkspaceGroup(in settings.Settings, workspace, origin string, classKey types.NamespacedName, class *Class) *fleetv1.ClusterGroup {
	group, isWhole := group(in, types.NamespacedName{Namespace: workspace, Name: stamp.WorkspaceGroupName(classKey, origin)}, classKey, class)
	group.Labels[stamp.OriginNamespaceLabel] = origin
	group.Spec.Selector.MatchLabels[stamp.OriginNamespaceLabel] = origin
	if _, shortened := stamp.LabelValue(classKey.Name); shortened {
		group.Annotations[stamp.ClassFullNameAnnotation] = classKey.Name
	}
	return sealIf(isWhole, group)
}
