package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const noopPath = "/noop"

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
	if err := env.Apply(ctx, `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: bench-noop, namespace: muster-system}
spec:
  secretName: bench-noop-tls
  subject: {organizations: [muster-fleet]}
  dnsNames: [bench-noop.muster-system.svc]
  privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
  usages: [digital signature, server auth]
  issuerRef: {group: cert-manager.io, kind: Issuer, name: muster-ca}
`); err != nil {
		return 0, nil, err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: "bench-noop-tls"}}
	if err := poll.Until(ctx, "the no-op webhook's certificate", time.Minute, func(ctx context.Context) error {
		return admin.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	}); err != nil {
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
metadata: {name: bench-noop, namespace: muster-system}
spec: {type: ExternalName, externalName: 127.0.0.1, ports: [{name: webhook, port: %d, protocol: TCP}]}
`, port))
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
