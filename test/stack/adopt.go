package stack

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// adopted are the kinds that say what runs and how the API server finds it.
var adopted = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Version: "v1", Resource: "services"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
}

// Adopt runs the Deployments that somebody else installed into a namespace, and leads the
// API server to their webhooks. Where no webhook of Muster's is in another namespace, this
// is what the API server and the nodes of a cluster would do. It returns the names of the
// processes.
func (s *Stack) Adopt(ctx context.Context, namespace string) ([]string, error) {
	if err := s.tools.BuildMuster(ctx, s.options.Progress); err != nil {
		return nil, err
	}
	s.shipped = nil
	var names []string
	for _, kind := range adopted {
		list, err := s.client.client.Resource(kind).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if object := &list.Items[i]; isIn(object, namespace) {
				s.shipped = append(s.shipped, object)
			}
		}
	}
	for _, object := range s.shipped {
		if object.GetKind() != "Deployment" {
			continue
		}
		name, err := s.startReplica(ctx, namespace, object.GetName(), 0)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no Deployment in namespace %s", namespace)
	}
	return names, s.routeWebhooks(ctx)
}

// Route leads the API server to the webhooks of what was adopted once more, after somebody
// has applied it again.
func (s *Stack) Route(ctx context.Context) error { return s.routeWebhooks(ctx) }

// isIn says whether an object is in a namespace, or sends requests to one.
func isIn(object *unstructured.Unstructured, namespace string) bool {
	if object.GetNamespace() != "" {
		return object.GetNamespace() == namespace
	}
	webhooks, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
	for _, webhook := range webhooks {
		fields, _ := webhook.(map[string]any)
		to, _, _ := unstructured.NestedString(fields, "clientConfig", "service", "namespace")
		if to == namespace {
			return true
		}
	}
	return false
}
