package fetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/charts/repository"
)

func served(t *testing.T) (*repository.Repository, Request) {
	t.Helper()
	its := repository.New()
	t.Cleanup(its.Close)
	for _, version := range []string{"1.0.0", "1.2.0", "1.10.1", "2.0.0-rc.1"} {
		if err := its.Publish("web", version, map[string]string{"a.yaml": "a: " + version}); err != nil {
			t.Fatal(err)
		}
	}
	return its, Request{RepoURL: its.URL, Chart: "web", Access: Access{
		Username: repository.Username, Password: repository.Password, Authorities: its.CA,
	}}
}

func TestVersion(t *testing.T) {
	_, request := served(t)
	for wanted, want := range map[string]string{
		"": "1.10.1", "1.0.0": "1.0.0", "v1.0.0": "v1.0.0", "1.x": "1.10.1", "~1.2": "1.2.0", ">=1 <1.5": "1.2.0", "1.0": "1.0.0", ">=2.0.0-0": "2.0.0-rc.1",
	} {
		request.Version = wanted
		got, err := New(time.Minute).Version(context.Background(), request)
		if err != nil || got != want {
			t.Errorf("%q is %q (%v), want %q", wanted, got, err, want)
		}
	}
}

func TestChart(t *testing.T) {
	its, request := served(t)
	fetcher := New(time.Minute)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if _, err := fetcher.Chart(context.Background(), request, "1.2.0"); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	chart, err := fetcher.Chart(context.Background(), request, "1.2.0")
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
	// Who may not read it gets nothing of what another may.
	request.Access.Password = "guess"
	if _, err := fetcher.Chart(context.Background(), request, "1.2.0"); err == nil {
		t.Error("another password gets the chart")
	}
}

// What goes wrong is said, and no password with it.
func TestTrouble(t *testing.T) {
	its, request := served(t)
	if err := its.Publish("large", "1.0.0", map[string]string{"a.yaml": noise(2 << 20)}); err != nil {
		t.Fatal(err)
	}
	its.Put("broken-1.0.0.tgz", []byte("no archive"))
	its.Put("web-1.0.0.tgz", []byte("something else"))
	for name, test := range map[string]struct {
		change  func(*Request)
		version string
		want    string
	}{
		"no such chart":   {func(r *Request) { r.Chart = "other" }, "1.0.0", `has no chart "other"`},
		"no such version": {func(*Request) {}, "7.0.0", `has no version "7.0.0" of chart "web"`},
		"wrong password":  {func(r *Request) { r.Access.Password = "guess" }, "1.2.0", "answered 401 Unauthorized"},
		"no password":     {func(r *Request) { r.Access.Username, r.Access.Password = "", "" }, "1.2.0", "answered 401 Unauthorized"},
		"unknown issuer":  {func(r *Request) { r.Access.Authorities = nil }, "1.2.0", "certificate signed by unknown authority"},
		"no certificate":  {func(r *Request) { r.Access.Authorities = []byte("x") }, "1.2.0", "holds no certificate in PEM"},
		"another digest":  {func(*Request) {}, "1.0.0", "and the index says"},
		"too large":       {func(r *Request) { r.Chart = "large" }, "1.0.0", "KiB in a Bundle, which can carry 900"},
		"plain http":      {func(r *Request) { r.RepoURL = "http://127.0.0.1:1" }, "1.0.0", "neither https nor oci"},
		"nobody listens":  {func(r *Request) { r.RepoURL = "https://127.0.0.1:1" }, "1.0.0", "connection refused"},
		"no registry":     {func(r *Request) { r.RepoURL = "oci://127.0.0.1:1/charts" }, "1.0.0", "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			request := request
			test.change(&request)
			_, err := New(time.Minute).Chart(context.Background(), request, test.version)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if strings.Contains(err.Error(), repository.Password) || strings.Contains(err.Error(), "guess") {
				t.Errorf("the error tells the password: %v", err)
			}
			// Whether it is there is another question than what it holds.
			err = New(time.Minute).Has(context.Background(), request, test.version)
			if isThere := name == "another digest" || name == "too large"; isThere != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("has: %v", err)
			}
		})
	}
	var large *TooLargeError
	request.Chart = "large"
	if _, err := New(time.Minute).Chart(context.Background(), request, "1.0.0"); !errors.As(err, &large) {
		t.Errorf("%v is no TooLargeError", err)
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

// The password of a repository does not go to where its index leads.
func TestOtherHost(t *testing.T) {
	its, request := served(t)
	other := repository.New()
	t.Cleanup(other.Close)
	if err := other.Publish("web", "3.0.0", nil); err != nil {
		t.Fatal(err)
	}
	its.Put("index.yaml", []byte(fmt.Sprintf("apiVersion: v1\nentries: {web: [{apiVersion: v2, name: web, version: 3.0.0, urls: [%q]}]}", other.URL+"/web-3.0.0.tgz")))
	request.Access.Authorities = slices.Concat(request.Access.Authorities, other.CA)
	if _, err := New(time.Minute).Chart(context.Background(), request, "3.0.0"); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("%v, want 401: the other host has no password", err)
	}
	if paths, refused := other.Asked(); len(paths) > 0 || refused != 1 {
		t.Errorf("the other host was asked for %v, and %d times without password", paths, refused)
	}
}

