//go:build !race

package repository

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-fleet/muster/internal/helm/worker"
)

// question is what a process of its own asks a repository, and outcome is what it gets, and how much memory it added to
// its own for that, without its children.
type question struct {
	Request
	Exact string
	// Namespaces is how many namespaces ask at once, each at a path of its own; one at the root if it is 0.
	Namespaces int
}

type outcome struct {
	Version, Err string
	Grown        int
}

// asking is the environment variable with a question.
const asking = "MUSTER_TEST_QUESTION"

// memory returns a field of this process's memory, in kB.
func memory(field string) (size int) {
	status, _ := os.ReadFile("/proc/self/status")
	_, line, _ := strings.Cut(string(status), field+":")
	_, _ = fmt.Sscan(line, &size)
	return size
}

// answerTo asks, in a process of its own.
func answerTo(text string) {
	var its question
	if err := json.Unmarshal([]byte(text), &its); err != nil {
		panic(err)
	}
	client, before := New(Options{Interval: time.Minute, Pool: worker.New(worker.DefaultSize)}), memory("VmRSS")
	var others sync.WaitGroup
	for i := range its.Namespaces {
		others.Go(func() {
			request := its.Request
			request.Namespace, request.RepoURL = fmt.Sprint(i), fmt.Sprint(request.RepoURL, "/", i)
			_, _ = client.Version(context.Background(), request) // Some find no room.
		})
	}
	others.Wait()
	version, err := its.Exact, error(nil)
	if version == "" {
		version, err = client.Version(context.Background(), its.Request)
	} else {
		_, err = client.Chart(context.Background(), its.Request, version)
	}
	said := outcome{Version: version, Grown: (memory("VmHWM") - before) >> 10}
	if err != nil {
		said.Err = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(said)
}

// ask asks a question in a process with the shipped memory limit of Go.
func ask(t *testing.T, its question) (got outcome) {
	t.Helper()
	text, err := json.Marshal(its)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/proc/self/exe")
	command.Env = []string{asking + "=" + string(text), "GOMEMLIMIT=460MiB"}
	var errors bytes.Buffer
	command.Stderr = &errors
	said, err := command.Output()
	if err == nil {
		err = json.Unmarshal(said, &got)
	}
	if err != nil {
		t.Fatalf("%v: %.2000s", err, errors.String())
	}
	return got
}

// many writes an index of 35 MB with 2.7 million versions of one chart.
func many(w io.Writer) {
	_, _ = fmt.Fprint(w, "apiVersion: v1\nentries:\n w:\n")
	for range 2_700_000 {
		_, _ = fmt.Fprint(w, " - version: 1\n")
	}
}

// random is text that compresses to three quarters.
func random(w io.Writer, size int) {
	_, _ = io.Copy(base64.NewEncoder(base64.StdEncoding, w), io.LimitReader(rand.Reader, int64(size*3/4)))
}

// bufferedWriter writes few large parts.
type bufferedWriter struct {
	http.ResponseWriter
	to *bufio.Writer
}

func (b *bufferedWriter) Write(data []byte) (int, error) { return b.to.Write(data) }

// manifested answers with a manifest.
func manifested(manifest string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Docker-Content-Digest", digest([]byte(manifest)))
		w.Header().Set("Content-Length", fmt.Sprint(len(manifest)))
		_, _ = w.Write([]byte(manifest))
	}
}

