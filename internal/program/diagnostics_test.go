package program

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	certutil "k8s.io/client-go/util/cert"
)

func TestDiagnosticsCertificate(t *testing.T) {
	dir := t.TempDir()
	f := Flags{DiagnosticsCertDir: dir}
	f.Manager.TLSMinVersion, f.Manager.DiagnosticsAddress = "VersionTLS12", ":0"
	others, options, err := f.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	var diagnostics, other tls.Config
	for _, option := range options.TLSOpts {
		option(&diagnostics)
	}
	for _, option := range others {
		option(&other)
	}
	if other.GetCertificate != nil {
		t.Error("other servers get the certificate of diagnostics")
	}
	served := func() []byte {
		t.Helper()
		certificate, err := diagnostics.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return certificate.Certificate[0]
	}
	mount := func(name string) {
		t.Helper()
		cert, key, err := certutil.GenerateSelfSignedCertKey(name, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
			if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}

	selfSigned := served()
	mount("first")
	first := served()
	if bytes.Equal(first, selfSigned) {
		t.Error("the certificate was mounted, but is not served")
	}
	mount("second")
	second := served()
	if bytes.Equal(second, first) {
		t.Error("the certificate was renewed, but is not served")
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.key"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(served(), second) {
		t.Error("the last readable certificate is not served")
	}
}
