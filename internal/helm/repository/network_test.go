package repository

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/internal/helm/worker"
	shelf "github.com/muster-fleet/muster/test/helm/repository"
)

// serve simulates a server for a repository or registry.
func serve(t *testing.T, handler http.HandlerFunc) (its *httptest.Server, authority []byte) {
	t.Helper()
	its = httptest.NewUnstartedServer(handler)
	its.Config.ErrorLog = log.New(io.Discard, "", 0)
	its.StartTLS()
	t.Cleanup(its.Close)
	return its, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: its.Certificate().Raw})
}

func networks(t *testing.T, texts ...string) (all []net.IPNet) {
	t.Helper()
	for _, text := range texts {
		_, its, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, *its)
	}
	return all
}

// refused requests a chart, and returns the error.
func refused(t *testing.T, request Request, denied ...net.IPNet) string {
	t.Helper()
	client, _ := newClient()
	client.DeniedNetworks = denied
	_, err := client.Chart(t.Context(), request, "1.0.0")
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
		other.URL + "/index.yaml":              "is not an index of a Helm repository",
		"http://127.0.0.1:1/?signature=hidden": "it redirects to http://127.0.0.1:1/, which is not followed",
	} {
		first, its := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
		said := refused(t, Request{RepoURL: first.URL, Chart: "web", Access: Access{Credential: Credential{Username: "u", Password: "p"}, Authorities: append(its, authority...)}})
		if !strings.Contains(said, want) || strings.Contains(said, "hidden") {
			t.Errorf("%s: %s", to, said)
		}
	}
	if sent != "!" {
		t.Errorf("the other port was sent %q", sent)
	}
}

// The Client connects to no denied network, whatever leads there.
func TestDenied(t *testing.T) {
	reached := 0
	its, authority := serve(t, func(http.ResponseWriter, *http.Request) { reached++ })
	for _, at := range []string{its.URL, strings.Replace(its.URL, "127.0.0.1", "[::ffff:127.0.0.1]", 1), strings.Replace(its.URL, "127.0.0.1", "localhost", 1)} {
		said := refused(t, Request{RepoURL: at, Chart: "web", Access: Access{Authorities: authority}}, DeniedNetworks()...)
		if !strings.Contains(said, "--denied-networks allows no connection") {
			t.Errorf("%s: %s", at, said)
		}
	}
	first, its2 := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://169.254.169.254/latest", http.StatusFound)
	})
	for _, request := range []Request{
		{RepoURL: "https://169.254.169.254", Chart: "web"}, {RepoURL: "oci://169.254.169.254", Chart: "web"},
		{RepoURL: first.URL, Chart: "web", Access: Access{Authorities: its2}},
	} {
		if said := refused(t, request, networks(t, "169.254.0.0/16")...); !strings.Contains(said, "169.254.169.254 is in 169.254.0.0/16") {
			t.Error(said)
		}
	}
	if reached > 0 {
		t.Errorf("it was reached %d times", reached)
	}
}

