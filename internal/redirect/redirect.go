// Package redirect says where a client of a repository may be redirected to, and what goes
// along.
package redirect

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// most is how many redirects are followed.
const most = 10

// RefusedError specifies where a redirect led that is not followed.
type RefusedError string

// Error says it.
func (e RefusedError) Error() string { return string(e) }

// Check is the CheckRedirect of an http.Client. From https it is redirected to https only.
// Credentials are for one scheme, host and port: Go itself would send them to other ports
// and to subdomains as well.
func Check(to *http.Request, via []*http.Request) error {
	from := via[0].URL
	if len(via) >= most || from.Scheme == "https" && to.URL.Scheme != "https" {
		// Without the query, which may hold a signature.
		return RefusedError(fmt.Sprintf("it redirects to %s://%s%s, where it is not followed", to.URL.Scheme, to.URL.Host, to.URL.EscapedPath()))
	}
	if !IsSameOrigin(from, to.URL) {
		to.Header.Del("Authorization")
	}
	return nil
}

// IsSameOrigin reports whether two URLs have the same scheme, host and port.
func IsSameOrigin(one, other *url.URL) bool {
	return strings.EqualFold(one.Scheme, other.Scheme) && strings.EqualFold(one.Hostname(), other.Hostname()) && port(one) == port(other)
}

func port(of *url.URL) string {
	if its := of.Port(); its != "" {
		return its
	}
	return map[string]string{"https": "443", "http": "80"}[strings.ToLower(of.Scheme)]
}
