// Package repository is a chart repository for tests: over https, with a certificate that
// no public authority has signed, and a password.
package repository

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
)

// The login for a repository.
const (
	Username = "reader"
	Password = "correct horse"
)

// Repository serves charts.
type Repository struct {
	// URL is its address.
	URL string
	// CA is the certificate of its authority.
	CA []byte

	server *httptest.Server
	mu     sync.Mutex
	files  map[string][]byte
	// versions lists the versions of each chart.
	versions map[string][]string
	// asked lists the paths of requests with the right password; refused counts all other requests.
	asked   []string
	refused int
	isOpen  bool
	// outage is how the repository fails; empty if it answers.
	outage Outage
}

// Outage is how a repository fails.
type Outage string

// How a repository fails: it answers with an error, or hangs up.
const (
	Answering Outage = ""
	Failing   Outage = "Failing"
	HangingUp Outage = "HangingUp"
)

// New starts a repository.
func New() *Repository {
	r := &Repository{files: map[string][]byte{}, versions: map[string][]string{}}
	r.server = httptest.NewUnstartedServer(r)
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.server.StartTLS()
	r.URL = r.server.URL
	r.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	return r
}

// Close stops the repository.
func (r *Repository) Close() { r.server.Close() }

// Open makes the repository answer without a password.
func (r *Repository) Open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isOpen = true
}

// Fail makes the repository fail, or answer again.
func (r *Repository) Fail(how Outage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outage = how
}

// ServeHTTP answers a request.
func (r *Repository) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.outage {
	case HangingUp:
		panic(http.ErrAbortHandler)
	case Failing:
		http.Error(w, "come back later", http.StatusServiceUnavailable)
		return
	}
	if username, password, _ := req.BasicAuth(); !r.isOpen && (username != Username || password != Password) {
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

// Asked returns the paths of requests with the right password, and counts the other requests.
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
	r.PublishArchive(name, version, archive)
	return nil
}

// PublishArchive adds a packed chart in a version.
func (r *Repository) PublishArchive(name, version string, archive []byte) {
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

// Put replaces the content at a path.
func (r *Repository) Put(path string, content []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[path] = content
}

// Secret returns the data of a Secret for access to the repository: credentials, in the key config.json, and
// its certificate authority.
func (r *Repository) Secret() map[string][]byte {
	return map[string][]byte{"config.json": Config(strings.TrimPrefix(r.URL, "https://"), Password), "ca.crt": r.CA}
}

// Config returns the Docker configuration of a reader with a password.
func Config(address, password string) []byte {
	login := base64.StdEncoding.EncodeToString([]byte(Username + ":" + password))
	return fmt.Appendf(nil, `{"auths":{"%s":{"auth":"%s"}}}`, address, login)
}