// An address that carries an IPv4 address is judged by that address, too, wherever RFC 6052 puts it.
func TestCarriedAddresses(t *testing.T) {
	client, _ := newClient()
	client.DeniedNetworks = DeniedNetworks()
	for address, isDenied := range map[string]bool{
		"169.254.169.254":                 true,
		"192.0.2.1":                       false,
		"::ffff:169.254.169.254":          true,
		"::ffff:192.0.2.1":                false,
		"64:ff9b::169.254.169.254":        true,
		"64:ff9b::127.0.0.1":              true,
		"64:ff9b::192.0.2.1":              false,
		"64:ff9b:1::169.254.169.254":      true, // a prefix of 96 bits
		"64:ff9b:1:2:3:4:169.254.169.254": true,
		"64:ff9b:1:a9fe:a9:fe00::":        true, // of 48
		"64:ff9b:1:2a9:fe:a9fe::":         true, // of 56
		"64:ff9b:1:2:a9:fea9:fe00:0":      true, // of 64
		"64:ff9b:1:2:3:4:192.0.2.1":       false,
		"64:ff9b:1:c000:2:100::":          false,
		"2002:a9fe:a9fe::1":               true,
		"2002:c000:201::1":                false,
		"::169.254.169.254":               true,
		"::192.0.2.1":                     false,
		"::1":                             true,
		"::":                              true,
		"fe80::1%eth0":                    true,
		"2001:db8::169.254.169.254":       false,
		"::ffff:0:169.254.169.254":        true, // SIIT
		"::ffff:0:192.0.2.1":              false,
		"2001:db8::5efe:169.254.169.254":  true, // ISATAP
		"2001:db8::200:5efe:127.0.0.1":    true,
		"2001:db8::200:5efe:192.0.2.1":    false,
		"2001:db8::100:5efe:127.0.0.1":    false,
		"2001:0:a9fe:a9fe::3fff:fdfe":     true,  // Teredo: the server
		"2001:0:c000:201::5601:5601":      true,  // the client
		"2001:0:c000:201::3fff:fdfe":      false, // both are 192.0.2.1
	} {
		err := client.refuse("tcp", net.JoinHostPort(address, "443"), nil)
		if (err != nil) != isDenied {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Errors show no text from a registry, and a registry's credentials go to no other server.
func TestRegistry(t *testing.T) {
	archive, err := shelf.Archive("web", "1.0.0", nil)
	if err != nil {
		t.Fatal(err)
	}
	layer := func(size int) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":%q,"size":2},
"layers":[{"mediaType":"application/vnd.cncf.helm.chart.content.v1.tar+gzip","digest":%q,"size":%d}]}`, digest([]byte("{}")), digest(archive), size)
	}
	manifest, blobs, content, tokens := "", "", archive, []string{}
	elsewhere, otherAuthority := serve(t, func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("Authorization"))
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="tell me"`)
		}
		_, _ = w.Write(archive)
	})
	fetched := 0
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
			w.Header().Set("Content-Length", fmt.Sprint(len(manifest)))
			_, _ = w.Write([]byte(manifest))
		case blobs != "":
			http.Redirect(w, r, blobs, http.StatusTemporaryRedirect)
		default:
			fetched++
			_, _ = w.Write(content)
		}
	})
	request := Request{RepoURL: strings.Replace(registry.URL, "https://", "oci://", 1), Chart: "web",
		Access: Access{Credential: Credential{Username: "u", Password: "p"}, Authorities: append(authority, otherAuthority...)}}

	for wanted, want := range map[string]string{"": "1.2.0", "~1.1-0": "1.1.0+build"} {
		request.Version = wanted
		client, _ := newClient()
		if got, err := client.Version(t.Context(), request); err != nil || got != want {
			t.Errorf("%q is %q (%v), want %q", wanted, got, err, want)
		}
	}
	manifest = layer(len(archive))
	for _, blobs = range []string{"", elsewhere.URL + "/blob"} {
		client, _ := newClient()
		chart, err := client.Chart(t.Context(), request, "1.0.0")
		if err != nil || len(chart.Resources) != 1 {
			t.Errorf("blobs at %q: %v %v", blobs, chart, err)
		}
	}
	if len(tokens) != 1 || tokens[0] != "" {
		t.Errorf("elsewhere was sent %q", tokens)
	}
	blobs, fetched = "", 0
	for _, test := range []struct {
		manifest, want string
		content        []byte
		change         func(*Request)
	}{
		{manifest: layer(1 << 40), want: "is larger than 50 MiB", content: archive},
		{manifest: layer(len(archive) + 1), want: "cannot be read", content: archive},
		{manifest: layer(len(archive)), want: "its digest differs", content: append([]byte("x"), archive[1:]...)},
		{manifest: `{"schemaVersion":2,"layers":[]}`, want: "is not a Helm chart"},
		{manifest: strings.Repeat(" ", 2<<20), want: "is larger than 256 KiB"},
		{manifest: layer(len(archive)), want: "answered 401 Unauthorized", change: func(r *Request) { r.Access.Username = "nobody" }},
		{manifest: layer(len(archive)), want: "answered 401 Unauthorized", change: func(r *Request) { r.Access.Username, r.Access.Password = "", "" }},
	} {
		request := request
		if test.change != nil {
			test.change(&request)
		}
		manifest, content = test.manifest, test.content
		if said := refused(t, request); !strings.Contains(said, test.want) || strings.Contains(said, "hidden") {
			t.Errorf("%s, want %q", said, test.want)
		}
	}
}

// A connection that is cut is no answer that cannot be read.
func TestCutConnections(t *testing.T) {
	for name, answer := range map[string]string{
		"before the answer":    "",
		"within the headers":   "HTTP/1.1 200 OK\r\n",
		"within the answer":    "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\napiVersion: v1\n",
		"within its last part": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\napiVersion: v1\n",
	} {
		its, authority := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(connection, answer)
			_ = connection.Close()
		})
		for _, scheme := range []string{"https://", "oci://"} {
			client, _ := newClient()
			_, err := client.Version(t.Context(), Request{RepoURL: strings.Replace(its.URL, "https://", scheme, 1), Chart: "web", Version: "1.x", Access: Access{Authorities: authority}})
			if err == nil || !strings.Contains(err.Error(), "was cut before the answer was complete") || ReasonOf(err) != "" {
				t.Errorf("%s, %s: %v", name, scheme, err)
			}
		}
	}
}

