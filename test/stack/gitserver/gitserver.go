// Package gitserver serves Git repositories over HTTP on loopback, with the host's own
// git on both sides.
package gitserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Server serves the repositories below a directory.
type Server struct {
	dir    string
	git    string
	url    string
	server *http.Server
}

// New starts a server. Its repositories are in dir, and every client may push.
func New(dir string) (*Server, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, git: git, url: "http://" + listener.Addr().String()}
	s.server = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: &cgi.Handler{
		Path: git, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(dir, "served"), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + dir},
	}}
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

// Close stops the server.
func (s *Server) Close() error { return s.server.Close() }

// Repository is a repository of a server and a clone of it.
type Repository struct {
	// URL is the address of the repository.
	URL    string
	server *Server
	clone  string
}

// Create makes an empty repository whose branch is main.
func (s *Server) Create(ctx context.Context, name string) (*Repository, error) {
	served := filepath.Join(s.dir, "served", name)
	r := &Repository{URL: s.url + "/" + name, server: s, clone: filepath.Join(s.dir, "clones", name)}
	if err := os.MkdirAll(served, 0o755); err != nil {
		return nil, err
	}
	if err := s.run(ctx, served, "init", "--bare", "--initial-branch=main"); err != nil {
		return nil, err
	}
	if err := s.run(ctx, served, "config", "http.receivepack", "true"); err != nil {
		return nil, err
	}
	return r, s.run(ctx, s.dir, "clone", r.URL, r.clone)
}

// Push commits files with this content, and pushes the commit. Empty content removes a file.
func (r *Repository) Push(ctx context.Context, message string, files map[string]string) error {
	for name, content := range files {
		path := filepath.Join(r.clone, filepath.FromSlash(name))
		if content == "" {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"add", "--all"}, {"commit", "--quiet", "--message", message}, {"push", "--quiet", "origin", "HEAD:main"},
	} {
		if err := r.server.run(ctx, r.clone, args...); err != nil {
			return err
		}
	}
	return nil
}

// run runs git with a neutral identity, and ignores this host's settings.
func (s *Server) run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, s.git, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Somebody", "GIT_AUTHOR_EMAIL=somebody@example.com", "GIT_COMMITTER_NAME=Somebody", "GIT_COMMITTER_EMAIL=somebody@example.com"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, out)
	}
	return nil
}
