package admission

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// Readiness reports whether this replica can answer admission requests: its informers have synced, and it serves
// the certificate that is mounted.
type Readiness struct {
	Cache   cache.Cache
	Port    int
	CertDir string
}

// Check is a readiness check; its error says what is missing.
func (r *Readiness) Check(req *http.Request) error {
	ctx, cancel := context.WithTimeout(req.Context(), patience)
	defer cancel()
	if !r.Cache.WaitForCacheSync(ctx) {
		return errors.New("informers have not synced")
	}
	mounted, err := r.Mounted()
	if err != nil {
		return err
	}
	served, err := r.Served()
	if err != nil {
		return err
	}
	if !served.Equal(mounted) {
		return errors.New("the served certificate is not the mounted one")
	}
	return nil
}

// Mounted returns the certificate that is mounted.
func (r *Readiness) Mounted() (*x509.Certificate, error) {
	path := filepath.Join(r.CertDir, "tls.crt")
	content, err := os.ReadFile(path) //nolint:gosec // The flag names the directory.
	if err != nil {
		return nil, fmt.Errorf("reading the mounted certificate: %w", err)
	}
	certificates, err := certutil.ParseCertsPEM(content)
	if err != nil {
		return nil, fmt.Errorf("%s holds no certificate: %w", path, err)
	}
	return certificates[0], nil
}

// Served returns the certificate that this replica presents to its clients.
func (r *Readiness) Served() (*x509.Certificate, error) {
	// The client only reads the certificate, and sends nothing.
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // The certificate is compared, not trusted.
	connection, err := dialer.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(r.Port)))
	if err != nil {
		return nil, fmt.Errorf("the webhook server does not answer: %w", err)
	}
	defer connection.Close()                                                 //nolint:errcheck // Nothing was sent.
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0], nil // Every TLS server presents one.
}
