package program

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"

	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// ManagerOptions returns the TLS options for servers other than diagnostics, and the options for
// diagnostics.
func (f *Flags) ManagerOptions() ([]func(*tls.Config), *metricsserver.Options, error) {
	tlsOptions, diagnostics, err := flags.GetManagerOptions(f.Manager)
	if err != nil || f.DiagnosticsCertDir == "" {
		return tlsOptions, diagnostics, err
	}
	certificate, err := newDiagnosticsCertificate(f.DiagnosticsCertDir)
	if err != nil {
		return nil, nil, err
	}
	diagnostics.TLSOpts = append(slices.Clone(diagnostics.TLSOpts), func(config *tls.Config) { config.GetCertificate = certificate.get })
	return tlsOptions, diagnostics, nil
}

// diagnosticsCertificate is the mounted certificate, or a self-signed one until that exists. So metrics do
// not wait for cert-manager, and no restart is needed later.
type diagnosticsCertificate struct {
	dir  string
	last atomic.Pointer[tls.Certificate]
}

func newDiagnosticsCertificate(dir string) (*diagnosticsCertificate, error) {
	cert, key, err := certutil.GenerateSelfSignedCertKeyWithFixtures("localhost", []net.IP{{127, 0, 0, 1}}, nil, "")
	if err != nil {
		return nil, fmt.Errorf("making a certificate for diagnostics: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate for diagnostics: %w", err)
	}
	result := &diagnosticsCertificate{dir: dir}
	result.last.Store(&pair)
	return result, nil
}

// get reads the certificate at each handshake, of which there are few. While it cannot be read, for
// example during its replacement, the last one stays in use.
func (c *diagnosticsCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.dir, "tls.crt"), filepath.Join(c.dir, "tls.key"))
	switch {
	case err == nil:
		c.last.Store(&pair)
	case !errors.Is(err, fs.ErrNotExist):
		ctrl.Log.Error(err, "The certificate for diagnostics cannot be read", "directory", c.dir)
	}
	return c.last.Load(), nil
}
