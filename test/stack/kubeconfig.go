package stack

import (
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/test/stack/files"
)

// kubeconfigFor builds a kubeconfig with one context.
func kubeconfigFor(server string, ca []byte, user *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	const name = "muster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return config
}

// certificateUser reads a client certificate that the pki issued.
func (p *pki) certificateUser(file string) (*clientcmdapi.AuthInfo, error) {
	cert, err := os.ReadFile(p.path(file + ".crt"))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(p.path(file + ".key"))
	if err != nil {
		return nil, err
	}
	return &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, nil
}

func writeKubeconfig(path string, config *clientcmdapi.Config) error {
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return files.WriteAtomically(path, content)
}
