// Package render computes, without a cluster, the Fleet objects that the syncer would make from
// manifests: for review and for CI. It calls the same pure functions as the syncer.
package render

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// Result is the outcome of Render.
type Result struct {
	// Objects are the Fleet objects, sorted by kind, namespace and name. UIDs are unknown
	// and left out of owner references.
	Objects []map[string]any
	// Notes point out what the objects do not show: why Clusters are not imported, shortened names, references
	// that are not among the manifests.
	Notes []string
}

// Render returns the objects that would exist once every Cluster's control plane is initialized. The
// error names unusable objects, and Clusters that would share a Fleet Cluster.
func Render(objects []manifests.Object) (*Result, error) {
	in, err := sorted(objects)
	if err != nil {
		return nil, err
	}
	current, err := settings.From(in.config)
	if err != nil {
		return nil, err
	}
	r := &renderer{in: in, settings: current, result: &Result{}, seen: map[string]string{}}
	for _, class := range in.classes {
		for _, kind := range in.madeBy[client.ObjectKeyFromObject(class)] {
			r.noteUnreadable("Clusters of ClusterClass "+client.ObjectKeyFromObject(class).String(), kind)
		}
		if current.Class.Enabled {
			if err := r.add(desired.ClassGroup(current, class), "ClusterClass "+class.Name); err != nil {
				return nil, err
			}
			if tooMuch := desired.TooMuch(current, nil, class); tooMuch != "" {
				r.note("ClusterClass %s/%s: %s", class.Namespace, class.Name, tooMuch)
			}
		}
	}
	for _, cluster := range in.clusters {
		if err := r.cluster(cluster); err != nil {
			return nil, err
		}
	}
	for _, proxy := range in.proxies {
		if err := r.chart(proxy); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(r.result.Objects, func(a, b map[string]any) int { return cmp.Compare(identity(a), identity(b)) })
	return r.result, nil
}

type renderer struct {
	in       *inputs
	settings settings.Settings
	result   *Result
	// seen maps the identity of an object that must not be shared to the one for which it was made.
	seen map[string]string
	// imported are the imported Clusters.
	imported []imported
}

func (r *renderer) note(format string, args ...any) {
	r.result.Notes = append(r.result.Notes, fmt.Sprintf(format, args...))
}

func (r *renderer) cluster(cluster *clusterv1.Cluster) error {
	key := client.ObjectKeyFromObject(cluster).String()
	subject := stamp.SubjectOf(cluster, r.in.namespaceLabels(cluster.Namespace))
	if selected, why := subject.IsSelected(r.settings.Cluster); !selected {
		r.note("Cluster %s is not imported: %s", key, why)
		return nil
	}
	subject, another := subject.WithOwnPin(func(string) bool { return false })
	if another != "" {
		r.note("Cluster %s: %s", key, stamp.NotItsPin(another))
	}
	wanted := stamp.OnCreate(r.settings, subject)
	if !wanted.Pin.IsComplete() {
		r.note("Cluster %s has no name yet (generateName); its Fleet Cluster is named once it has one", key)
		return nil
	}
	if wanted.Shortened {
		r.note("Cluster %s: the name is not valid in Fleet and becomes %q", key, wanted.Pin.ClusterName)
	}
	cluster = cluster.DeepCopy()
	cluster.Labels = stamp.Merge(cluster.Labels, wanted.LabelValues())
	cluster.Annotations = stamp.Merge(cluster.Annotations, wanted.AnnotationValues())

	classKey := cluster.GetClassKey()
	class := r.in.class(classKey)
	if classKey.Name != "" && class == nil {
		r.note("Cluster %s: ClusterClass %s is not among the manifests; its labels are missing below", key, classKey)
	}
	if classKey.Name != "" && classKey.Namespace != cluster.Namespace && r.settings.Cluster.ApplyClassGroup {
		if err := r.add(desired.CrossNamespaceGroup(r.settings, cluster.Namespace, classKey, class), ""); err != nil {
			return err
		}
		if err := r.add(desired.Mapping(classKey.Namespace, cluster.Namespace), ""); err != nil {
			return err
		}
	}
	if tooMuch := desired.TooMuch(r.settings, cluster, class); tooMuch != "" {
		r.note("Cluster %s is not imported: %s", key, tooMuch)
		return nil
	}
	if cluster.Spec.Topology.IsDefined() && !cluster.Spec.ControlPlaneRef.IsDefined() && !cluster.Spec.InfrastructureRef.IsDefined() {
		r.note("Cluster %s: Cluster API makes its control plane and infrastructure object from the ClusterClass; the template values below lack them", key)
	}
	its := imported{
		cluster:        cluster,
		controlPlane:   r.referenced(key, cluster.Namespace, cluster.Spec.ControlPlaneRef),
		infrastructure: r.referenced(key, cluster.Namespace, cluster.Spec.InfrastructureRef),
	}
	r.imported = append(r.imported, its)
	values, err := desired.Values(cluster, its.controlPlane, its.infrastructure, r.settings.Cluster.Exclude)
	if err != nil {
		return fmt.Errorf("Cluster %s: %w", key, err) //nolint:staticcheck // Cluster is the name of a kind.
	}
	clientID := ""
	if stamp.RegistrationOf(r.settings.Cluster, subject, nil) == stamp.ByAgent {
		clientID = "(random)"
		r.note("Cluster %s registers through its agent: the syncer chooses a random spec.clientID when it creates the Fleet Cluster", key)
	}
	return r.add(desired.FleetCluster(r.settings, cluster, class, values, desired.Targets{}, clientID), "Cluster "+key)
}

func (r *renderer) referenced(cluster, namespace string, ref clusterv1.ContractVersionedObjectReference) map[string]any {
	if !ref.IsDefined() {
		return nil
	}
	r.noteUnreadable("Cluster "+cluster, ref.GroupKind())
	object := r.in.others[reference{ref.APIGroup, ref.Kind, types.NamespacedName{Namespace: namespace, Name: ref.Name}}]
	if object == nil {
		r.note("Cluster %s: %s %s is not among the manifests; the template values below lack it", cluster, ref.Kind, ref.Name)
		return nil
	}
	its, version := settings.KindOf(ref.GroupKind()), (&unstructured.Unstructured{Object: object}).GroupVersionKind().Version
	if its != nil && its.Version != "" && its.Version != version {
		r.note("Cluster %s: %s %s is in version %s, but the newest known CRD of its provider has the syncer read %s; the API server converts it, so the template values can differ from those below",
			cluster, ref.Kind, ref.Name, version, its.Version)
	}
	return object
}

// noteUnreadable says that Clusters wait for a right, if the shipped roles do not let the syncer read a kind.
func (r *renderer) noteUnreadable(who string, kind schema.GroupKind) {
	if settings.KindOf(kind) == nil {
		r.note("%s: no shipped role lets the syncer read %s; until a ClusterRole labelled %s: \"true\" does, with get, list and watch, the condition is TemplateValuesUnresolved",
			who, contract.CalculateCRDName(kind.Group, kind.Kind), settings.AggregationLabel)
	}
}

// add adds an object to the result. by names the object for which it is made; empty if several
// Clusters share it.
func (r *renderer) add(object client.Object, by string) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(fields, "status")
	metadata := fields["metadata"].(map[string]any)
	delete(metadata, "creationTimestamp")
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		delete(annotations, desired.HashAnnotation)
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	if owners, ok := metadata["ownerReferences"].([]any); ok {
		for _, owner := range owners {
			delete(owner.(map[string]any), "uid")
		}
	}
	id := identity(fields)
	first, found := r.seen[id]
	switch {
	case !found:
		r.seen[id] = by
		r.result.Objects = append(r.result.Objects, fields)
	case by != "" && first != "":
		return fmt.Errorf("%s and %s would share %s; rename one of them", first, by, id)
	}
	return nil
}

func identity(fields map[string]any) string {
	metadata := fields["metadata"].(map[string]any)
	return fmt.Sprintf("%v %v/%v", fields["kind"], metadata["namespace"], metadata["name"])
}
