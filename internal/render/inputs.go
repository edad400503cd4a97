package render

import (
	"cmp"
	"errors"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/json"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// inputs are the objects to render from, by purpose.
type inputs struct {
	clusters []*clusterv1.Cluster
	classes  []*desired.Class
	// madeBy are the kinds that the Clusters of a class refer to.
	madeBy map[types.NamespacedName][]schema.GroupKind
	// config is nil if there is no FleetAddonConfig.
	config *addonsv1.FleetAddonConfig
	// proxies are HelmChartProxies.
	proxies    []*addonsv1.HelmChartProxy
	namespaces map[string]map[string]string
	// others are the objects that Clusters may refer to.
	others map[reference]map[string]any
}

type reference struct {
	group, kind string
	types.NamespacedName
}

// sorted sorts objects by purpose. The error names an unusable object.
func sorted(objects []manifests.Object) (*inputs, error) {
	in := &inputs{namespaces: map[string]map[string]string{}, madeBy: map[types.NamespacedName][]schema.GroupKind{}, others: map[reference]map[string]any{}}
	for i := range objects {
		if err := in.add(&objects[i]); err != nil {
			return nil, objects[i].Wrap(err)
		}
	}
	return in, nil
}

// add adds an object. Without a namespace it is in "default", as for kubectl.
func (in *inputs) add(object *manifests.Object) error {
	kind := object.GroupVersionKind()
	namespace := cmp.Or(object.Namespace, metav1.NamespaceDefault)
	switch kind.GroupKind() {
	case clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind).GroupKind():
		cluster, err := readCluster(object)
		if err != nil {
			return err
		}
		cluster.Namespace = namespace
		in.clusters = append(in.clusters, cluster)
	case clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind).GroupKind():
		class := object.PartialObjectMetadata
		class.Namespace = namespace
		in.classes = append(in.classes, &class)
		in.madeBy[types.NamespacedName{Namespace: namespace, Name: object.Name}] = madeBy(object.Raw)
	case addonsv1.GroupVersion.WithKind("FleetAddonConfig").GroupKind():
		if in.config != nil {
			return errors.New("is a second FleetAddonConfig; there may be only one")
		}
		in.config = &addonsv1.FleetAddonConfig{}
		unknown, err := json.UnmarshalStrict(object.Raw, in.config)
		return errors.Join(err, errors.Join(unknown...))
	case addonsv1.GroupVersion.WithKind("HelmChartProxy").GroupKind():
		proxy := &addonsv1.HelmChartProxy{}
		unknown, err := json.UnmarshalStrict(object.Raw, proxy)
		proxy.Namespace = namespace
		in.proxies = append(in.proxies, proxy)
		return errors.Join(err, errors.Join(unknown...))
	case corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind():
		in.namespaces[object.Name] = object.Labels
	default:
		fields, err := readOther(object)
		if err != nil {
			return err
		}
		(&unstructured.Unstructured{Object: fields}).SetNamespace(namespace)
		in.others[reference{kind.Group, kind.Kind, types.NamespacedName{Namespace: namespace, Name: object.Name}}] = fields
	}
	return nil
}

// namespaceLabels returns the labels of a Namespace: those in its manifest, and the one that every
// Namespace has.
func (in *inputs) namespaceLabels(name string) map[string]string {
	labels := map[string]string{corev1.LabelMetadataName: name}
	maps.Copy(labels, in.namespaces[name])
	return labels
}

func (in *inputs) class(key types.NamespacedName) *desired.Class {
	for _, class := range in.classes {
		if class.Namespace == key.Namespace && class.Name == key.Name {
			return class
		}
	}
	return nil
}

// madeBy returns the kinds of the objects that Cluster API makes from the templates of a ClusterClass for each of its
// Clusters, in either version. A class that cannot be read has none: lint says what is wrong with it.
func madeBy(class []byte) []schema.GroupKind {
	type template struct {
		TemplateRef metav1.TypeMeta `json:"templateRef"`
		Ref         metav1.TypeMeta `json:"ref"`
	}
	var its struct {
		Spec struct {
			ControlPlane   template `json:"controlPlane"`
			Infrastructure template `json:"infrastructure"`
		} `json:"spec"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(class, &its); err != nil {
		return nil
	}
	var kinds []schema.GroupKind
	for _, part := range []template{its.Spec.ControlPlane, its.Spec.Infrastructure} {
		ref := cmp.Or(part.TemplateRef, part.Ref)
		if kind, ok := strings.CutSuffix(ref.Kind, clusterv1.TemplateSuffix); ok {
			kinds = append(kinds, schema.GroupKind{Group: ref.GroupVersionKind().Group, Kind: kind})
		}
	}
	return kinds
}
