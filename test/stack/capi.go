package stack

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// chooseCAPIPorts chooses the ports of the webhooks of Cluster API's managers. The CRDs name the conversion
// webhooks, so the ports are chosen before the CRDs are applied.
func (s *Stack) chooseCAPIPorts() (err error) {
	s.capi = map[string]int{}
	for _, provider := range parts.CAPIProviders {
		if s.capi[provider.Name], err = s.leases.Port(0); err != nil {
			return err
		}
	}
	return nil
}

// loopbackClient returns the client configuration by which the API server reaches a manager's webhook. It uses a
// URL, because there is no Service network.
func (s *Stack) loopbackClient(provider, path string) map[string]any {
	return map[string]any{
		"url":      fmt.Sprintf("https://127.0.0.1:%d%s", s.capi[provider], path),
		"caBundle": base64.StdEncoding.EncodeToString(s.hub.pki.CA()),
	}
}

// capiSpecs returns Cluster API's core, kubeadm and in-memory infrastructure managers.
func (s *Stack) capiSpecs() ([]process.Spec, error) {
	// The files are named as in a mounted TLS Secret.
	if err := s.hub.pki.Issue("capi-webhooks/tls", "webhook"); err != nil {
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
		port, err := s.leases.Port(0)
		if err != nil {
			return nil, err
		}
		health := fmt.Sprintf("127.0.0.1:%d", port)
		spec := process.Spec{
			Name: provider.Name, Path: s.tools.Bin(provider.Name), Port: s.capi[provider.Name],
			Args: []string{
				"--kubeconfig=" + kubeconfig,
				"--webhook-cert-dir=" + s.hub.pki.Path("capi-webhooks"), fmt.Sprintf("--webhook-port=%d", s.capi[provider.Name]),
				"--health-addr=" + health, "--diagnostics-address=0", "--insecure-diagnostics=true",
				// The rate limit of one reconcile per second and object is for big fleets.
				fmt.Sprintf("--feature-gates=ClusterTopology=true,MachinePool=false,ReconcilerRateLimiting=false,RuntimeSDK=%t", s.options.RuntimeSDK),
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

// installCAPIWebhooks applies the webhook configurations of the running managers. Their names are the same as in a
// real installation, because the API server calls mutating webhooks in the order of names.
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
			if err := s.apply(ctx, object); err != nil {
				return err
			}
		}
		if err := poll.Until(ctx, provider.Name+"'s webhooks", time.Minute, func(ctx context.Context) error {
			return handshake(ctx, s.capi[provider.Name], s.hub.pki.CA(), "localhost")
		}); err != nil {
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

// certManagerSpecs returns cert-manager: controllers and CA injector in one process.
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