func TestCache(t *testing.T) {
	fetcher := New(time.Minute)
	now := time.Now()
	fetcher.now = func() time.Time { now = now.Add(time.Second); return now }
	for i := range 60 {
		chart := &plan.Chart{}
		resource, err := resourceOf("a", []byte(strings.Repeat("x", 1<<9)))
		if err != nil {
			t.Fatal(err)
		}
		resource.Content = strings.Repeat("x", 1<<20)
		chart.Resources = append(chart.Resources, resource)
		fetcher.keep(fmt.Sprint(i), chart)
	}
	keys := slices.Sorted(maps.Keys(fetcher.charts))
	if len(keys) != 47 || slices.Contains(keys, "12") || !slices.Contains(keys, "59") {
		t.Errorf("%d are kept: %v", len(keys), keys)
	}
}

func TestLogin(t *testing.T) {
	for name, test := range map[string]struct{ config, username, password, err string }{
		"auth":         {`{"auths":{"r.example.com":{"auth":"YTpiOmM="}}}`, "a", "b:c", ""},
		"named":        {`{"auths":{"https://R.example.com/v2/":{"username":"a","password":"b"}}}`, "a", "b", ""},
		"another host": {`{"auths":{"other.example.com":{"auth":"YTpi"}}}`, "", "", `has no login for "r.example.com"`},
		"no JSON":      {`secret`, "", "", "is not a Docker configuration in JSON"},
		"no base64":    {`{"auths":{"r.example.com":{"auth":"!"}}}`, "", "", `auth of "r.example.com" is not base64`},
	} {
		username, password, err := Login([]byte(test.config), "r.example.com")
		got := ""
		if err != nil {
			got = err.Error()
		}
		if username != test.username || password != test.password || got != test.err {
			t.Errorf("%s: %q %q %q", name, username, password, got)
		}
	}
}

// What agents download themselves is where the manager would download it from, and they send the credentials
// to nobody else.
func TestHas(t *testing.T) {
	for name, test := range map[string]struct {
		url, want string
		open      bool
	}{
		"relative":                         {url: "web-1.0.0.tgz"},
		"not there":                        {url: "web-9.0.0.tgz", want: "answered 404"},
		"in the clear":                     {url: "http://charts.example.com/web.tgz", want: "which is not https"},
		"another origin, with credentials": {url: "https://charts.example.com/web.tgz?signature=hidden", want: "leads to https://charts.example.com/web.tgz, to which credentials are not to go"},
		"where nobody is to connect to":    {url: "https://169.254.169.254/web.tgz", open: true, want: "169.254.169.254 is in 169.254.0.0/16"},
	} {
		its, request := served(t)
		its.Put("index.yaml", []byte(fmt.Sprintf("apiVersion: v1\nentries: {web: [{apiVersion: v2, name: web, version: 1.0.0, urls: [%q]}]}", test.url)))
		if test.open {
			its.Open()
			request.Access.Username, request.Access.Password = "", ""
		}
		err := New(time.Minute, network(t, "169.254.0.0/16")).Has(context.Background(), request, "1.0.0")
		if got := fmt.Sprint(err); (test.want == "") != (err == nil) || !strings.Contains(got, test.want) && err != nil || strings.Contains(got, "hidden") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What has failed is not asked again at once, for whoever has the same access.
func TestFailureIsRemembered(t *testing.T) {
	its, request := served(t)
	request.Version = "9.x"
	fetcher := New(time.Minute)
	now := time.Now()
	fetcher.now = func() time.Time { return now }
	for name, ask := range map[string]func() error{
		"version": func() error { _, err := fetcher.Version(context.Background(), request); return err },
		"chart":   func() error { _, err := fetcher.Chart(context.Background(), request, "9.0.0"); return err },
		"has":     func() error { return fetcher.Has(context.Background(), request, "9.0.0") },
	} {
		before, _ := its.Asked()
		first, second := ask(), ask()
		after, _ := its.Asked()
		if first == nil || !errors.Is(second, first) || len(after) != len(before)+1 {
			t.Errorf("%s: %v, then %v, asked for %v", name, first, second, after[len(before):])
		}
	}
	if err := its.Publish("web", "9.0.0", nil); err != nil {
		t.Fatal(err)
	}
	now = now.Add(sore - time.Second)
	if err := fetcher.Has(context.Background(), request, "9.0.0"); err == nil {
		t.Error("it is asked before the time has come")
	}
	other := request
	other.Access.Username, other.Access.Password = "", ""
	its.Open()
	if err := fetcher.Has(context.Background(), other, "9.0.0"); err != nil {
		t.Errorf("with other access: %v", err)
	}
	now = now.Add(time.Second)
	if err := fetcher.Has(context.Background(), request, "9.0.0"); err != nil {
		t.Errorf("when the time has come: %v", err)
	}
}
