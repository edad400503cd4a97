package fetch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/internal/charts/repository"
)

// serve plays somebody's server, whose answers a repository or registry may be made of.
func serve(t *testing.T, handler http.HandlerFunc) (its *httptest.Server, authority []byte) {
	t.Helper()
	its = httptest.NewUnstartedServer(handler)
	its.Config.ErrorLog = log.New(io.Discard, "", 0)
	its.StartTLS()
	t.Cleanup(its.Close)
	return its, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: its.Certificate().Raw})
}

func network(t *testing.T, text string) net.IPNet {
	t.Helper()
	_, its, err := net.ParseCIDR(text)
	if err != nil {
		t.Fatal(err)
	}
	return *its
}

// asked asks for a chart, and returns what is said.
func asked(t *testing.T, fetcher *Fetcher, request Request) string {
	t.Helper()
	_, err := fetcher.Chart(t.Context(), request, "1.0.0")
	if err == nil {
		t.Fatal("there is a chart")
	}
	return err.Error()
}

// The password goes to the repository alone: not to another port, not in the clear.
func TestRedirects(t *testing.T) {
	sent := ""
	other, authority := serve(t, func(_ http.ResponseWriter, r *http.Request) { sent += r.Header.Get("Authorization") + "!" })
	for to, want := range map[string]string{
		other.URL + "/index.yaml":              `has no chart "web"`,
		"http://127.0.0.1:1/?signature=hidden": "it redirects to http://127.0.0.1:1/, where it is not followed",
	} {
		first, its := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
		said := asked(t, New(time.Minute), Request{RepoURL: first.URL, Chart: "web",
			Access: Access{Username: "u", Password: "p", Authorities: append(its, authority...)}})
		if !strings.Contains(said, want) || strings.Contains(said, "hidden") {
			t.Errorf("%s: %s", to, said)
		}
	}
	if sent != "!" {
		t.Errorf("the other port was sent %q", sent)
	}
}

// Networks that are denied are not reached, whatever leads there.
func TestDenied(t *testing.T) {
	reached := 0
	its, authority := serve(t, func(http.ResponseWriter, *http.Request) { reached++ })
	loopback := network(t, "127.0.0.0/8")
	for _, at := range []string{its.URL, strings.Replace(its.URL, "127.0.0.1", "[::ffff:127.0.0.1]", 1), strings.Replace(its.URL, "127.0.0.1", "localhost", 1)} {
		said := asked(t, New(time.Minute, loopback, network(t, "::1/128")), Request{RepoURL: at, Chart: "web", Access: Access{Authorities: authority}})
		if !strings.Contains(said, "--denied-networks allows no connection") {
			t.Errorf("%s: %s", at, said)
		}
	}
	for _, request := range []Request{{RepoURL: "https://169.254.169.254", Chart: "web"}, {RepoURL: "oci://169.254.169.254", Chart: "web"}} {
		if said := asked(t, New(time.Minute, network(t, "169.254.0.0/16")), request); !strings.Contains(said, "169.254.169.254 is in 169.254.0.0/16") {
			t.Error(said)
		}
	}
	first, its2 := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://169.254.169.254/latest", http.StatusFound)
	})
	if said := asked(t, New(time.Minute, network(t, "169.254.0.0/16")), Request{RepoURL: first.URL, Chart: "web", Access: Access{Authorities: its2}}); !strings.Contains(said, "169.254.169.254 is in") {
		t.Error(said)
	}
	if reached > 0 {
		t.Errorf("it was reached %d times", reached)
	}
}

// What a registry writes is not shown, and its credentials are its own.
func TestRegistry(t *testing.T) {
	archive, err := repository.Archive("web", "1.0.0", nil)
	if err != nil {
		t.Fatal(err)
	}
	digest := func(data []byte) string {
		sum := sha256.Sum256(data)
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	layer := func(size int) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":%q,"size":2},
"layers":[{"mediaType":"application/vnd.cncf.helm.chart.content.v1.tar+gzip","digest":%q,"size":%d}]}`, digest([]byte("{}")), digest(archive), size)
	}
	manifest, blobs, tokens := "", "", []string{}
	elsewhere, otherAuthority := serve(t, func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("Authorization"))
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="tell me"`)
		}
		_, _ = w.Write(archive)
	})
	registry, authority := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch username, _, _ := r.BasicAuth(); {
		case username != "u":
			w.Header().Set("WWW-Authenticate", `Basic realm="tell me"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"hidden"}]}`))
		case strings.HasSuffix(r.URL.Path, "/tags/list"):
			_, _ = w.Write([]byte(`{"name":"web","tags":["1.0.0","1.2.0","1.1.0_build","latest"]}`))
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", digest([]byte(manifest)))
			_, _ = w.Write([]byte(manifest))
		case blobs != "":
			http.Redirect(w, r, blobs, http.StatusTemporaryRedirect)
		default:
			_, _ = w.Write(archive)
		}
	})
	request := Request{RepoURL: strings.Replace(registry.URL, "https://", "oci://", 1), Chart: "web",
		Access: Access{Username: "u", Password: "p", Authorities: append(authority, otherAuthority...)}}

	for wanted, want := range map[string]string{"": "1.2.0", "~1.1-0": "1.1.0+build"} {
		request.Version = wanted
		if got, err := New(time.Minute).Version(t.Context(), request); err != nil || got != want {
			t.Errorf("%q is %q (%v), want %q", wanted, got, err, want)
		}
	}
	manifest = layer(len(archive))
	for _, blobs = range []string{"", elsewhere.URL + "/blob"} {
		chart, err := New(time.Minute).Chart(t.Context(), request, "1.0.0")
		if err != nil || len(chart.Resources) != 1 {
			t.Errorf("blobs at %q: %v %v", blobs, chart, err)
		}
	}
	if len(tokens) != 1 || tokens[0] != "" {
		t.Errorf("elsewhere was sent %q", tokens)
	}
	blobs = ""
	manifest = layer(1 << 40)
	if said := asked(t, New(time.Minute), request); !strings.Contains(said, "is larger than 8 MiB") {
		t.Error(said)
	}
	manifest = layer(len(archive) + 1)
	if said := asked(t, New(time.Minute), request); !strings.Contains(said, "cannot be read") {
		t.Error(said)
	}
	request.Access.Username = "nobody"
	if said := asked(t, New(time.Minute), request); !strings.Contains(said, "answered 401 Unauthorized") || strings.Contains(said, "hidden") {
		t.Error(said)
	}
}

