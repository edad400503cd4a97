package repository

import (
	"net/http"
	"net/url"
	"strings"
)

// mostRedirects is how many redirects are followed.
const mostRedirects = 10

// checkRedirect is the CheckRedirect of an http.Client, which follows redirects from https to https only.
// Credentials are for one scheme, host and port: Go itself would send them to other ports
// and to subdomains as well.
func checkRedirect(to *http.Request, via []*http.Request) error {
	from := via[0].URL
	if len(via) >= mostRedirects || from.Scheme == "https" && to.URL.Scheme != "https" {
		// Without the query, which may hold a signature.
		return failf("", "it redirects to %s://%s%s, which is not followed", to.URL.Scheme, to.URL.Host, to.URL.EscapedPath())
	}
	if !isSameOrigin(from, to.URL) {
		to.Header.Del("Authorization")
	}
	return nil
}

// isSameOrigin reports whether two URLs have the same scheme, host and port.
func isSameOrigin(one, other *url.URL) bool {
	return strings.EqualFold(one.Scheme, other.Scheme) && strings.EqualFold(one.Hostname(), other.Hostname()) && portOf(one) == portOf(other)
}

func portOf(of *url.URL) string {
	if its := of.Port(); its != "" {
		return its
	}
	return map[string]string{"https": "443", "http": "80"}[strings.ToLower(of.Scheme)]
}
