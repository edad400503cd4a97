package repository

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/worker"
	shelf "github.com/muster-fleet/muster/test/helm/repository"
)

// newClient returns a Client without a Pool, whose clock stands still.
func newClient() (*Client, *time.Time) {
	client, now := New(Options{Interval: time.Minute}), time.Now()
	client.now = func() time.Time { return now }
	return client, &now
}

func served(t *testing.T) (*shelf.Repository, Request) {
	t.Helper()
	its := shelf.New()
	t.Cleanup(its.Close)
	for _, version := range []string{"1.0.0", "1.2.0", "1.10.1", "2.0.0-rc.1"} {
		if err := its.Publish("web", version, map[string]string{"a.yaml": "a: " + version}); err != nil {
			t.Fatal(err)
		}
	}
	return its, Request{RepoURL: its.URL, Chart: "web", Access: Access{
		Credential: Credential{Username: shelf.Username, Password: shelf.Password}, Authorities: its.CA,
	}}
}

func TestVersion(t *testing.T) {
	its, request := served(t)
	client, _ := newClient()
	for wanted, want := range map[string]string{
		"": "1.10.1", "1.0.0": "1.0.0", "v1.0.0": "1.0.0", "1.x": "1.10.1", "~1.2": "1.2.0", ">=1 <1.5": "1.2.0", "1.0": "1.0.0", ">=2.0.0-0": "2.0.0-rc.1",
	} {
		request.Version = wanted
		got, err := client.Version(t.Context(), request)
		if err != nil || got != want {
			t.Errorf("%q is %q (%v), want %q", wanted, got, err, want)
		}
	}
	if paths, _ := its.Asked(); len(paths) != 1 {
		t.Errorf("%d requests for one index", len(paths))
	}
	versions, err := client.Versions(t.Context(), request)
	if slices.Sort(versions); err != nil || !slices.Equal(versions, []string{"1.0.0", "1.10.1", "1.2.0", "2.0.0-rc.1"}) {
		t.Errorf("%v, %v", versions, err)
	}
}

// The Client reads an index once, however many charts are wanted, and again after the interval.
func TestOneIndex(t *testing.T) {
	its, request := served(t)
	client, now := newClient()
	var wait sync.WaitGroup
	for i := range 20 {
		if err := its.Publish(fmt.Sprint("chart-", i), "1.0.0", nil); err != nil {
			t.Fatal(err)
		}
	}
	request.Version = "1.0.x"
	for i := range 20 {
		request := request
		request.Chart = fmt.Sprint("chart-", i)
		wait.Go(func() {
			if got, err := client.Version(t.Context(), request); err != nil || got != "1.0.0" {
				t.Errorf("%s: %s, %v", request.Chart, got, err)
			}
		})
	}
	wait.Wait()
	*now = now.Add(time.Minute)
	request.Chart = "web"
	if _, err := client.Version(t.Context(), request); err != nil {
		t.Error(err)
	}
	if paths, _ := its.Asked(); !slices.Equal(paths, []string{"/index.yaml", "/index.yaml"}) {
		t.Errorf("requests: %v", paths)
	}
}

func TestChart(t *testing.T) {
	its, request := served(t)
	client, _ := newClient()
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if _, err := client.Chart(t.Context(), request, "1.2.0"); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	chart, err := client.Chart(t.Context(), request, "1.2.0")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, resource := range chart.Resources {
		got[resource.Name] = resource.Content
	}
	want := map[string]string{"Chart.yaml": "{apiVersion: v2, name: web, version: 1.2.0}\n", "templates/a.yaml": "a: 1.2.0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if chart.Version != "1.2.0" {
		t.Errorf("version %q", chart.Version)
	}
	paths, _ := its.Asked()
	if diff := cmp.Diff([]string{"/index.yaml", "/web-1.2.0.tgz"}, paths); diff != "" {
		t.Errorf("20 times the same (-want +got):\n%s", diff)
	}
	// Another password gets nothing from the cache.
	request.Access.Password = "guess"
	if _, err := client.Chart(t.Context(), request, "1.2.0"); err == nil {
		t.Error("another password gets the chart")
	}
}

