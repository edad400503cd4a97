package pki

import (
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/test/stack/files"
)

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

// User reads a client certificate that was issued.
func (p *PKI) User(file string) (*clientcmdapi.AuthInfo, error) {
	cert, err := os.ReadFile(p.Path(file + ".crt"))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(p.Path(file + ".key"))
	if err != nil {
		return nil, err
	}
	return &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, nil
}

// WriteKubeconfig writes a kubeconfig that no reader sees half of.
func WriteKubeconfig(path string, config *clientcmdapi.Config) error {
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return files.WriteAtomically(path, content)
}
