package repository

import (
	"cmp"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// checkRedirect is the CheckRedirect of an http.Client. It follows as many redirects as Go does, and none from https to http.
// Go would send the credentials to other ports and to subdomains as well.
func checkRedirect(to *http.Request, via []*http.Request) error {
	from := via[0].URL
	if len(via) >= 10 || from.Scheme == "https" && to.URL.Scheme != "https" {
		// Without the query, which may hold a signature.
		return failf("", "it redirects to %s://%s%s, which is not followed", to.URL.Scheme, to.URL.Host, to.URL.EscapedPath())
	}
	if !isSameOrigin(from, to.URL) {
		to.Header.Del("Authorization")
	}
	return nil
}

// isSameOrigin reports whether two URLs have the same scheme, host and port, so that both may get the same credentials.
func isSameOrigin(one, other *url.URL) bool {
	return one.Scheme == other.Scheme && strings.EqualFold(one.Hostname(), other.Hostname()) && portOf(one) == portOf(other)
}

// portOf returns the port of a URL: the library knows those that http and https stand for. It is 0 for others.
func portOf(of *url.URL) int {
	port, _ := net.LookupPort("tcp", cmp.Or(of.Port(), of.Scheme))
	return port
}