// An identity token buys a token of the registry.
func TestIdentityToken(t *testing.T) {
	var its *httptest.Server
	its, authority := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			if r.PostFormValue("grant_type") != "refresh_token" || r.PostFormValue("refresh_token") != "identity" {
				w.WriteHeader(http.StatusForbidden)
			}
			_, _ = w.Write([]byte(`{"access_token":"bought"}`))
		case r.Header.Get("Authorization") != "Bearer bought":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+its.URL+`/token",service="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = w.Write([]byte(`{"name":"web","tags":["1.0.0"]}`))
		}
	})
	for token, want := range map[string]Reason{"identity": "", "other": Refused} {
		client, _ := newClient()
		_, err := client.Version(t.Context(), Request{RepoURL: strings.Replace(its.URL, "https://", "oci://", 1), Chart: "web",
			Access: Access{Credential: Credential{RefreshToken: token}, Authorities: authority}})
		if (err == nil) != (want == "") || ReasonOf(err) != want {
			t.Errorf("%s: %v", token, err)
		}
	}
}

// The Client refuses large and broken answers with few requests, and with little memory.
func TestSizes(t *testing.T) {
	page := func(tag string) string {
		return `{"name":"web","tags":["1.0.0"` + strings.Repeat(`,"`+tag+`"`, 3_900_000/(len(tag)+3)) + "]}"
	}
	empty, full := page(""), page("1.0.0")
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		oci    bool
		want   string
		fits   bool
	}{
		"an index, declared": {want: "index.yaml is larger than 50 MiB", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(60<<20))
		}},
		"an index": {want: "index.yaml is larger than 50 MiB", answer: func(w http.ResponseWriter, _ *http.Request) {
			for range 60 {
				if _, err := w.Write([]byte(strings.Repeat("# nothing\n", 1<<20/10))); err != nil {
					return
				}
			}
		}},
		"an archive, declared": {want: "the chart takes 9216 KiB in a Bundle, which can hold 900", fits: true, answer: archiveOf(9<<20, true)},
		"an archive":           {want: "the chart takes 8192 KiB in a Bundle, which can hold 900", fits: true, answer: archiveOf(9<<20, false)},
		"a large archive":      {want: "web.tgz is larger than 50 MiB", answer: archiveOf(60<<20, true)},
		"no archive":           {want: "the chart is not an archive", answer: archiveOf(0, false)},
		"tags":                 {oci: true, want: "lists more than 100000 versions of the chart: name an exact version", answer: paged(full, 6)},
		"empty tags":           {oci: true, want: "lists more than 100000 versions", answer: paged(empty, 2)},
		"pages":                {oci: true, want: "has more than 64 pages of tags: name an exact version", answer: paged(`{"tags":["1.0.0"]}`, 1000)},
		"a page":               {oci: true, want: "a page of tags is larger than 4 MiB", answer: paged(`{"tags":["`+strings.Repeat("x", 5<<20)+`"]}`, 1)},
		"a page elsewhere": {oci: true, want: "leads to a page of tags that is not its own", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `<https://169.254.169.254/v2/web/tags/list>; rel="next"`)
			_, _ = w.Write([]byte(`{"tags":["1.0.0"]}`))
		}},
		"no tags": {oci: true, want: "does not exist", answer: func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }},
	} {
		t.Run(name, func(t *testing.T) {
			its, authority := serve(t, test.answer)
			request := Request{RepoURL: its.URL, Chart: "web", Version: "1.0.0", Access: Access{Authorities: authority}}
			if test.oci {
				request.RepoURL, request.Version = strings.Replace(its.URL, "https://", "oci://", 1), "9.x"
			}
			defer debug.SetGCPercent(debug.SetGCPercent(20)) // The server is in this process, too.
			client, least := (*Client)(nil), int64(1<<62)
			for range 3 { // On a busy machine the collector may be late.
				var before, after runtime.MemStats
				debug.FreeOSMemory()
				runtime.ReadMemStats(&before)
				client, _ = newClient()
				version, err := client.Version(t.Context(), request)
				if err == nil {
					_, err = client.Chart(t.Context(), request, version)
				}
				runtime.ReadMemStats(&after)
				if err == nil || !strings.Contains(err.Error(), test.want) || errors.As(err, new(*worker.TooLargeError)) != test.fits {
					t.Fatalf("%v, want %q", err, test.want)
				}
				if least = min(least, int64(after.Sys-before.Sys)>>20); least <= 64 {
					break
				}
			}
			if least > 64 {
				t.Errorf("it took %d MiB more", least)
			}
			if !client.budget.Try("", defaultMax) {
				t.Error("some memory is still used")
			}
		})
	}
}

