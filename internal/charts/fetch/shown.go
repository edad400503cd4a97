package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"

	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/muster-fleet/muster/internal/redirect"
)

// shown returns an error that may stand in a condition: it says whether there was an answer,
// its status, and what is wrong with a certificate, but nothing that the other side has
// written. The author may name what only this program can reach.
func shown(at string, err error) error {
	var (
		own          problem
		refused      redirect.RefusedError
		answer       *errcode.ErrorResponse
		verification *tls.CertificateVerificationError
		connection   *net.OpError
		name         *net.DNSError
		request      *url.Error
	)
	switch {
	case errors.As(err, &own):
		return fmt.Errorf("%s: %w", bare(at), own)
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %w", bare(at), refused)
	case errors.As(err, &answer):
		return answered(at, answer.StatusCode)
	case errors.As(err, &verification):
		return fmt.Errorf("%s: %w", bare(at), verification)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s took longer than %s", bare(at), patience)
	case errors.As(err, &name):
		return fmt.Errorf("%s: %w", bare(at), name)
	case errors.As(err, &connection):
		return fmt.Errorf("%s: %w", bare(at), connection)
	case errors.As(err, &request) && request.Timeout():
		return fmt.Errorf("%s took too long to answer", bare(at))
	default:
		return fmt.Errorf("%s gave an answer that cannot be read", bare(at))
	}
}
