package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// server looks to a client like an API server: it answers writes, and its watches send one event and stay open.
type server struct {
	writes atomic.Int64
	token  atomic.Value
	// unread makes it answer before it has read the request.
	unread bool
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.token.Store(r.Header.Get("Authorization"))
	w.Header().Set("Content-Type", "application/json")
	const object = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"one","resourceVersion":"7"}}`
	switch {
	case s.unread:
		http.NotFound(w, r)
	case r.Method != http.MethodGet:
		s.writes.Add(1)
		_, _ = io.WriteString(w, object)
	default:
		fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", object)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

func setUp(t *testing.T) (*server, *Proxy, rest.Interface) {
	t.Helper()
	backend := &server{}
	upstream := httptest.NewUnstartedServer(backend)
	upstream.EnableHTTP2 = true
	upstream.StartTLS()
	t.Cleanup(upstream.Close)
	roots := x509.NewCertPool()
	roots.AddCert(upstream.Certificate())
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	p, address, err := Serve(ctx, upstream.URL, roots, upstream.TLS.Certificates[0])
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(&rest.Config{
		Host: address, BearerToken: "secret", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(upstream.TLS.Certificates[0])},
	})
	if err != nil {
		t.Fatal(err)
	}
	return backend, p, clients.CoreV1().RESTClient()
}

// write patches the object, once: by default, a client retries throttled requests.
func write(ctx context.Context, client rest.Interface, body []byte) error {
	return client.Patch(types.MergePatchType).MaxRetries(0).
		Namespace("default").Resource("configmaps").Name("one").Body(body).Do(ctx).Error()
}

// Answers that come before the server has read the request arrive whole.
func TestAnswersBeforeTheRequestWasRead(t *testing.T) {
	backend, _, client := setUp(t)
	backend.unread = true
	body := bytes.Repeat([]byte("x"), 6000)
	// The test takes seconds, but a machine may have other work. An answer that never comes takes as long.
	ctx, done := context.WithTimeout(t.Context(), 5*time.Minute)
	defer done()
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			for range 2000 {
				if err := write(ctx, client, body); !apierrors.IsNotFound(err) {
					t.Errorf("got %v", err)
					return
				}
			}
		})
	}
	wait.Wait()
}

// The answer, and whether the server saw the write, tell the kinds of failure apart.
func TestWritesGoWrong(t *testing.T) {
	backend, p, client := setUp(t)
	const writes = 400
	p.Inject(Plan{Writes: .5}, 7)
	seen := map[Kind]int{}
	for range writes {
		before := backend.writes.Load()
		err := write(t.Context(), client, []byte(`{}`))
		arrived := backend.writes.Load() > before
		var status apierrors.APIStatus
		switch {
		case err == nil && arrived:
		case errors.As(err, &status):
			seen[Kind(strconv.Itoa(int(status.Status().Code)))]++
		case arrived:
			seen[CutAfter]++
		default:
			seen[CutBefore]++
		}
	}
	counts, total := p.Counts(), 0
	for _, kind := range kinds {
		total += counts[kind]
		if counts[kind] == 0 || seen[kind] != counts[kind] {
			t.Errorf("%q went wrong %d times, and the client saw it %d times", kind, counts[kind], seen[kind])
		}
	}
	if total < writes/3 || total > writes*2/3 {
		t.Errorf("%d of %d writes went wrong, not about half", total, writes)
	}

	p.Inject(Plan{}, 0)
	if err := write(t.Context(), client, []byte(`{}`)); err != nil || len(p.Counts()) != 0 {
		t.Errorf("after the end of it: %v, %v", err, p.Counts())
	}
	if token := backend.token.Load(); token != "Bearer secret" {
		t.Errorf("the server saw the token %q", token)
	}
}

// The same seed makes the same requests fail, and never a mere read.
func TestDraw(t *testing.T) {
	p := New(nil, nil)
	draw := func(seed uint64) string {
		p.Inject(Plan{Writes: .3, Watches: .3}, seed)
		var text strings.Builder
		for range 50 {
			for _, request := range []*http.Request{
				httptest.NewRequest(http.MethodPatch, "/api/v1/namespaces", nil), httptest.NewRequest(http.MethodGet, "/api/v1/namespaces?watch=true", nil),
			} {
				fmt.Fprintf(&text, "%q ", p.draw(request))
			}
			if kind := p.draw(httptest.NewRequest(http.MethodGet, "/api/v1/namespaces", nil)); kind != "" {
				t.Errorf("a list goes wrong: %s", kind)
			}
		}
		return text.String()
	}
	first := draw(1)
	if draw(1) != first {
		t.Error("the same seed gave something else")
	}
	if draw(2) == first {
		t.Error("another seed gave the same")
	}
}

func TestWatchesAreCut(t *testing.T) {
	_, p, client := setUp(t)
	begin := func() (watch.Interface, error) {
		return client.Get().Namespace("default").Resource("configmaps").Param("watch", "true").Watch(t.Context())
	}
	stream, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	if event := <-stream.ResultChan(); event.Type != watch.Added {
		t.Errorf("an event is passed on as it comes; got %s", event.Type)
	}
	if p.Cut() == 0 {
		t.Error("there was no connection to cut")
	}
	for range stream.ResultChan() { // The watch ends, or the test times out.
	}
	if _, err := begin(); err != nil {
		t.Errorf("after a cut: %v", err)
	}
	p.Inject(Plan{Watches: 1}, 1)
	if _, err := begin(); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from a version that is too old gave %v", err)
	}
}

func pemOf(certificate tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
}
