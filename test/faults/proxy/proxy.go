// Package proxy stands between a client and an API server. It passes everything on unchanged, tokens included, and
// injects failures on request.
//
// Failures are drawn from a seed. They are failures that a client must handle anyway: conflicts, throttling, errors
// of the server, and connections that end before a request has arrived or before its answer has.
package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/test/stack"
)

// Plan says which requests fail.
type Plan struct {
	// Writes is the share of write requests that fail, each kind of failure equally often.
	Writes float64
	// Watches is the share of watches that get the answer that their version is too old, after which a client must
	// list again.
	Watches float64
	// Limit, if set, is how many writes of Fleet's objects pass from now on. After them, all writes but those of
	// leases are cut before they arrive.
	Limit *int
}

// Kind is a kind of failure.
type Kind string

// These are the failures of a write, and the one of a watch.
const (
	Conflict  Kind = "409"
	Throttled Kind = "429"
	Broken    Kind = "500"
	// CutBefore ends the connection instead of passing the request on; CutAfter passes it on and withholds the
	// answer, so that the client cannot know the result.
	CutBefore Kind = "cut before"
	CutAfter  Kind = "cut after"
	TooOld    Kind = "410"
)

// kinds are the failures of a write.
var kinds = []Kind{Conflict, Throttled, Broken, CutBefore, CutAfter}

// Proxy is an http.Handler in front of an API server.
type Proxy struct {
	reverse *httputil.ReverseProxy

	mu          sync.Mutex
	random      *rand.Rand
	plan        Plan
	counts      map[Kind]int
	connections map[net.Conn]struct{}
}

// New returns a proxy in front of the API server at a URL, reached through a transport.
func New(server *url.URL, transport http.RoundTripper) *Proxy {
	return &Proxy{
		random: rand.New(rand.NewPCG(0, 0)), counts: map[Kind]int{}, connections: map[net.Conn]struct{}{},
		reverse: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
			Transport:     transport,
			FlushInterval: -1, // Events of a watch are passed on as they come.
			// An unreachable API server looks to the client the same as without a proxy.
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ErrorLog:     log.New(io.Discard, "", 0),
		},
	}
}

// Inject injects failures from now on, drawn from a seed. The empty plan ends them.
func (p *Proxy) Inject(plan Plan, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.random = plan, rand.New(rand.NewPCG(seed, 0))
	clear(p.counts)
}

// Counts returns how often each kind of failure occurred since the last Inject.
func (p *Proxy) Counts() map[Kind]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// ServeHTTP passes a request on, or makes it fail.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// An API server may answer before it has read the request, and does so for a kind that it does not serve. Over
	// HTTP/2, the client does not see the end of such an answer while the request still streams through a
	// ReverseProxy.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	switch kind := p.draw(r); kind {
	case "":
		p.reverse.ServeHTTP(w, r)
	case CutBefore:
		p.hangUp(r)
		panic(http.ErrAbortHandler)
	case CutAfter:
		p.reverse.ServeHTTP(&forgetful{header: http.Header{}}, r)
		panic(http.ErrAbortHandler)
	default:
		refuse(w, kind)
	}
}

func (p *Proxy) draw(r *http.Request) Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind := Kind("")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		if p.plan.Limit != nil {
			switch {
			case strings.Contains(r.URL.Path, "/leases/"):
			case *p.plan.Limit == 0:
				kind = CutBefore
			case strings.HasPrefix(r.URL.Path, "/apis/fleet.cattle.io/"):
				*p.plan.Limit--
			}
		}
		if p.plan.Writes > 0 && p.random.Float64() < p.plan.Writes {
			kind = kinds[p.random.IntN(len(kinds))]
		}
	case isWatch(r):
		if p.plan.Watches > 0 && p.random.Float64() < p.plan.Watches {
			kind = TooOld
		}
	}
	if kind != "" {
		p.counts[kind]++
	}
	return kind
}

func isWatch(r *http.Request) bool {
	watch := r.URL.Query().Get("watch")
	return r.Method == http.MethodGet && (watch == "1" || watch == "true")
}

// refuse answers like the API server.
func refuse(w http.ResponseWriter, kind Kind) {
	var err *apierrors.StatusError
	switch kind {
	case Conflict:
		err = apierrors.NewConflict(schema.GroupResource{Resource: "any"}, "any", errors.New("injected"))
	case Throttled:
		err = apierrors.NewTooManyRequests("injected", 1)
		w.Header().Set("Retry-After", "1")
	case TooOld:
		err = apierrors.NewResourceExpired("injected: too old resource version")
	default:
		err = apierrors.NewInternalError(errors.New("injected"))
	}
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	// The client may have closed the connection.
	_ = json.NewEncoder(w).Encode(status)
}

// forgetful is a ResponseWriter whose client never gets the answer.
type forgetful struct{ header http.Header }

func (f *forgetful) Header() http.Header            { return f.header }
func (f *forgetful) WriteHeader(int)                {}
func (f *forgetful) Write(text []byte) (int, error) { return len(text), nil }

type connectionKey struct{}

// hangUp ends the connection of a request, and so all other requests that share it.
func (p *Proxy) hangUp(r *http.Request) {
	if connection, ok := r.Context().Value(connectionKey{}).(net.Conn); ok {
		reset(connection)
	}
}

// Cut ends every connection, watches included, and returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	connections := slices.Collect(maps.Keys(p.connections))
	p.mu.Unlock()
	for _, connection := range connections {
		reset(connection)
	}
	return len(connections)
}

func reset(connection net.Conn) {
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

// Front puts a proxy in front of a stack's API server until ctx ends, and returns the address of the proxy.
func Front(ctx context.Context, server stack.APIServer) (*Proxy, string, error) {
	ca, err := os.ReadFile(server.CAFile)
	if err != nil {
		return nil, "", err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, "", fmt.Errorf("%s holds no certificate", server.CAFile)
	}
	certificate, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	if err != nil {
		return nil, "", err
	}
	return Serve(ctx, server.URL, roots, certificate)
}

// Serve puts a proxy in front of the API server at an address until ctx ends, and
// returns the address of the proxy.
func Serve(ctx context.Context, server string, roots *x509.CertPool, certificate tls.Certificate) (*Proxy, string, error) {
	target, err := url.Parse(server)
	if err != nil {
		return nil, "", err
	}
	p := New(target, &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		// The client must time out a request that hangs.
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	front := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ConnState: p.note,
		ConnContext: func(ctx context.Context, connection net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, plainOf(connection))
		},
	}
	context.AfterFunc(ctx, func() { _ = front.Close() })
	go func() { _ = front.ServeTLS(listener, "", "") }()
	return p, "https://" + listener.Addr().String(), nil
}

// note keeps the list of open connections.
func (p *Proxy) note(connection net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateNew:
		p.connections[plainOf(connection)] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(p.connections, plainOf(connection))
	}
}

// plainOf returns the connection under TLS: closing this one sends no notice.
func plainOf(connection net.Conn) net.Conn {
	if encrypted, ok := connection.(*tls.Conn); ok {
		return encrypted.NetConn()
	}
	return connection
}
