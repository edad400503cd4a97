package stack

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
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
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/pod"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// webhookConfiguration holds the fields that both kinds of webhook configurations share.
type webhookConfiguration struct {
	Webhooks []struct {
		Name         string                                      `json:"name"`
		ClientConfig admissionregistrationv1.WebhookClientConfig `json:"clientConfig"`
	} `json:"webhooks"`
}

// route lets the API server reach the webhooks of these objects under their shipped names. The API server itself
// resolves a Service of type ExternalName, without a Service network, and still verifies the certificate for
// <service>.<namespace>.svc.
func (s *Stack) route(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if !strings.HasSuffix(object.GetKind(), "WebhookConfiguration") {
			continue
		}
		if err := s.routeConfiguration(ctx, object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

func (s *Stack) routeConfiguration(ctx context.Context, shipped *unstructured.Unstructured) error {
	configuration, err := typed[webhookConfiguration](shipped)
	if err != nil {
		return err
	}
	var patch []map[string]any
	for i, webhook := range configuration.Webhooks {
		if webhook.ClientConfig.Service == nil {
			continue
		}
		port, err := s.routeService(ctx, webhook.ClientConfig.Service)
		if err != nil {
			return err
		}
		patch = append(patch,
			map[string]any{"op": "test", "path": fmt.Sprintf("/webhooks/%d/name", i), "value": webhook.Name},
			map[string]any{"op": "add", "path": fmt.Sprintf("/webhooks/%d/clientConfig/service/port", i), "value": port})
	}
	content, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	live := shipped.DeepCopy()
	if err := s.client.Patch(ctx, live, client.RawPatch(types.JSONPatchType, content)); err != nil {
		return err
	}
	if shipped.GetAnnotations()[certmanagerv1.WantInjectAnnotation] == "" || s.options.WithoutCertManager {
		return nil
	}
	return poll.Until(ctx, "a trusted way to the webhooks", time.Minute, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(live), live); err != nil {
			return err
		}
		return dialWebhooks(ctx, live)
	})
}

// routeService points a Service to the process behind it and returns its port.
func (s *Stack) routeService(ctx context.Context, reference *admissionregistrationv1.ServiceReference) (int, error) {
	for _, object := range s.shipped {
		if object.GetKind() != "Service" || object.GetNamespace() != reference.Namespace || object.GetName() != reference.Name {
			continue
		}
		service, err := typed[corev1.Service](object)
		if err != nil {
			return 0, err
		}
		port, err := s.portBehind(ctx, service, ptr.Deref(reference.Port, 443))
		if err != nil {
			return 0, fmt.Errorf("service %s/%s: %w", reference.Namespace, reference.Name, err)
		}
		// No shipped port has this name, so applying the manifests again adds the shipped ports back.
		patch := fmt.Sprintf(`{"spec":{"type":"ExternalName","externalName":"127.0.0.1","clusterIP":null,"clusterIPs":null,
			"ports":[{"name":"on-this-host","port":%d,"protocol":"TCP"}]}}`, port)
		_, err = s.hub.client.CoreV1().Services(reference.Namespace).Patch(ctx, reference.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return port, err
	}
	return 0, fmt.Errorf("its Service %s/%s is not among the manifests", reference.Namespace, reference.Name)
}

// portBehind returns the port on this host for a Service's port, through the Deployment that the Service selects.
func (s *Stack) portBehind(ctx context.Context, service *corev1.Service, asked int32) (int, error) {
	selector := labels.SelectorFromSet(service.Spec.Selector)
	for _, object := range s.shipped {
		if object.GetKind() != "Deployment" || object.GetNamespace() != service.Namespace {
			continue
		}
		deployment, err := typed[appsv1.Deployment](object)
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
		for _, port := range service.Spec.Ports {
			if port.Port != asked {
				continue
			}
			target := port.TargetPort
			if target == (intstr.IntOrString{}) {
				target = intstr.FromInt32(port.Port)
			}
			number, err := pod.ContainerPort(container, target)
			if err != nil {
				return 0, err
			}
			return s.hostPort(ctx, deployment, number)
		}
	}
	return 0, fmt.Errorf("it has no port %d that leads to a Deployment of the manifests", asked)
}

// dialWebhooks connects like the API server, and verifies the name with the injected CA.
func dialWebhooks(ctx context.Context, object *unstructured.Unstructured) error {
	configuration, err := typed[webhookConfiguration](object)
	if err != nil {
		return err
	}
	for _, webhook := range configuration.Webhooks {
		service := webhook.ClientConfig.Service
		if service == nil || service.Port == nil {
			continue
		}
		if err := handshake(ctx, int(*service.Port), webhook.ClientConfig.CABundle, service.Name+"."+service.Namespace+".svc"); err != nil {
			return fmt.Errorf("webhook %s: %w", webhook.Name, err)
		}
	}
	return nil
}

// handshake connects to a server on this host, and verifies its certificate.
func handshake(ctx context.Context, port int, ca []byte, name string) error {
	roots, err := cert.NewPoolFromBytes(ca)
	if err != nil {
		return fmt.Errorf("the CA: %w", err)
	}
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}}
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return connection.Close()
}