// Errors name the problem, and contain no password.
func TestTrouble(t *testing.T) {
	its, request := served(t)
	if err := its.Publish("large", "1.0.0", map[string]string{"a.yaml": noise(2 << 20)}); err != nil {
		t.Fatal(err)
	}
	its.Put("web-1.0.0.tgz", []byte("something else"))
	for name, test := range map[string]struct {
		change  func(*Request)
		version string
		want    string
	}{
		"no such chart":       {func(r *Request) { r.Chart = "other" }, "1.0.0", `has no chart "other"`},
		"no such version":     {func(*Request) {}, "7.0.0", `has no version "7.0.0" of chart "web"`},
		"wrong password":      {func(r *Request) { r.Access.Password = "guess" }, "1.2.0", "answered 401 Unauthorized"},
		"no password":         {func(r *Request) { r.Access.Username, r.Access.Password = "", "" }, "1.2.0", "answered 401 Unauthorized"},
		"unknown issuer":      {func(r *Request) { r.Access.Authorities = nil }, "1.2.0", "certificate signed by unknown authority"},
		"no certificate":      {func(r *Request) { r.Access.Authorities = []byte("x") }, "1.2.0", "holds no certificate in PEM"},
		"another digest":      {func(*Request) {}, "1.0.0", "its digest differs"},
		"too large":           {func(r *Request) { r.Chart = "large" }, "1.0.0", "KiB in a Bundle, which can hold 900"},
		"plain http":          {func(r *Request) { r.RepoURL = "http://127.0.0.1:1" }, "1.0.0", "neither https nor oci"},
		"nobody listens":      {func(r *Request) { r.RepoURL = "https://127.0.0.1:1" }, "1.0.0", "connection refused"},
		"no registry":         {func(r *Request) { r.RepoURL = "oci://127.0.0.1:1/charts" }, "1.0.0", "connection refused"},
		"password in URL":     {func(r *Request) { r.RepoURL = "https://me:guess@127.0.0.1:1" }, "1.0.0", "contains a user or a password"},
		"password for oci":    {func(r *Request) { r.RepoURL = "oci://me:guess@127.0.0.1:1" }, "1.0.0", "contains a user or a password"},
		"no URL":              {func(r *Request) { r.RepoURL = "https://guess%zz" }, "1.0.0", "the URL of the repository cannot be parsed"},
		"not at its location": {func(r *Request) { r.RepoURL = "oci://127.0.0.1:1/A b" }, "1.0.0", "is not a valid location of a chart"},
	} {
		t.Run(name, func(t *testing.T) {
			request := request
			test.change(&request)
			client, _ := newClient()
			_, err := client.Chart(t.Context(), request, test.version)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if strings.Contains(err.Error(), shelf.Password) || strings.Contains(err.Error(), "guess") {
				t.Errorf("the error contains the password: %v", err)
			}
			// Has looks for the archive, but does not read it.
			client, _ = newClient()
			err = client.Has(t.Context(), request, test.version)
			if isThere := name == "another digest" || name == "too large"; isThere != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("has: %v", err)
			}
		})
	}
	client, _ := newClient()
	request.Chart = "large"
	if _, err := client.Chart(t.Context(), request, "1.0.0"); !errors.As(err, new(*worker.TooLargeError)) {
		t.Errorf("%v is no TooLargeError", err)
	}
	if archive, err := client.Archive(t.Context(), request, "1.0.0"); err != nil || len(archive) < 1<<20 {
		t.Errorf("the archive has %d bytes (%v)", len(archive), err)
	}
}

// noise is text that does not compress.
func noise(size int) string {
	var text strings.Builder
	state := uint64(1)
	for text.Len() < size {
		state = state*6364136223846793005 + 1442695040888963407
		fmt.Fprintf(&text, "%016x\n", state)
	}
	return text.String()
}

// The password of a repository is not sent to other hosts to which its index leads.
func TestOtherHost(t *testing.T) {
	its, request := served(t)
	other := shelf.New()
	t.Cleanup(other.Close)
	if err := other.Publish("web", "3.0.0", nil); err != nil {
		t.Fatal(err)
	}
	its.Put("index.yaml", fmt.Appendf(nil, "apiVersion: v1\nentries: {web: [{apiVersion: v2, name: web, version: 3.0.0, urls: [%q]}]}", other.URL+"/web-3.0.0.tgz"))
	request.Access.Authorities = slices.Concat(request.Access.Authorities, other.CA)
	client, _ := newClient()
	if _, err := client.Chart(t.Context(), request, "3.0.0"); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("%v, want 401: the other host has no password", err)
	}
	if paths, refused := other.Asked(); len(paths) > 0 || refused != 1 {
		t.Errorf("the other host was asked for %v, and %d times without password", paths, refused)
	}
}

