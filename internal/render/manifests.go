package render

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// Manifests are the objects to render from, sorted by what they are for.
type Manifests struct {
	Clusters []*clusterv1.Cluster
	Classes  []*desired.Class
	// Config is nil if the manifests hold no FleetAddonConfig.
	Config     *addonsv1.FleetAddonConfig
	Namespaces map[string]map[string]string
	// Others are what Clusters may refer to.
	Others map[reference]*unstructured.Unstructured
}

type reference struct {
	group, kind string
	types.NamespacedName
}

// Read adds the objects of a stream of YAML or JSON documents. An object without a
// namespace is taken to be in "default", as kubectl does. The error names the document.
func (m *Manifests) Read(from io.Reader) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(from))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := m.add(object); err != nil {
			return fmt.Errorf("document %d, %s %s: %w", number, object.GetKind(), object.GetName(), err)
		}
	}
}

func (m *Manifests) add(object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	if kind.Group == clusterv1.GroupVersion.Group && kind.Version != clusterv1.GroupVersion.Version &&
		(kind.Kind == clusterv1.ClusterKind || kind.Kind == clusterv1.ClusterClassKind) {
		return fmt.Errorf("is %s; convert it to %s first, for example by kubectl apply --dry-run=server -o yaml", object.GetAPIVersion(), clusterv1.GroupVersion)
	}
	switch kind.GroupKind() {
	case clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind).GroupKind():
		inDefault(object)
		cluster := &clusterv1.Cluster{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, cluster); err != nil {
			return err
		}
		m.Clusters = append(m.Clusters, cluster)
	case clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind).GroupKind():
		inDefault(object)
		class := &desired.Class{}
		class.Namespace, class.Name = object.GetNamespace(), object.GetName()
		class.Labels = object.GetLabels()
		m.Classes = append(m.Classes, class)
	case addonsv1.GroupVersion.WithKind("FleetAddonConfig").GroupKind():
		if m.Config != nil {
			return errors.New("is the second FleetAddonConfig; there is one")
		}
		m.Config = &addonsv1.FleetAddonConfig{}
		return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, m.Config, true)
	case corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind():
		if m.Namespaces == nil {
			m.Namespaces = map[string]map[string]string{}
		}
		m.Namespaces[object.GetName()] = object.GetLabels()
	default:
		inDefault(object)
		if m.Others == nil {
			m.Others = map[reference]*unstructured.Unstructured{}
		}
		m.Others[reference{kind.Group, kind.Kind, types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}] = object
	}
	return nil
}

func inDefault(object *unstructured.Unstructured) {
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
}

// namespaceLabels returns the labels a Namespace has: those of its manifest, and the
// one that every Namespace has.
func (m *Manifests) namespaceLabels(name string) map[string]string {
	labels := map[string]string{corev1.LabelMetadataName: name}
	for key, value := range m.Namespaces[name] {
		labels[key] = value
	}
	return labels
}

func (m *Manifests) class(key types.NamespacedName) *desired.Class {
	for _, class := range m.Classes {
		if class.Namespace == key.Namespace && class.Name == key.Name {
			return class
		}
	}
	return nil
}
