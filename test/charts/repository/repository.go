// Package repository is a chart repository over https, with a certificate of a private
// authority, that wants a password.
package repository

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/test/stack/pki"
)

// What a repository wants.
const (
	Username = "reader"
	Password = "correct horse"
)

// Repository serves charts.
type Repository struct {
	// URL is where it is.
	URL string
	// CA is the certificate of its authority.
	CA []byte

	server *http.Server
	mu     sync.Mutex
	files  map[string][]byte
	// versions are those of each chart.
	versions map[string][]string
	// asked are the paths that were asked for with the right password; refused counts the others.
	asked   []string
	refused int
}

// New starts a repository; its certificate lies in the directory.
func New(dir string) (*Repository, error) {
	authority, err := pki.New(dir)
	if err != nil {
		return nil, err
	}
	if err := authority.Issue("repository", "repository"); err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(authority.Path("repository.crt"), authority.Path("repository.key"))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Repository{URL: "https://" + listener.Addr().String(), CA: authority.CA(), files: map[string][]byte{}, versions: map[string][]string{}}
	r.server = &http.Server{
		ReadHeaderTimeout: 5 * time.Second, Handler: r, ErrorLog: nil,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}},
	}
	go func() {
		if err := r.server.ServeTLS(listener, "", ""); err != nil && err != http.ErrServerClosed {
			fmt.Fprintln(os.Stderr, "repository:", err)
		}
	}()
	return r, nil
}

// Close stops it.
func (r *Repository) Close() error { return r.server.Close() }

// ServeHTTP answers.
func (r *Repository) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if username, password, _ := req.BasicAuth(); username != Username || password != Password {
		r.refused++
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	r.asked = append(r.asked, req.URL.Path)
	content, found := r.files[strings.TrimPrefix(req.URL.Path, "/")]
	if !found {
		http.NotFound(w, req)
		return
	}
	_, _ = w.Write(content)
}

// Asked returns what was asked for with the right password, and how often without.
func (r *Repository) Asked() (paths []string, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked), r.refused
}

// Publish adds a chart in a version, with these templates.
func (r *Repository) Publish(name, version string, templates map[string]string) error {
	archive, err := Archive(name, version, templates)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[fmt.Sprintf("%s-%s.tgz", name, version)] = archive
	var index strings.Builder
	index.WriteString("apiVersion: v1\nentries:\n")
	if !slices.Contains(r.versions[name], version) {
		r.versions[name] = append(r.versions[name], version)
	}
	for chart, versions := range r.versions {
		fmt.Fprintf(&index, "  %s:\n", chart)
		for _, version := range versions {
			file := fmt.Sprintf("%s-%s.tgz", chart, version)
			sum := sha256.Sum256(r.files[file])
			fmt.Fprintf(&index, "  - {apiVersion: v2, name: %s, version: %s, digest: %s, urls: [%s]}\n", chart, version, hex.EncodeToString(sum[:]), file)
		}
	}
	r.files["index.yaml"] = []byte(index.String())
	return nil
}

// Archive makes a chart.
func Archive(name, version string, templates map[string]string) ([]byte, error) {
	files := map[string]string{"Chart.yaml": fmt.Sprintf("{apiVersion: v2, name: %s, version: %s}\n", name, version)}
	for file, content := range templates {
		files["templates/"+file] = content
	}
	var packed bytes.Buffer
	zipper := gzip.NewWriter(&packed)
	writer := tar.NewWriter(zipper)
	for file, content := range files {
		if err := writer.WriteHeader(&tar.Header{Name: name + "/" + file, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := writer.Write([]byte(content)); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	if err := zipper.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// Put serves something in place of what is there.
func (r *Repository) Put(path string, content []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[path] = content
}
