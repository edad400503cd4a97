package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// The no-op's name, which is that of its Service, and where it is served.
const (
	noopName = "bench-noop"
	noopPath = "/noop"
)

// serveNoop serves a webhook that allows everything, on the server that Muster's webhook
// is built on. It ends with the benchmark, which holds its standard input open.
func serveNoop(ctx context.Context, certDir string, port int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	server := webhook.NewServer(webhook.Options{Port: port, CertDir: certDir})
	server.Register(noopPath, &admission.Webhook{Handler: admission.HandlerFunc(
		func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })})
	return server.Start(ctx)
}

// startNoop runs it as a process of its own, with a certificate of the same issuer and
// kind as Muster's, behind a Service as Muster's is here.
func startNoop(ctx context.Context, env *stack.Stack, admin client.Client) (port int, stop func(), err error) {
	secret, err := issueNoop(ctx, admin)
	if err != nil {
		return 0, nil, err
	}
	dir := filepath.Join(env.Dir(), "noop-tls")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, err
	}
	for name, content := range secret.Data {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return 0, nil, err
		}
	}
	if port, err = freePort(); err != nil {
		return 0, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-serve-noop="+dir, "-port="+strconv.Itoa(port))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	stop = func() { _ = input.Close(); _ = cmd.Wait() }
	return port, stop, env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: muster-system}
spec: {type: ExternalName, externalName: 127.0.0.1, ports: [{name: webhook, port: %d, protocol: TCP}]}
`, noopName, port))
}

// issueNoop has a certificate issued for it and returns the Secret.
func issueNoop(ctx context.Context, admin client.Client) (*corev1.Secret, error) {
	certificate := &certmanagerv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: noopName},
		Spec: certmanagerv1.CertificateSpec{
			SecretName: noopName + "-tls",
			Subject:    &certmanagerv1.X509Subject{Organizations: []string{"muster-fleet"}},
			DNSNames:   []string{noopName + ".muster-system.svc"},
			PrivateKey: &certmanagerv1.CertificatePrivateKey{
				Algorithm: certmanagerv1.ECDSAKeyAlgorithm, Size: 256, RotationPolicy: certmanagerv1.RotationPolicyAlways},
			Usages:    []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageServerAuth},
			IssuerRef: cmmetav1.IssuerReference{Group: certmanagerv1.SchemeGroupVersion.Group, Kind: certmanagerv1.IssuerKind, Name: "muster-ca"},
		},
	}
	if err := admin.Create(ctx, certificate); err != nil {
		return nil, err
	}
	if err := poll.Until(ctx, "the no-op webhook's certificate", time.Minute, func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(certificate), certificate); err != nil {
			return err
		}
		if !slices.ContainsFunc(certificate.Status.Conditions, func(c certmanagerv1.CertificateCondition) bool {
			return c.Type == certmanagerv1.CertificateConditionReady && c.Status == cmmetav1.ConditionTrue
		}) {
			return fmt.Errorf("conditions are %v", certificate.Status.Conditions)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	return secret, admin.Get(ctx, client.ObjectKey{Namespace: certificate.Namespace, Name: certificate.Spec.SecretName}, secret)
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