// What one chart may take is bounded, whoever it is that asks for too much.
func TestBudget(t *testing.T) {
	opened := func(entries int, size int64) []byte {
		var packed bytes.Buffer
		zipper := gzip.NewWriter(&packed)
		writer := tar.NewWriter(zipper)
		for i := range entries {
			if err := writer.WriteHeader(&tar.Header{Name: fmt.Sprintf("web/%d", i), Mode: 0o644, Size: size}); err != nil {
				t.Fatal(err)
			}
			if _, err := writer.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := zipper.Close(); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	for name, test := range map[string]struct {
		index   string
		archive []byte
		want    string
	}{
		"index":      {strings.Repeat("# nothing\n", 1<<20), nil, "index.yaml is larger than 8 MiB"},
		"archive":    {"", make([]byte, 9<<20), "web.tgz is larger than 8 MiB"},
		"opened":     {"", opened(3, 3<<20), "larger than 8 MiB when it is opened"},
		"many files": {"", opened(20000, 0), "larger than 8 MiB when it is opened"},
		"no archive": {"", []byte("x"), "the chart is no archive"},
		"bomb":       {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n", nil, "index.yaml cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			its, authority := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/web.tgz":
					_, _ = w.Write(test.archive)
				case test.index != "":
					_, _ = w.Write([]byte(test.index))
				default:
					_, _ = w.Write([]byte("entries: {web: [{version: 1.0.0, urls: [web.tgz]}]}"))
				}
			})
			if said := asked(t, New(time.Minute), Request{RepoURL: its.URL, Chart: "web", Access: Access{Authorities: authority}}); !strings.Contains(said, test.want) {
				t.Errorf("%s, want %q", said, test.want)
			}
		})
	}
	t.Run("requests", func(t *testing.T) {
		asks := 0
		its, authority := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			asks++
			w.Header().Set("Link", fmt.Sprintf(`</v2/web/tags/list?last=%d>; rel="next"`, asks))
			_, _ = w.Write([]byte(`{"name":"web","tags":["1.0.0"]}`))
		})
		_, err := New(time.Minute).Version(t.Context(), Request{RepoURL: strings.Replace(its.URL, "https://", "oci://", 1), Chart: "web", Access: Access{Authorities: authority}})
		if err == nil || !strings.Contains(err.Error(), "takes more than 64 requests") || asks != 64 {
			t.Errorf("%d requests: %v", asks, err)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		its, authority := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `</v2/web/tags/list?last=a>; rel="next"`)
			_, _ = w.Write([]byte(`{"name":"web","tags":["1.0.0"]` + strings.Repeat(" ", 2<<20) + `}`))
		})
		_, err := New(time.Minute).Version(t.Context(), Request{RepoURL: strings.Replace(its.URL, "https://", "oci://", 1), Chart: "web", Access: Access{Authorities: authority}})
		if err == nil || !strings.Contains(err.Error(), "has sent more than 24 MiB") {
			t.Error(err)
		}
	})
	t.Run("panic", func(t *testing.T) {
		_, err := once(t.Context(), New(time.Minute), "key", func(context.Context) (int, error) { panic("broken") })
		if err == nil || !strings.Contains(err.Error(), "cannot be worked with") {
			t.Error(err)
		}
	})
}

// A registry that lacks a version is not one that answers what cannot be read.
func TestNoSuchTag(t *testing.T) {
	its, authority := serve(t, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	request := Request{RepoURL: strings.Replace(its.URL, "https://", "oci://", 1), Chart: "web", Access: Access{Authorities: authority}}
	if said := New(time.Minute).Has(t.Context(), request, "7.0.0"); said == nil || !strings.HasSuffix(said.Error(), `/web has no version "7.0.0"`) {
		t.Errorf("has: %v", said)
	}
	if _, err := New(time.Minute).Chart(t.Context(), request, "7.0.0"); err == nil || !strings.HasSuffix(err.Error(), `/web has no version "7.0.0"`) {
		t.Errorf("download: %v", err)
	}
}
