package stack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/muster-fleet/muster/test/stack/pod"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// webhookConfiguration is what both kinds of webhook configurations share.
type webhookConfiguration struct {
	Webhooks []struct {
		Name         string                                      `json:"name"`
		ClientConfig admissionregistrationv1.WebhookClientConfig `json:"clientConfig"`
	} `json:"webhooks"`
}

// routeWebhooks lets the API server reach Muster's webhooks by the names that ship.
// A Service of type ExternalName is resolved by the API server itself, without a
// Service network, and it still verifies the certificate for <service>.<namespace>.svc.
func (s *Stack) routeWebhooks(ctx context.Context) error {
	for _, object := range s.shipped {
		switch object.GetKind() {
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			if err := s.routeConfiguration(ctx, object); err != nil {
				return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
	}
	return nil
}

func (s *Stack) routeConfiguration(ctx context.Context, shipped *unstructured.Unstructured) error {
	resource, err := s.client.resource(shipped)
	if err != nil {
		return err
	}
	webhooks, _, err := unstructured.NestedSlice(shipped.Object, "webhooks")
	if err != nil {
		return err
	}
	var patch []map[string]any
	for i := range webhooks {
		fields, _ := webhooks[i].(map[string]any)
		reference, found, _ := unstructured.NestedMap(fields, "clientConfig", "service")
		if !found {
			continue
		}
		port, err := s.routeService(ctx, reference)
		if err != nil {
			return err
		}
		patch = append(patch,
			map[string]any{"op": "test", "path": fmt.Sprintf("/webhooks/%d/name", i), "value": fields["name"]},
			map[string]any{"op": "add", "path": fmt.Sprintf("/webhooks/%d/clientConfig/service/port", i), "value": port})
	}
	content, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	if _, err := resource.Patch(ctx, shipped.GetName(), types.JSONPatchType, content, metav1.PatchOptions{}); err != nil {
		return err
	}
	if shipped.GetAnnotations()[certmanagerv1.WantInjectAnnotation] == "" || s.options.WithoutCertManager {
		return nil
	}
	return poll.Until(ctx, "a trusted way to the webhooks", time.Minute, func(ctx context.Context) error {
		live, err := resource.Get(ctx, shipped.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		return dialWebhooks(ctx, live)
	})
}

// routeService points a Service to the process behind it and returns its port.
func (s *Stack) routeService(ctx context.Context, reference map[string]any) (int64, error) {
	namespace, _ := reference["namespace"].(string)
	name, _ := reference["name"].(string)
	asked, ok := reference["port"].(int64)
	if !ok {
		asked = 443
	}
	var service *corev1.Service
	for _, object := range s.shipped {
		if object.GetKind() == "Service" && object.GetNamespace() == namespace && object.GetName() == name {
			var err error
			if service, err = shippedAs[corev1.Service](object); err != nil {
				return 0, err
			}
		}
	}
	if service == nil {
		return 0, fmt.Errorf("its Service %s/%s is not among the manifests", namespace, name)
	}
	port, err := s.portBehind(ctx, service, asked)
	if err != nil {
		return 0, fmt.Errorf("service %s/%s: %w", namespace, name, err)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"type": corev1.ServiceTypeExternalName, "externalName": "127.0.0.1",
		"clusterIP": nil, "clusterIPs": nil,
		// Not a name that ships: applying the manifests again adds the shipped ports back.
		"ports": []map[string]any{{"name": "on-this-host", "port": port, "protocol": "TCP"}},
	}})
	if err != nil {
		return 0, err
	}
	_, err = s.hub.client.CoreV1().Services(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return int64(port), err
}

// portBehind follows a Service's port to the Deployment it selects and from there
// to the port the process got on this host.
func (s *Stack) portBehind(ctx context.Context, service *corev1.Service, asked int64) (int, error) {
	selector := labels.SelectorFromSet(service.Spec.Selector)
	for _, port := range service.Spec.Ports {
		if int64(port.Port) != asked {
			continue
		}
		target := port.TargetPort
		if target == (intstr.IntOrString{}) {
			target = intstr.FromInt32(port.Port)
		}
		for _, object := range s.shipped {
			if object.GetKind() != "Deployment" || object.GetNamespace() != service.Namespace {
				continue
			}
			deployment, err := shippedAs[appsv1.Deployment](object)
			if err != nil {
				return 0, err
			}
			if !selector.Matches(labels.Set(deployment.Spec.Template.Labels)) {
				continue
			}
			container, err := pod.OnlyContainer(deployment)
			if err != nil {
				return 0, err
			}
			port, err := pod.ContainerPort(container, target)
			if err != nil {
				return 0, err
			}
			return s.hostPort(ctx, deployment, port)
		}
		return 0, fmt.Errorf("it selects no Deployment of the manifests")
	}
	return 0, fmt.Errorf("it has no port %d", asked)
}

// dialWebhooks does what the API server will: connect, and verify the name with the
// injected CA.
func dialWebhooks(ctx context.Context, configuration *unstructured.Unstructured) error {
	typed, err := shippedAs[webhookConfiguration](configuration)
	if err != nil {
		return err
	}
	for _, webhook := range typed.Webhooks {
		service := webhook.ClientConfig.Service
		if service == nil || service.Port == nil {
			continue
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(webhook.ClientConfig.CABundle) {
			return fmt.Errorf("webhook %s: no CA is injected yet", webhook.Name)
		}
		dialer := &tls.Dialer{Config: &tls.Config{
			RootCAs: roots, ServerName: service.Name + "." + service.Namespace + ".svc", MinVersion: tls.VersionTLS12,
		}}
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", *service.Port))
		if err != nil {
			return fmt.Errorf("webhook %s: %w", webhook.Name, err)
		}
		_ = conn.Close()
	}
	return nil
}