func TestAnswers(t *testing.T) {
	kept, now := newAnswers(48), time.Now()
	for i := range 60 {
		now = now.Add(time.Second)
		kept.put("team", fmt.Sprint(i), i, 1, now)
		kept.get("1", time.Time{})
	}
	known := func(key string) bool { return kept.get(key, time.Time{}) != nil }
	if !known("1") || known("12") || !known("13") || len(kept.by) != 48 || kept.size != 48 {
		t.Errorf("%d are kept, of size %d", len(kept.by), kept.size)
	}
	if kept.get("59", now.Add(-time.Nanosecond)) == nil || kept.get("59", now) != nil {
		t.Error("the age of an answer is wrong")
	}
	for _, namespace := range []string{"team", "other", "other"} {
		kept.put(namespace, "1", 1, 100, now)
	}
	if len(kept.by) != 1 || len(kept.of) != 1 || kept.size != 100 || kept.of["other"].size != 100 {
		t.Errorf("%d are kept in addition to a large one, of size %d", len(kept.by), kept.size)
	}
}

// A namespace with many answers takes the place of its own only, and the latest answer always has a place.
func TestAnswersAreSharedFairly(t *testing.T) {
	kept, now := newAnswers(48), time.Now()
	put := func(namespace, key string, size int) {
		t.Helper()
		if kept.put(namespace, key, size, size, now); kept.get(key, time.Time{}) == nil || kept.size > 48 {
			t.Fatalf("%s of %s is not kept, or all have %d", key, namespace, kept.size)
		}
	}
	areKept := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			if kept.get(key, time.Time{}) == nil {
				t.Errorf("%s is not kept", key)
			}
		}
	}
	put("a", "a", 12)
	put("b", "b", 12)
	for i := range 100 {
		put("greedy", fmt.Sprint("greedy ", i), 1+i%24)
	}
	put("late", "late", 8)
	areKept("a", "b", "late")
	put("greedy", "large", 40) // It takes the place of others, until they ask again.
	put("a", "a", 12)
	put("b", "b", 12)
	put("greedy", "small", 1)
	areKept("a", "b", "late", "small")
}

