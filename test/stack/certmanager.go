package stack

import (
	"fmt"
	"net/http"
)

// certManagerSpecs is cert-manager: controllers and CA injector in one process.
func (s *Stack) certManagerSpecs() ([]processSpec, error) {
	if s.options.WithoutCertManager {
		return nil, nil
	}
	kubeconfig, err := s.hub.userKubeconfig("cert-manager", "system:masters")
	if err != nil {
		return nil, err
	}
	port, err := s.leases.port(0)
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return []processSpec{{
		name: "cert-manager", path: s.tools.Bin("cert-manager"), port: port,
		args:  []string{"--kubeconfig=" + kubeconfig, "--health-addr=" + address},
		ready: httpOK(http.DefaultClient, "http://"+address+"/readyz"),
	}}, nil
}
