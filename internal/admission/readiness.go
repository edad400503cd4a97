package admission

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"
)

const dialTimeout = time.Second

// Readiness reports whether this replica can answer admission requests: its informers have synced, and it serves
// the certificate that is mounted.
type Readiness struct {
	Cache   cache.Cache
	Port    int
	CertDir string
}

// Check is a readiness check; its error says what is missing.
func (r *Readiness) Check(req *http.Request) error {
	ctx, cancel := context.WithTimeout(req.Context(), dialTimeout)
	defer cancel()
	if !r.Cache.WaitForCacheSync(ctx) {
		return errors.New("informers have not synced")
	}
	mounted, err := r.mounted()
	if err != nil {
		return err
	}
	served, err := r.served(ctx)
	if err != nil {
		return err
	}
	if !served.Equal(mounted) {
		return errors.New("the served certificate is not the mounted one")
	}
	return nil
}

// MountedUntil returns when the mounted certificate expires.
func (r *Readiness) MountedUntil() (time.Time, error) {
	certificate, err := r.mounted()
	if err != nil {
		return time.Time{}, err
	}
	return certificate.NotAfter, nil
}

// ServedUntil returns when the certificate that this replica serves expires.
func (r *Readiness) ServedUntil() (time.Time, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	certificate, err := r.served(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return certificate.NotAfter, nil
}

func (r *Readiness) mounted() (*x509.Certificate, error) {
	path := filepath.Join(r.CertDir, "tls.crt")
	content, err := os.ReadFile(path) //nolint:gosec // The flag names the directory.
	if err != nil {
		return nil, fmt.Errorf("reading the mounted certificate: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("%s holds no certificate", path)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading the mounted certificate: %w", err)
	}
	return certificate, nil
}

// served returns the certificate that this replica presents to its clients.
func (r *Readiness) served(ctx context.Context) (*x509.Certificate, error) {
	// The client only reads the certificate, and sends nothing.
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // The certificate is compared, not trusted.
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(r.Port)))
	if err != nil {
		return nil, fmt.Errorf("the webhook server does not answer: %w", err)
	}
	defer connection.Close() //nolint:errcheck // Nothing was sent.
	certificates := connection.(*tls.Conn).ConnectionState().PeerCertificates
	if len(certificates) == 0 {
		return nil, errors.New("the webhook server presents no certificate")
	}
	return certificates[0], nil
}
