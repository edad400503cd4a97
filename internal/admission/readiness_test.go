package admission

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
)

// certificate makes a self-signed certificate, and returns it as PEM and as a tls.Certificate.
func certificate(t *testing.T, number int64) ([]byte, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(number), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A replica that serves a certificate other than the mounted one is not ready, because the API server may no longer
// trust it.
func TestReadiness(t *testing.T) {
	mounted, servedToo := certificate(t, 1)
	renewed, _ := certificate(t, 2)
	listener, err := tls.Listen("tcp", "localhost:0", &tls.Config{Certificates: []tls.Certificate{servedToo}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = connection.(*tls.Conn).Handshake() }()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	silent, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := silent.Addr().(*net.TCPAddr).Port
	_ = silent.Close()

	for name, test := range map[string]struct {
		file     []byte // of tls.crt; nil if there is none
		unsynced bool
		port     int
		want     string // part of the error, empty if it is ready
	}{
		"the mounted certificate is served":              {file: mounted},
		"with the chain of its authority":                {file: append(append([]byte{}, mounted...), renewed...)},
		"another one is mounted":                         {file: renewed, want: "the served certificate is not the mounted one"},
		"nothing is mounted":                             {want: "reading the mounted certificate"},
		"the mounted file is not a certificate":          {file: []byte("none"), want: "holds no certificate"},
		"nothing is served":                              {file: mounted, port: unused, want: "does not answer"},
		"informers have not synced":                      {file: mounted, unsynced: true, want: "informers have not synced"},
		"several problems: informers are reported first": {unsynced: true, want: "informers have not synced"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if test.file != nil {
				if err := os.WriteFile(filepath.Join(dir, "tls.crt"), test.file, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			port := listener.Addr().(*net.TCPAddr).Port
			if test.port != 0 {
				port = test.port
			}
			readiness := &Readiness{Cache: &informertest.FakeInformers{Synced: ptr.To(!test.unsynced)}, Port: port, CertDir: dir}
			err := readiness.Check(httptest.NewRequest("GET", "/readyz", nil))
			switch {
			case test.want == "" && err != nil:
				t.Errorf("not ready: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, not an error with %q", err, test.want)
			}
		})
	}
}
