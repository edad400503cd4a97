package channels

import (
	"fmt"
	"maps"
	"strings"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/hack/texts"
	"github.com/muster-fleet/muster/internal/manifests"
)

// standard is the namespace of manifests/default.
const standard = "muster-system"

// shipped returns the objects of manifests/default, in the namespace of the scene.
func (s *scene) shipped(g Gomega) []*unstructured.Unstructured {
	read, problems := manifests.Read([]string{s.checkout + "/dist/install.yaml"}, nil)
	g.Expect(problems).To(BeEmpty())
	var result []*unstructured.Unstructured
	for i := range read {
		object := &unstructured.Unstructured{}
		g.Expect(object.UnmarshalJSON(read[i].Raw)).To(Succeed())
		if object.GetNamespace() == standard {
			object.SetNamespace(s.namespace)
		}
		if object.GetKind() == "Namespace" {
			object.SetName(s.namespace)
		}
		result = append(result, object)
	}
	return result
}

func nameOf(object *unstructured.Unstructured) string {
	return object.GetKind() + " " + object.GetName()
}

// present returns the names of the shipped objects that exist on the API server.
func (s *scene) present(g Gomega) []string {
	var result []string
	for _, object := range s.shipped(g) {
		err := s.admin.Get(ctx, client.ObjectKeyFromObject(object), object)
		if err == nil && object.GetDeletionTimestamp() == nil {
			result = append(result, nameOf(object))
		}
		g.Expect(client.IgnoreNotFound(err)).To(Succeed(), nameOf(object))
	}
	return result
}

// installed returns each shipped object as it is on the API server, without the parts that may differ between ways to
// install: see plain.
func (s *scene) installed(g Gomega) map[string]map[string]any {
	result := map[string]map[string]any{}
	for _, object := range s.shipped(g) {
		if object.GetKind() == "Namespace" {
			continue // Helm makes it, without our labels.
		}
		g.Expect(s.admin.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed(), nameOf(object))
		result[nameOf(object)] = s.plain(object)
	}
	return result
}

// notOurs reports whether an installer uses a label or annotation to know what it installed.
func notOurs(key, value string) bool {
	return strings.HasPrefix(key, "helm.sh/") || strings.HasPrefix(key, "meta.helm.sh/") ||
		key == "app.kubernetes.io/managed-by" && value == "Helm" ||
		key == "cluster.x-k8s.io/provider" || key == "clusterctl.cluster.x-k8s.io" ||
		key == "kubectl.kubernetes.io/last-applied-configuration"
}

func (s *scene) plain(object *unstructured.Unstructured) map[string]any {
	metadata := map[string]any{}
	for field, all := range map[string]map[string]string{"labels": object.GetLabels(), "annotations": object.GetAnnotations()} {
		maps.DeleteFunc(all, notOurs)
		if len(all) > 0 {
			metadata[field] = fmt.Sprint(all)
		}
	}
	content := object.Object
	content["metadata"] = metadata
	delete(content, "status")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "labels", "cluster.x-k8s.io/provider")
	// The API server and cert-manager write these fields.
	for _, field := range []string{"clusterIP", "clusterIPs"} {
		unstructured.RemoveNestedField(content, "spec", field)
	}
	if webhooks, found, _ := unstructured.NestedSlice(content, "webhooks"); found {
		for _, webhook := range webhooks {
			unstructured.RemoveNestedField(webhook.(map[string]any), "clientConfig", "caBundle")
		}
		content["webhooks"] = webhooks
	}
	if object.GetKind() == "ClusterRole" && content["aggregationRule"] != nil {
		delete(content, "rules") // A controller fills in the rules.
	}
	// The guide's kustomization sets another namespace and another registry.
	asked := strings.NewReplacer(s.namespace, standard, "registry.example.com/muster/", "ghcr.io/muster-fleet/")
	return texts.Each(content, asked.Replace).(map[string]any)
}