// One namespace cannot take the memory of all.
func TestRoom(t *testing.T) {
	all := fair.New(100<<20+others, 100<<20)
	one, other := &spool{budget: all, namespace: "a"}, &spool{budget: all, namespace: "b"}
	part := make([]byte, 10<<20)
	for range 10 {
		if _, err := one.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := one.Write(part); err == nil {
		t.Error("a namespace takes more than its part")
	}
	if _, err := other.Write(part); err != nil {
		t.Error(err)
	}
	if _, err := other.Write(part); err == nil {
		t.Error("all together take more than the limit")
	}
	one.end()
	other.end()
	if !all.Try("a", 100<<20) || !all.Try("b", others) {
		t.Error("some is still used")
	}
}

func TestLogin(t *testing.T) {
	for name, test := range map[string]struct {
		config, host string
		want         Credential
		err          string
	}{
		"auth":           {config: `{"auths":{"r.example.com":{"auth":"YTpiOmM="}}}`, want: Credential{Username: "a", Password: "b:c"}},
		"named":          {config: `{"auths":{"https://R.example.com/v2/":{"username":"a","password":"b"}}}`, want: Credential{Username: "a", Password: "b"}},
		"both":           {config: `{"auths":{"https://r.example.com":{"auth":"YTpi"},"r.example.com":{"auth":"YzpkAA=="}}}`, want: Credential{Username: "c", Password: "d"}},
		"identity token": {config: `{"auths":{"r.example.com":{"auth":"MDAwOg==","identitytoken":"i"}}}`, want: Credential{Username: "000", RefreshToken: "i"}},
		"registry token": {config: `{"auths":{"r.example.com":{"registrytoken":"t"}}}`, want: Credential{AccessToken: "t"}},
		"another host":   {config: `{"auths":{"other.example.com":{"auth":"YTpi"}}}`},
		"another port":   {config: `{"auths":{"r.example.com:5000":{"auth":"YTpi"}}}`},
		"no auths":       {config: `{"credsStore":"pass"}`},
		"Docker Hub":     {config: `{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"}}}`, host: "registry-1.docker.io", want: Credential{Username: "a", Password: "b"}},
		"docker.io":      {config: `{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"}}}`, host: "docker.io", want: Credential{Username: "a", Password: "b"}},
		"no JSON":        {config: `secret`, err: "is not a Docker configuration in JSON"},
		"no base64":      {config: `{"auths":{"r.example.com":{"auth":"!"}}}`, err: `auth of "r.example.com" is not base64`},
	} {
		if test.host == "" {
			test.host = "r.example.com"
		}
		got, err := Login([]byte(test.config), test.host)
		said := ""
		if err != nil {
			said = err.Error()
		}
		if diff := cmp.Diff(test.want, got); diff != "" || said != test.err {
			t.Errorf("%s: %q\n%s", name, said, diff)
		}
	}
}

// Agents can download the same charts as the manager, and send the credentials to no other host.
func TestHas(t *testing.T) {
	for name, test := range map[string]struct {
		url, want string
		open      bool
	}{
		"relative":                         {url: "web-1.0.0.tgz"},
		"not there":                        {url: "web-9.0.0.tgz", want: "answered 404"},
		"in the clear":                     {url: "http://charts.example.com/web.tgz", want: "which is not https"},
		"no URL":                           {url: "", want: "names no usable URL"},
		"another origin, with credentials": {url: "https://charts.example.com/web.tgz?signature=hidden", want: "leads to https://charts.example.com/web.tgz, where credentials must not go"},
		"in a denied network":              {url: "https://169.254.169.254/web.tgz", open: true, want: "169.254.169.254 is in 169.254.0.0/16"},
	} {
		its, request := served(t)
		its.Put("index.yaml", fmt.Appendf(nil, "apiVersion: v1\nentries: {web: [{apiVersion: v2, name: web, version: 1.0.0, urls: [%q]}]}", test.url))
		if test.open {
			its.Open()
			request.Access.Username, request.Access.Password = "", ""
		}
		client, _ := newClient()
		client.DeniedNetworks = networks(t, "169.254.0.0/16")
		err := client.Has(t.Context(), request, "1.0.0")
		if got := fmt.Sprint(err); (test.want == "") != (err == nil) || !strings.Contains(got, test.want) && err != nil || strings.Contains(got, "hidden") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The Client does not repeat a failed request at once, for the same access. Later it sees a version
// that is new.
func TestFailureIsRemembered(t *testing.T) {
	its, request := served(t)
	request.Version = "9.x"
	for name, ask := range map[string]func(*Client) error{
		"version": func(client *Client) error { _, err := client.Version(t.Context(), request); return err },
		"chart":   func(client *Client) error { _, err := client.Chart(t.Context(), request, "9.0.0"); return err },
		"has":     func(client *Client) error { return client.Has(t.Context(), request, "9.0.0") },
	} {
		client, _ := newClient()
		before, _ := its.Asked()
		first, second := ask(client), ask(client)
		after, _ := its.Asked()
		if first == nil || second == nil || second.Error() != first.Error() || len(after) != len(before)+1 {
			t.Errorf("%s: %v, then %v, asked for %v", name, first, second, after[len(before):])
		}
	}
	client, now := newClient()
	guess := request
	guess.Access.Password = "guess"
	for range 2 {
		if _, err := client.Version(t.Context(), guess); ReasonOf(err) != Refused {
			t.Errorf("with another password: %v", err)
		}
	}
	if _, refused := its.Asked(); refused != 1 {
		t.Errorf("the repository refused %d requests", refused)
	}
	if err := client.Has(t.Context(), request, "9.0.0"); err == nil {
		t.Error("there is one")
	}
	if err := its.Publish("web", "9.0.0", nil); err != nil {
		t.Fatal(err)
	}
	*now = now.Add(slow - time.Second)
	if err := client.Has(t.Context(), request, "9.0.0"); err == nil {
		t.Error("the Client asks before the time has come")
	}
	other := request
	other.Access.Username, other.Access.Password = "", ""
	its.Open()
	if err := client.Has(t.Context(), other, "9.0.0"); err != nil {
		t.Errorf("with other access: %v", err)
	}
	*now = now.Add(time.Second)
	if err := client.Has(t.Context(), request, "9.0.0"); err != nil {
		t.Errorf("when the time has come: %v", err)
	}
	if got, err := client.Version(t.Context(), request); err != nil || got != "9.0.0" {
		t.Errorf("a range: %q, %v", got, err)
	}
}
