package repository

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
)

// maxHeaders limits the bytes of the headers of an answer.
const maxHeaders = 64 << 10

// DeniedNetworks returns the networks without repositories: loopback, the addresses where clouds hand
// out credentials, and addresses of no host.
func DeniedNetworks() []net.IPNet {
	var networks []net.IPNet
	for _, network := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::/128", "::1/128", "fd00:ec2::254/128", "fe80::/10", "ff00::/8"} {
		_, parsed, err := net.ParseCIDR(network)
		if err != nil { // These are constants.
			panic(err)
		}
		networks = append(networks, *parsed)
	}
	return networks
}

// source returns the repository of a request.
func (c *Client) source(request Request) (source, error) {
	base, err := url.Parse(strings.TrimRight(request.RepoURL, "/"))
	switch {
	case err != nil:
		return nil, failf(Invalid, "the URL of the repository cannot be parsed")
	case base.User != nil:
		return nil, failf(Invalid, "the URL of the repository contains a user or a password: put them into a Secret")
	}
	client, err := c.connect(request.Namespace, request.Access)
	switch {
	case err != nil:
		return nil, err
	case base.Scheme == "oci":
		return c.newRegistry(client, request, base.Host+base.Path+"/"+request.Chart)
	case base.Scheme == "https", base.Scheme == "http" && c.AllowHTTP:
		return &website{c, client, base, request}, nil
	default:
		return nil, failf(Invalid, "the URL of the repository is neither https nor oci")
	}
}

// connect returns an HTTP client for one request. It uses the proxies of the environment.
func (c *Client) connect(namespace string, access Access) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: slow, Control: c.refuse}).DialContext
	transport.ResponseHeaderTimeout = slow
	transport.DisableKeepAlives = true
	// HTTP/2 would hold up to 4 MiB of each answer before it is read, and headers take many times their bytes.
	transport.ForceAttemptHTTP2, transport.MaxResponseHeaderBytes = false, maxHeaders
	transport.TLSClientConfig = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: access.Insecure, //nolint:gosec // The author of the HelmChartProxy asks for it.
	}
	if len(access.Authorities) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil || c.OnlyAuthorities {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(access.Authorities) {
			return nil, failf(BadAuthority, "the certificate authority holds no certificate in PEM")
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: &guarded{transport, c, namespace}, CheckRedirect: checkRedirect}, nil
}

// refuse checks the address of each connection, after names are resolved, and the IPv4 address that it carries. Behind an
// HTTP proxy of the environment, it sees the address of the proxy only: the proxy itself must deny these networks to its
// clients. A proxy in a denied network, such as one on localhost, cannot be reached.
func (c *Client) refuse(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return failf("", "an invalid address")
	}
	its := to.Addr().Unmap().WithZone("")
	for _, one := range append(carriedBy(its), its) {
		for _, denied := range c.DeniedNetworks {
			if denied.Contains(one.AsSlice()) {
				return failf("", "%s is in %s, to which --denied-networks allows no connection", one, denied.String())
			}
		}
	}
	return nil
}

// carriers are the IPv6 networks whose addresses carry an IPv4 address, and the bytes where it may be: IPv4-compatible,
// SIIT (RFC 2765), 6to4, Teredo's server, and NAT64 (RFC 6052), which in 64:ff9b:1::/48 uses prefixes of 48, 56, 64 or
// 96 bits.
var carriers = map[netip.Prefix][][4]int{
	netip.MustParsePrefix("::/96"):           {{12, 13, 14, 15}},
	netip.MustParsePrefix("::ffff:0:0:0/96"): {{12, 13, 14, 15}},
	netip.MustParsePrefix("2002::/16"):       {{2, 3, 4, 5}},
	teredo:                                   {{4, 5, 6, 7}},
	netip.MustParsePrefix("64:ff9b::/96"):    {{12, 13, 14, 15}},
	netip.MustParsePrefix("64:ff9b:1::/48"):  {{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}, {12, 13, 14, 15}},
}

// teredo is the network of Teredo (RFC 4380). Its addresses end with the inverted IPv4 address of the client.
var teredo = netip.MustParsePrefix("2001::/32")

// carriedBy returns the IPv4 addresses that an IPv6 address may carry.
func carriedBy(its netip.Addr) (all []netip.Addr) {
	whole := its.As16()
	for network, places := range carriers {
		for _, at := range places {
			if isUnused := whole[at[0]] == 0 && len(places) > 1; network.Contains(its) && !isUnused { // No host is in 0.0.0.0/8.
				all = append(all, netip.AddrFrom4([4]byte{whole[at[0]], whole[at[1]], whole[at[2]], whole[at[3]]}))
			}
		}
	}
	end := [4]byte(whole[12:])
	if teredo.Contains(its) {
		all = append(all, netip.AddrFrom4([4]byte{^end[0], ^end[1], ^end[2], ^end[3]}))
	}
	// ISATAP (RFC 5214) works in any network: only the second half of the address shows it.
	if id := [4]byte(whole[8:12]); id == [4]byte{0, 0, 0x5e, 0xfe} || id == [4]byte{2, 0, 0x5e, 0xfe} {
		all = append(all, netip.AddrFrom4(end))
	}
	return all
}

// guarded sends requests over TLS only: indexes and registries name further URLs. A namespace does not ask a host
// again that has just not answered in time: otherwise, many charts of that host would occupy all readers of the namespace.
type guarded struct {
	http.RoundTripper
	*Client
	namespace string
}

// RoundTrip sends a request.
func (g *guarded) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" && !g.AllowHTTP {
		return nil, failf(Invalid, "%s is not an https URL", request.URL.Host)
	}
	host := g.namespace + " host " + request.URL.Host
	if err := g.failed(host); err != nil {
		return nil, err
	}
	response, err := g.RoundTripper.RoundTrip(request)
	var failed net.Error
	if errors.As(err, &failed) && failed.Timeout() {
		g.fail(g.namespace, host, err)
	}
	return response, err
}

// download is an answer before it is read. The size may be -1, and the digest empty: unknown.
type download struct {
	io.ReadCloser
	at     string
	size   int64
	digest string
}

// save reads the answer, unless it is larger than a limit. If the header already gives a larger size, it reads
// nothing.
func (d *download) save(into io.Writer, limit int64) error {
	defer func() { _ = d.Close() }()
	size := d.size
	if size <= limit {
		var err error
		if size, err = io.Copy(into, io.LimitReader(d, limit+1)); err != nil {
			return shown(d.at, err)
		}
	}
	if size > limit {
		return failf(TooLarge, "%s is larger than %d MiB", d.at, limit>>20)
	}
	return nil
}
