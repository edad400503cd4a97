package repository

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/muster-fleet/muster/internal/helm/worker"
)

// website is a repository with an index.
type website struct {
	*Client
	http    *http.Client
	base    *url.URL
	request Request
}

var _ source = (*website)(nil)

// list returns the list for all charts of the repository.
func (w *website) list() *list {
	at := w.base.JoinPath("index.yaml")
	download := func(ctx context.Context, into io.Writer) error {
		its, err := w.get(ctx, at)
		if err != nil {
			return err
		}
		return its.save(into, w.MaxIndex)
	}
	return &list{Client: w.Client, request: w.request, key: w.request.key("list"), at: bare(at.String()), write: download}
}

func (w *website) find(ctx context.Context, wanted string) (worker.Entry, error) {
	return w.list().find(ctx, wanted)
}

func (w *website) open(ctx context.Context, version string) (*download, error) {
	entry, err := w.find(ctx, version)
	if err != nil {
		return nil, err
	}
	index := bare(w.base.String())
	reference, err := url.Parse(entry.URL)
	if err != nil || entry.URL == "" {
		return nil, failf(Invalid, "the index of %s names no usable URL for %s %s", index, w.request.Chart, version)
	}
	at := w.base.JoinPath("/").ResolveReference(reference)
	if !reference.IsAbs() {
		at.RawQuery = w.base.RawQuery // As Helm does: it may be a signature.
	}
	switch {
	case at.Scheme != "https" && !w.AllowHTTP:
		return nil, failf(Invalid, "the index of %s leads to %s, which is not https", index, bare(at.String()))
	// An agent sends its credentials to any URL in the index.
	case w.request.byAgents && w.request.Access.Credential != auth.EmptyCredential && !isSameOrigin(w.base, at):
		return nil, failf(Invalid, "the index of %s leads to %s, where credentials must not go", index, bare(at.String()))
	}
	its, err := w.get(ctx, at)
	if err == nil {
		its.digest = entry.Digest
	}
	return its, err
}

// get begins a download. Only the repository itself receives the credentials.
func (w *website) get(ctx context.Context, at *url.URL) (*download, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, failf(Invalid, "the URL of the repository cannot be used")
	}
	request.Header.Set("User-Agent", w.UserAgent)
	access, isOwn := &w.request.Access, isSameOrigin(w.base, at)
	switch {
	case isOwn && access.AccessToken != "":
		request.Header.Set("Authorization", "Bearer "+access.AccessToken)
	case isOwn && (access.Username != "" || access.Password != ""):
		request.SetBasicAuth(access.Username, access.Password)
	}
	response, err := w.http.Do(request)
	if err != nil {
		return nil, shown(at.String(), err)
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, answered(at.String(), response.StatusCode)
	}
	return &download{response.Body, bare(at.String()), response.ContentLength, ""}, nil
}
