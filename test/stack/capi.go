package stack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// capiPorts are where Cluster API's managers listen. They are chosen before the CRDs
// are applied, because those name the conversion webhooks.
type capiPorts struct{ webhook, health, diagnostics map[string]int }

func (s *Stack) chooseCAPIPorts() error {
	s.capi = capiPorts{map[string]int{}, map[string]int{}, map[string]int{}}
	for _, provider := range parts.CAPIProviders {
		for _, ports := range []map[string]int{s.capi.webhook, s.capi.health, s.capi.diagnostics} {
			port, err := s.leases.Port(0)
			if err != nil {
				return err
			}
			ports[provider.Name] = port
		}
	}
	return nil
}

// loopbackClient is how the API server reaches a manager's webhook: by URL, as
// there is no Service network here.
func (s *Stack) loopbackClient(provider, path string) map[string]any {
	return map[string]any{
		"url":      fmt.Sprintf("https://127.0.0.1:%d%s", s.capi.webhook[provider], path),
		"caBundle": base64.StdEncoding.EncodeToString(s.hub.pki.CA()),
	}
}

// convertThrough points the conversion of a provider's CRD to its manager.
func (s *Stack) convertThrough(provider string, crd *unstructured.Unstructured) error {
	if _, found, _ := unstructured.NestedMap(crd.Object, "spec", "conversion", "webhook"); !found {
		return nil
	}
	return unstructured.SetNestedMap(crd.Object, s.loopbackClient(provider, "/convert"), "spec", "conversion", "webhook", "clientConfig")
}

// capiSpecs are Cluster API's core, kubeadm and in-memory infrastructure managers.
func (s *Stack) capiSpecs() ([]process.Spec, error) {
	certs := filepath.Join(s.dir, "capi-webhook-certs")
	if err := s.issueServing(certs); err != nil {
		return nil, err
	}
	address, err := s.leases.Address()
	if err != nil {
		return nil, err
	}
	var specs []process.Spec
	for _, provider := range parts.CAPIProviders {
		kubeconfig, err := s.hub.userKubeconfig(provider.Name, "system:masters")
		if err != nil {
			return nil, err
		}
		health := fmt.Sprintf("127.0.0.1:%d", s.capi.health[provider.Name])
		spec := process.Spec{
			Name: provider.Name, Path: s.tools.Bin(provider.Name), Port: s.capi.webhook[provider.Name],
			Args: []string{
				"--kubeconfig=" + kubeconfig,
				"--webhook-cert-dir=" + certs, fmt.Sprintf("--webhook-port=%d", s.capi.webhook[provider.Name]),
				"--health-addr=" + health,
				fmt.Sprintf("--diagnostics-address=127.0.0.1:%d", s.capi.diagnostics[provider.Name]), "--insecure-diagnostics=true",
				// The rate limit of one reconcile per second and object is for big fleets.
				"--feature-gates=ClusterTopology=true,MachinePool=false,ReconcilerRateLimiting=false",
				"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
			},
			Ready: poll.Answers(http.DefaultClient, "http://"+health+"/readyz"),
		}
		if provider.Name == "capd" {
			// The API servers of in-memory clusters listen on this address.
			spec.Env = []string{"HOME=" + s.dir, "TMPDIR=" + s.dir, "POD_IP=" + address}
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// issueServing writes a serving certificate the way a mounted TLS Secret looks.
func (s *Stack) issueServing(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := s.hub.pki.Issue("webhook", "webhook"); err != nil {
		return err
	}
	for from, to := range map[string]string{"webhook.crt": "tls.crt", "webhook.key": "tls.key"} {
		content, err := os.ReadFile(s.hub.pki.Path(from))
		if err != nil {
			return err
		}
		if err := files.WriteAtomically(filepath.Join(dir, to), content); err != nil {
			return err
		}
	}
	return nil
}

// installCAPIWebhooks applies the webhook configurations of the running managers.
// Their names are those of a real installation: the API server calls mutating
// webhooks in the order of names.
func (s *Stack) installCAPIWebhooks(ctx context.Context) error {
	begin := time.Now()
	for _, provider := range parts.CAPIProviders {
		content, err := os.ReadFile(filepath.Join(s.tools.Manifests, provider.Name+"-webhooks.yaml"))
		if err != nil {
			return err
		}
		objects, err := decode(content)
		if err != nil {
			return err
		}
		for _, object := range objects {
			object.SetName(provider.Prefix + object.GetName())
			if err := s.loopbackWebhooks(provider.Name, object); err != nil {
				return fmt.Errorf("%s: %w", object.GetName(), err)
			}
			if err := s.client.applyObject(ctx, object); err != nil {
				return fmt.Errorf("%s: %w", object.GetName(), err)
			}
		}
		if err := poll.Until(ctx, provider.Name+"'s webhooks", time.Minute, s.webhookListens(provider.Name)); err != nil {
			return err
		}
	}
	s.say("Cluster API's webhooks installed (%s)", poll.Since(begin))
	return nil
}

func (s *Stack) loopbackWebhooks(provider string, configuration *unstructured.Unstructured) error {
	webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		fields, ok := webhook.(map[string]any)
		if !ok {
			return fmt.Errorf("webhook is a %T", webhook)
		}
		path, _, err := unstructured.NestedString(fields, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		fields["clientConfig"] = s.loopbackClient(provider, path)
	}
	return unstructured.SetNestedSlice(configuration.Object, webhooks, "webhooks")
}

// webhookListens is a condition: the manager's webhook server completes a TLS
// handshake that the API server would accept.
func (s *Stack) webhookListens(provider string) func(context.Context) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.hub.pki.CA())
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	return func(ctx context.Context) error {
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", s.capi.webhook[provider]))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// certManagerSpecs is cert-manager: controllers and CA injector in one process.
func (s *Stack) certManagerSpecs() ([]process.Spec, error) {
	if s.options.WithoutCertManager {
		return nil, nil
	}
	kubeconfig, err := s.hub.userKubeconfig("cert-manager", "system:masters")
	if err != nil {
		return nil, err
	}
	port, err := s.leases.Port(0)
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return []process.Spec{{
		Name: "cert-manager", Path: s.tools.Bin("cert-manager"), Port: port,
		Args:  []string{"--kubeconfig=" + kubeconfig, "--health-addr=" + address},
		Ready: poll.Answers(http.DefaultClient, "http://"+address+"/readyz"),
	}}, nil
}