func archiveOf(size int, isDeclared bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/web.tgz" {
			_, _ = w.Write([]byte("entries: {web: [{version: 1.0.0, urls: [web.tgz]}]}"))
			return
		}
		if isDeclared {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		for range size >> 20 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}
}

// paged answers with a page of tags, some times.
func paged(page string, times int) http.HandlerFunc {
	asked := 0
	return func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < times {
			w.Header().Set("Link", fmt.Sprintf(`</v2/web/tags/list?last=%d>; rel="next"`, asked))
		}
		_, _ = w.Write([]byte(page))
	}
}

// If one namespace lacks memory or workers for a chart, another one still gets the chart.
func TestFailuresOfOthers(t *testing.T) {
	client, _ := newClient()
	refused := errors.New("your namespace has used up its memory")
	begun, end := make(chan struct{}), make(chan struct{})
	fails := func(context.Context) (int, int, error) {
		close(begun)
		<-end
		return 0, 0, refused
	}
	works := func(context.Context) (int, int, error) { return 7, 0, nil }
	first := make(chan error)
	go func() {
		_, err := once(t.Context(), client, "thief", "key", time.Minute, fails)
		first <- err
	}()
	<-begun
	second := make(chan int)
	go func() { // It joins the request of the other namespace, and asks again by itself.
		got, _ := once(t.Context(), client, "victim", "key", time.Minute, works)
		second <- got
	}()
	close(end)
	if err := <-first; err != refused { //nolint:errorlint // It is as it was.
		t.Error(err)
	}
	if got := <-second; got != 7 {
		t.Errorf("got %d", got)
	}
	if got, err := once(t.Context(), client, "late", "key", time.Minute, works); got != 7 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := once(t.Context(), client, "thief", "key", time.Minute, works); err != refused { //nolint:errorlint // It is as it was.
		t.Errorf("asked again at once: %v", err)
	}
}

// A panic ends one request.
func TestPanic(t *testing.T) {
	client, _ := newClient()
	ask := func() error {
		_, err := once(t.Context(), client, "team", "key", time.Minute, func(context.Context) (int, int, error) { panic("broken") })
		return err
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "cannot read the answer") {
		t.Error(err)
	}
}

// A registry without a version must not be reported as one whose answer cannot be read.
func TestNoSuchTag(t *testing.T) {
	its, authority := serve(t, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	request := Request{RepoURL: strings.Replace(its.URL, "https://", "oci://", 1), Chart: "web", Access: Access{Authorities: authority}}
	client, _ := newClient()
	if said := client.Has(t.Context(), request, "7.0.0"); said == nil || !strings.HasSuffix(said.Error(), `/web has no version "7.0.0"`) {
		t.Errorf("has: %v", said)
	}
	if _, err := client.Chart(t.Context(), request, "7.0.0"); err == nil || !strings.HasSuffix(err.Error(), `/web has no version "7.0.0"`) {
		t.Errorf("download: %v", err)
	}
}

// silent simulates a host that never answers, and counts requests.
type silent struct{ asked int }

func (s *silent) RoundTrip(*http.Request) (*http.Response, error) {
	s.asked++
	return nil, os.ErrDeadlineExceeded
}

// A host that has just kept a namespace waiting holds up none of its other charts.
func TestSilentHost(t *testing.T) {
	client, now := newClient()
	its := &silent{}
	for _, step := range []struct {
		namespace, url string
		after          time.Duration
		asked          int
	}{
		{namespace: "team", url: "https://silent.example.com/a", asked: 1},
		{namespace: "team", url: "https://silent.example.com/b", asked: 1},
		{namespace: "team", url: "https://silent.example.com:8443/b", asked: 2},
		{namespace: "other", url: "https://silent.example.com/a", asked: 3},
		{namespace: "team", url: "https://silent.example.com/a", asked: 4, after: slow},
	} {
		*now = now.Add(step.after)
		request := httptest.NewRequest(http.MethodGet, step.url, nil)
		_, err := (&guarded{its, client, step.namespace}).RoundTrip(request) //nolint:bodyclose // There is none.
		if !errors.Is(err, os.ErrDeadlineExceeded) || its.asked != step.asked {
			t.Errorf("%+v: asked %d times, %v", step, its.asked, err)
		}
	}
}