// Whatever a repository sends, this process needs little memory for it: the children pay, and the message says what
// to do. Each answer is at a limit, or above it.
func TestPeaks(t *testing.T) {
	tags := func(page, times int) http.HandlerFunc {
		asked := 0
		return func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked < times {
				w.Header().Set("Link", fmt.Sprintf(`</v2/w/tags/list?last=%d>; rel="next"`, asked))
			}
			_, _ = fmt.Fprint(w, `{"name":"web","tags":["1.0.0"`)
			for i := range page {
				_, _ = fmt.Fprintf(w, `,"1.%d.%d"`, asked, i)
			}
			_, _ = fmt.Fprint(w, `]}`)
		}
	}
	layers := func(size int, layer string) string {
		const before, after = `{"schemaVersion":2,"layers":[{}`, `]}`
		text := before + strings.Repeat(","+layer, (size-len(before)-len(after))/(len(layer)+1)) + after
		return text + strings.Repeat(" ", size-len(text))
	}
	for name, test := range map[string]struct {
		answer         http.HandlerFunc
		isOCI          bool
		version, exact string
		want, wantErr  string
		// namespaces is how many others ask meanwhile, and most how many MiB the process may grow.
		namespaces, most int
	}{
		"2.7 million versions": {version: "1.x", wantErr: `/index.yaml lists more than 100000 versions of the chart: name an exact version`,
			answer: func(w http.ResponseWriter, _ *http.Request) { many(w) }},
		"2.7 million versions, an exact one": {exact: "1.2.3", wantErr: "web.tgz answered 404 Not Found",
			answer: func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/index.yaml" {
					http.NotFound(w, r)
					return
				}
				many(w)
				_, _ = fmt.Fprint(w, " - {version: 1.2.3, urls: [web.tgz]}\n")
			}},
		"100000 versions": {version: "0.x", want: "0.99999.0",
			answer: func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprint(w, "entries:\n  w:\n")
				for i := range 100_000 {
					_, _ = fmt.Fprintf(w, "  - {version: 0.%d.0}\n", i)
				}
			}},
		"an index that hardly compresses": {version: "1.x", most: 32, wantErr: "/index.yaml: its list of versions is larger than 16 MiB, compressed",
			answer: func(w http.ResponseWriter, _ *http.Request) { random(w, 49<<20) }},
		"large indexes for 12 namespaces": {version: "0.x", want: "0.1.0", namespaces: 12, most: 256,
			answer: func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprint(w, "entries:\n  w:\n  - {version: 0.1.0}\n")
				if r.URL.Path != "/index.yaml" {
					_, _ = fmt.Fprint(w, "#")
					random(w, 20<<20)
				}
			}},
		"an index in one line": {version: "1.x", wantErr: "reading the index took more than 96 MiB",
			answer: func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprint(w, "entries: {w: ["+strings.Repeat("{},", 7_900_000/3)+"]}")
			}},
		"100000 tags":                       {isOCI: true, version: "1.x", want: "1.50.1998", answer: tags(1_999, 50)},
		"more tags":                         {isOCI: true, version: "1.x", wantErr: "/w lists more than 100000 versions of the chart: name an exact version", answer: tags(2_000, 50)},
		"a page of tags":                    {isOCI: true, version: "1.x", wantErr: "/w lists more than 100000 versions of the chart: name an exact version", answer: tags(300_000, 1)},
		"a page of too many tags":           {isOCI: true, version: "1.x", wantErr: "/w: a page of tags is larger than 4 MiB: name an exact version", answer: tags(400_000, 1)},
		"an exact version in too many tags": {isOCI: true, version: "1.0.0", want: "1.0.0", answer: manifested("{}")},
		"a manifest":                        {isOCI: true, exact: "1.0.0", wantErr: "has more than 16 layers", answer: manifested(layers(256<<10, "{}"))},
		"a manifest of numbers":             {isOCI: true, exact: "1.0.0", wantErr: "is not a Helm chart", answer: manifested(`{"layers":[{"annotations":{` + strings.Repeat(`"":"",`, 43_000) + `"":""}}]}`)},
		"a larger manifest":                 {isOCI: true, exact: "1.0.0", wantErr: "is larger than 256 KiB", answer: manifested(layers(1<<20, "{}"))},
		"headers": {isOCI: true, exact: "1.0.0", wantErr: "cannot be read", answer: func(w http.ResponseWriter, _ *http.Request) {
			for i := range 500_000 {
				w.Header()[fmt.Sprint("A", i)] = []string{""}
			}
		}},
		"a token": {isOCI: true, version: "1.x", wantErr: "/w", answer: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				_, _ = fmt.Fprint(w, `{"access_token":"`+strings.Repeat("x", 50<<20))
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://`+r.Host+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprint(w, strings.Repeat("x", 50<<20))
		}},
		"an archive": {exact: "1.0.0", wantErr: "the chart is not an archive", most: 24, answer: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/index.yaml" {
				_, _ = fmt.Fprint(w, "entries:\n  w:\n  - {version: 1.0.0, urls: [web.tgz]}\n")
				return
			}
			random(w, 8<<20)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			its, authority := serve(t, func(w http.ResponseWriter, r *http.Request) {
				buffered := &bufferedWriter{w, bufio.NewWriter(w)}
				test.answer(buffered, r)
				_ = buffered.to.Flush()
			})
			asked := question{Request{RepoURL: its.URL, Chart: "w", Version: test.version, Access: Access{Authorities: authority}}, test.exact, test.namespaces}
			if test.isOCI {
				asked.RepoURL = strings.Replace(its.URL, "https://", "oci://", 1)
			}
			got := ask(t, asked)
			t.Logf("the process grew by %d MiB: %.300s%.300s", got.Grown, got.Version, got.Err)
			if !strings.Contains(got.Err, test.wantErr) || (test.wantErr == "") != (got.Err == "") || test.want != "" && got.Version != test.want {
				t.Errorf("got %q, %.1000q, want %q, %q", got.Version, got.Err, test.want, test.wantErr)
			}
			if most := cmp.Or(test.most, 16); got.Grown > most {
				t.Errorf("the process grew by %d MiB, want at most %d", got.Grown, most)
			}
		})
	}
}
