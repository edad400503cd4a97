// Package load makes Clusters as platforms have them, many of them, and plays Cluster API
// for them: a kubeadm control plane of about 12 KiB and an infrastructure object each, of
// several classes in a namespace of their own, used from several namespaces.
package load

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// ClassNamespace is where all classes live.
const ClassNamespace = "bench-classes"

// Shape says how Clusters are spread.
type Shape struct {
	// Prefix begins the name of each namespace.
	Prefix string
	// Namespaces and Classes are taken in turns: the first Clusters are of the first
	// class, one in each namespace.
	Namespaces, Classes int
	// Labels are on each namespace.
	Labels map[string]string
}

// Namespace returns the namespace of a Cluster.
func (s Shape) Namespace(i int) string { return fmt.Sprintf("%s-%02d", s.Prefix, i%s.Namespaces) }

// Class returns the class of a Cluster.
func (s Shape) Class(i int) string { return className(i / s.Namespaces % s.Classes) }

// Key returns the name of a Cluster, and of the objects it refers to.
func (s Shape) Key(i int) client.ObjectKey {
	return client.ObjectKey{Namespace: s.Namespace(i), Name: fmt.Sprintf("cluster-%05d", i)}
}

func className(i int) string { return fmt.Sprintf("class-%d", i) }

//go:embed *.yaml
var files embed.FS

// Kinds of the objects of a Cluster, by the file that shows one.
const (
	ClusterFile        = "cluster.yaml"
	ControlPlaneFile   = "kubeadm_control_plane.yaml"
	InfrastructureFile = "dev_cluster.yaml"
)

// templates are the files as JSON: parsing JSON is much faster, and there are thousands.
var templates = func() map[string]string {
	result := map[string]string{}
	for _, name := range []string{ClusterFile, ControlPlaneFile, InfrastructureFile} {
		content, err := files.ReadFile(name)
		if err == nil {
			content, err = yaml.YAMLToJSON(content)
		}
		if err != nil { // The files are part of the program.
			panic(fmt.Sprintf("%s: %v", name, err))
		}
		result[name] = string(content)
	}
	return result
}()

// Object returns the object of a Cluster that a file shows.
func (s Shape) Object(file string, i int) (*unstructured.Unstructured, error) {
	key := s.Key(i)
	text := strings.NewReplacer("CLASSNAMESPACE", ClassNamespace, "CLASS", s.Class(i), "NAMESPACE", key.Namespace, "NAME", key.Name).Replace(templates[file])
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &object.Object); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return object, nil
}

func (s Shape) namespaceObject(i int) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("v1")
	object.SetKind("Namespace")
	object.SetName(s.Namespace(i))
	object.SetLabels(maps.Clone(s.Labels))
	return object
}
