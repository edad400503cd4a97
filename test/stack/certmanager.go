package stack

import (
	"fmt"
	"net/http"

	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// certManagerSpecs is cert-manager: controllers and CA injector in one process.
func (s *Stack) certManagerSpecs() ([]process.Spec, error) {
	if s.options.WithoutCertManager {
		return nil, nil
	}
	kubeconfig, err := s.hub.userKubeconfig("cert-manager", "system:masters")
	if err != nil {
		return nil, err
	}
	port, err := s.leases.Port(0)
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return []process.Spec{{
		Name: "cert-manager", Path: s.tools.Bin("cert-manager"), Port: port,
		Args:  []string{"--kubeconfig=" + kubeconfig, "--health-addr=" + address},
		Ready: poll.Answers(http.DefaultClient, "http://"+address+"/readyz"),
	}}, nil
}
