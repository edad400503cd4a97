// Package page serves a graph as a web page to the person who runs the program, on their own machine. It
// only renders HTML; package view decides. The page is read-only.
package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"html/template"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/view"
)

// Source provides the graph.
type Source interface {
	// Snapshot returns the current objects.
	Snapshot() *view.Objects
	// Changed receives after changes; it is nil if there are none.
	Changed() <-chan struct{}
	// Bundles adds the BundleDeployments in a Cluster's Fleet namespace to the objects.
	Bundles(ctx context.Context, fleetNamespace string, objects *view.Objects) error
	// WatchBundles calls changed whenever one of these changes, until the context ends.
	WatchBundles(ctx context.Context, fleetNamespace string, changed func())
}

//go:embed assets
var assets embed.FS

var pages = template.Must(template.New("").ParseFS(assets, "assets/*.html"))

// Server serves the page.
type Server struct {
	source Source
	title  string
	// base is the path above all others, which contains a secret token.
	base string
	// hosts are the host names under which the server answers.
	hosts map[string]bool
	feed  *feed
	// first receives the page of the first reader, once.
	first chan *overview
	once  sync.Once
	given given
}

// New returns a Server of a source. The title names the source; the page is reachable at the listener.
func New(source Source, title string, listener net.Listener) *Server {
	s := &Server{source: source, title: title, base: "/" + rand.Text() + "/", hosts: map[string]bool{}, feed: newFeed(), first: make(chan *overview, 1)}
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
	go s.keep(ctx)
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }, // Event streams end with the context.
	}
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
	case path == "events":
		s.events(w, r)
	case strings.HasPrefix(path, "part/"):
		s.part(w, r, strings.TrimPrefix(path, "part/"))
	case strings.HasPrefix(path, "cluster/"), strings.HasPrefix(path, "fleet-cluster/"):
		s.page(w, r, path)
	default:
		http.NotFound(w, r)
	}
}
