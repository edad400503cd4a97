package repository

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// redirected simulates servers: each answers with a redirect, or with the credentials that it was sent.
type redirected map[string]string

func (r redirected) RoundTrip(request *http.Request) (*http.Response, error) {
	response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: request,
		Body: io.NopCloser(strings.NewReader(request.Header.Get("Authorization")))}
	if to := r[request.URL.String()]; to != "" {
		response.StatusCode = http.StatusFound
		response.Header.Set("Location", to)
	}
	return response, nil
}

func TestCheckRedirect(t *testing.T) {
	const from = "https://a.example.com/x"
	for to, want := range map[string]string{
		"https://a.example.com/y":                 "secret",
		"https://a.example.com:443/y":             "secret",
		"https://a.example.com:8443/y":            "",
		"https://b.a.example.com/y":               "",
		"https://b.example.com/y":                 "",
		"http://a.example.com/y?signature=hidden": "refused",
	} {
		client := &http.Client{Transport: redirected{from: to}, CheckRedirect: checkRedirect}
		request, err := http.NewRequest(http.MethodGet, from, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "secret")
		response, err := client.Do(request)
		if want == "refused" {
			if err == nil || !strings.Contains(err.Error(), "it redirects to http://a.example.com/y, which is not followed") || strings.Contains(strings.SplitN(err.Error(), ": ", 2)[1], "hidden") {
				t.Errorf("%s: %v", to, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", to, err)
			continue
		}
		if sent, _ := io.ReadAll(response.Body); string(sent) != want {
			t.Errorf("%s was sent %q, want %q", to, sent, want)
		}
	}
	client := &http.Client{Transport: redirected{from: from}, CheckRedirect: checkRedirect}
	if _, err := client.Get(from); err == nil {
		t.Error("redirects are followed for ever")
	}
}

func TestIsSameOrigin(t *testing.T) {
	parse := func(text string) *url.URL {
		its, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return its
	}
	if !isSameOrigin(parse("http://a"), parse("http://a:80/b")) || isSameOrigin(parse("http://a"), parse("http://a:443")) {
		t.Error("http has another port than https")
	}
	if !isSameOrigin(parse("https://a"), parse("HTTPS://A:443/b")) || isSameOrigin(parse("https://a"), parse("http://a")) || isSameOrigin(parse("https://a"), parse("https://a:80")) {
		t.Error("origins are mixed up")
	}
}
