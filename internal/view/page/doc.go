// Package page serves a graph as a web page to the person who runs the program, on their own machine. It
// only renders HTML; package view decides. The page is read-only.
package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/view"
)

// Source provides the graph.
type Source interface {
	// Snapshot returns the current objects, with the BundleDeployments of the selected Clusters.
	Snapshot() *view.Objects
	// Changed receives after changes; it is nil if there are none.
	Changed() <-chan struct{}
	// Select reads the BundleDeployments in a Cluster's namespace in Fleet, and keeps them up to date. Since the time that
	// it returns, they are in the Snapshot.
	Select(fleetNamespace string) time.Time
}

//go:embed assets
var assets embed.FS

const (
	// rest is the time between two answers to a reader while objects change all the time, and the age up to which all
	// readers load the same page: nothing says when the last of many changes has come.
	rest = 500 * time.Millisecond
	// longest is how long a request waits for a change, and the server for a request: neither a connection that is cut
	// causes an event, nor an agent that falls silent.
	longest = 30 * time.Second
	// most is how many requests may wait at a time, and largest how many bytes the header of one may have.
	most    = 64
	largest = 16 << 10
)

// Server serves the page.
type Server struct {
	source Source
	title  string
	// base is the path above all others, which contains a secret token.
	base string
	// hosts are the host names under which the server answers.
	hosts map[string]bool
	// waiting has an element for each request that waits.
	waiting chan struct{}

	changes changes
	drawing sync.Mutex
	drawn   *drawn
}

// New returns a Server of a source. The title names the source; the page is reachable at the listener.
func New(source Source, title string, listener net.Listener) *Server {
	s := &Server{source: source, title: title, base: "/" + rand.Text() + "/", hosts: map[string]bool{}, waiting: make(chan struct{}, most)}
	s.changes.next = make(chan struct{})
	if _, port, err := net.SplitHostPort(listener.Addr().String()); err == nil {
		s.hosts["127.0.0.1:"+port], s.hosts["localhost:"+port] = true, true
	}
	s.hosts[listener.Addr().String()] = true
	return s
}

// Path returns the path of the page, with the token.
func (s *Server) Path() string { return s.base }

// Serve serves until the context ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.changes.tell(ctx, s.source.Changed())
	server := s.server()
	server.BaseContext = func(net.Listener) context.Context { return ctx } // Waiting requests end with the context.
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	err := server.Serve(listener)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) server() *http.Server {
	return &http.Server{Handler: s, ReadHeaderTimeout: longest, MaxHeaderBytes: largest}
}

// policy lets the page load files from this server only.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	// A hostile page whose host name resolves to this machine knows neither host nor token.
	path, isOurs := s.inside(r.URL.Path)
	switch {
	case !s.hosts[r.Host] || !isOurs:
		http.NotFound(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
	default:
		s.route(w, r, path)
	}
}

// inside returns the path below the token.
func (s *Server) inside(path string) (string, bool) {
	if len(path) < len(s.base) || subtle.ConstantTimeCompare([]byte(path[:len(s.base)]), []byte(s.base)) != 1 {
		return "", false
	}
	return path[len(s.base):], true
}

func (s *Server) route(w http.ResponseWriter, r *http.Request, path string) {
	switch {
	case path == "":
		s.page(w, r, "")
	case path == "page.css", path == "page.js", path == "icon.svg":
		http.ServeFileFS(w, r, assets, "assets/"+path) //nolint:gosec // The path is one of the three above.
	case downloads[path] != "":
		s.download(w, path)
	case strings.HasPrefix(path, "cluster/"), strings.HasPrefix(path, "fleet-cluster/"):
		s.page(w, r, path)
	default:
		http.NotFound(w, r)
	}
}
