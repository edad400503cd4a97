package repository

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// Reason classifies an error; empty if a retry may help.
type Reason string

// Reasons of errors.
const (
	Untrusted    Reason = "Untrusted"    // The certificate of the repository is not trusted.
	BadAuthority Reason = "BadAuthority" // Access.Authorities holds no certificate.
	Refused      Reason = "Refused"      // The repository requires other credentials.
	Invalid      Reason = "Invalid"      // There is no repository, or it is broken.
	TooLarge     Reason = "TooLarge"
	NoChart      Reason = "NoChart"
	NoVersion    Reason = "NoVersion"
)

// problem is an error in our own words, which conditions may show.
type problem struct {
	reason Reason
	text   string
}

// Error returns the text.
func (p *problem) Error() string { return p.text }

func failf(reason Reason, format string, args ...any) error {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// ReasonOf returns the reason of an error.
func ReasonOf(err error) Reason {
	var its *problem
	if errors.As(err, &its) {
		return its.reason
	}
	return ""
}

// shown returns an error that a condition may show. It contains the status of the answer, and the
// problem with a certificate or connection, but no text from the other side: the author of a
// HelmChartProxy may name servers that only this program can reach.
func shown(at string, err error) error {
	var (
		own          *problem
		answer       *errcode.ErrorResponse
		verification *tls.CertificateVerificationError
		connection   *net.OpError
		name         *net.DNSError
		request      *url.Error
	)
	at = bare(at)
	switch {
	case errors.As(err, &own):
		return failf(own.reason, "%s: %s", at, own.text)
	case errors.As(err, &answer):
		return answered(at, answer.StatusCode)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return answered(at, http.StatusUnauthorized)
	case errors.As(err, &verification):
		return failf(Untrusted, "%s: %s", at, verification)
	case errors.Is(err, context.DeadlineExceeded):
		return failf("", "%s took longer than %s", at, requestTimeout)
	case errors.As(err, &name):
		return failf("", "%s: %s", at, name)
	case errors.As(err, &connection):
		return failf("", "%s: %s", at, connection)
	case errors.As(err, &request) && request.Timeout():
		return failf("", "%s took too long to answer", at)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &request) && errors.Is(request, io.EOF):
		return failf("", "the connection to %s was cut before the answer was complete", at)
	default:
		return failf("", "%s sent an answer that cannot be read", at)
	}
}

func answered(at string, status int) error {
	reason := map[int]Reason{http.StatusUnauthorized: Refused, http.StatusForbidden: Refused, http.StatusNotFound: Invalid}[status]
	return failf(reason, "%s answered %d %s", bare(at), status, http.StatusText(status))
}

// bare returns a URL without the parts that may be secret: user, query, fragment.
func bare(at string) string {
	parsed, err := url.Parse(at)
	if err != nil {
		return "the URL"
	}
	return (&url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path}).String()
}
