package stack

import (
	"context"
	"fmt"
	"net"

	"github.com/muster-fleet/muster/test/stack/process"
)

// StartRegistry runs an OCI registry at an address of this host, with this certificate, for
// those who know the password.
func (s *Stack) StartRegistry(ctx context.Context, address, certificate, key, user, password string) error {
	return s.run(ctx, process.Spec{
		Name: "registry", Path: s.tools.Bin("registry"),
		Args: []string{"-address=" + address, "-cert=" + certificate, "-key=" + key, "-user=" + user, "-password=" + password},
		Ready: func(ctx context.Context) error {
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return fmt.Errorf("registry: %w", err)
			}
			return connection.Close()
		},
	})
}
