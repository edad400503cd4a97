// Package pki makes the certificate authority of an API server, and kubeconfigs for its clients.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/muster-fleet/muster/test/stack/files"
)

// PKI is the certificate authority of one API server, kept in a directory.
type PKI struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New creates a certificate authority.
func New(dir string) (*PKI, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p := &PKI{dir: dir, key: key}
	if p.cert, err = cert.NewSelfSignedCACert(cert.Config{CommonName: "muster-stack-ca", NotBefore: time.Now().Add(-time.Hour)}, key); err != nil {
		return nil, err
	}
	return p, cert.WriteCert(p.Path("ca.crt"), p.CA())
}

// Path returns the path of one of its files.
func (p *PKI) Path(name string) string { return filepath.Join(p.dir, name) }

// CA returns the certificate of the authority.
func (p *PKI) CA() []byte { return certificatePEM(p.cert.Raw) }

// Issue writes a certificate as <file>.crt and <file>.key. It is valid for serving on loopback, and for the user
// with this name and these groups.
func (p *PKI) Issue(file, user string, groups ...string) error {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		return fmt.Errorf("issue %s: %w", file, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	return errors.Join(err, cert.WriteCert(p.Path(file+".crt"), certificatePEM(der)), keyutil.WriteKey(p.Path(file+".key"), keyPEM))
}

// User reads a client certificate that Issue has written.
func (p *PKI) User(file string) (*clientcmdapi.AuthInfo, error) {
	certificate, certErr := os.ReadFile(p.Path(file + ".crt"))
	key, keyErr := os.ReadFile(p.Path(file + ".key"))
	return &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}, errors.Join(certErr, keyErr)
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}

// Kubeconfig builds a kubeconfig with one context.
func Kubeconfig(server string, ca []byte, user *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	const name = "muster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return config
}

// WriteKubeconfig writes a kubeconfig atomically.
func WriteKubeconfig(path string, config *clientcmdapi.Config) error {
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return files.WriteAtomically(path, content)
}
