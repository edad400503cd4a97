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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// server is an API server as far as a client notices: it answers writes, and its
// watches say one event and stay open.
type server struct {
	writes, watches, lists atomic.Int64
	token                  atomic.Value
	// unread lets it answer before it has read the request.
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
	case isWatch(r):
		s.watches.Add(1)
		fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", object)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		s.lists.Add(1)
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"items":[`+object+`]}`)
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

// write patches the object, once: a client would by itself repeat what was throttled.
func write(ctx context.Context, client rest.Interface) error {
	return client.Patch(types.MergePatchType).MaxRetries(0).
		Namespace("default").Resource("configmaps").Name("one").Body([]byte(`{}`)).Do(ctx).Error()
}

func TestPassesEverythingOn(t *testing.T) {
	backend, _, client := setUp(t)
	if err := write(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if token := backend.token.Load(); token != "Bearer secret" {
		t.Errorf("the server saw the token %q", token)
	}
	var list corev1.ConfigMapList
	if err := client.Get().Namespace("default").Resource("configmaps").Do(t.Context()).Into(&list); err != nil || len(list.Items) != 1 {
		t.Errorf("a list gave %v, %v", list, err)
	}
}

// Answers that come before the request was read arrive whole.
func TestAnswersBeforeTheRequestWasRead(t *testing.T) {
	backend, _, client := setUp(t)
	backend.unread = true
	body := bytes.Repeat([]byte("x"), 6000)
	// Seconds, but for a machine with other work. An answer that never comes waits as long.
	ctx, done := context.WithTimeout(t.Context(), 5*time.Minute)
	defer done()
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			for range 2000 {
				err := client.Patch(types.MergePatchType).MaxRetries(0).
					Namespace("default").Resource("configmaps").Name("one").Body(body).Do(ctx).Error()
				if !apierrors.IsNotFound(err) {
					t.Errorf("got %v", err)
					return
				}
			}
		})
	}
	wait.Wait()
}

// What goes wrong is told apart by the answer, and by whether the server saw the write.
func TestWritesGoWrong(t *testing.T) {
	backend, p, client := setUp(t)
	const writes = 400
	p.Inject(Plan{Writes: .5}, 7)
	seen := map[Kind]int{}
	for range writes {
		before := backend.writes.Load()
		err := write(t.Context(), client)
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
	for _, kind := range Kinds {
		total += counts[kind]
		if counts[kind] == 0 || seen[kind] != counts[kind] {
			t.Errorf("%q went wrong %d times, and the client saw it %d times", kind, counts[kind], seen[kind])
		}
	}
	if total < writes/3 || total > writes*2/3 {
		t.Errorf("%d of %d writes went wrong, not about half", total, writes)
	}

	p.Inject(Plan{}, 0)
	if err := write(t.Context(), client); err != nil || len(p.Counts()) != 0 {
		t.Errorf("after the end of it: %v, %v", err, p.Counts())
	}
}

// The same seed lets the same requests go wrong.
func TestSeed(t *testing.T) {
	p := New(nil, nil)
	draw := func(seed uint64) string {
		p.Inject(Plan{Writes: .3, Watches: .3}, seed)
		var text strings.Builder
		for i := range 100 {
			method, path := http.MethodPatch, "/api/v1/namespaces"
			if i%3 == 0 {
				method, path = http.MethodGet, "/api/v1/namespaces?watch=true"
			}
			fmt.Fprintf(&text, "%q ", p.draw(httptest.NewRequest(method, path, nil)))
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

func TestReadsAreLeftAlone(t *testing.T) {
	p := New(nil, nil)
	p.Inject(Plan{Writes: 1}, 1)
	for _, path := range []string{"/api/v1/namespaces", "/api/v1/namespaces?watch=true"} {
		if kind := p.draw(httptest.NewRequest(http.MethodGet, path, nil)); kind != "" {
			t.Errorf("GET %s goes wrong: %s", path, kind)
		}
	}
}

func TestWatchesAreCut(t *testing.T) {
	_, p, client := setUp(t)
	watch := func() (events <-chan string, err error) {
		stream, err := client.Get().Namespace("default").Resource("configmaps").Param("watch", "true").Watch(t.Context())
		if err != nil {
			return nil, err
		}
		types := make(chan string, 8)
		go func() {
			defer close(types)
			for event := range stream.ResultChan() {
				types <- string(event.Type)
			}
		}()
		return types, nil
	}
	next := func(events <-chan string) string {
		select {
		case event, open := <-events:
			if !open {
				return "end"
			}
			return event
		case <-time.After(5 * time.Second):
			return "nothing"
		}
	}
	events, err := watch()
	if err != nil {
		t.Fatal(err)
	}
	if got := next(events); got != "ADDED" {
		t.Errorf("an event is passed on as it comes; got %s", got)
	}
	if p.Cut() == 0 {
		t.Error("there was no connection to cut")
	}
	for got := ""; got != "end"; {
		if got = next(events); got == "nothing" {
			t.Fatal("the watch goes on")
		}
	}
	if _, err := watch(); err != nil {
		t.Errorf("after a cut: %v", err)
	}
	p.Inject(Plan{Watches: 1}, 1)
	if _, err := watch(); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from a version that is too old gave %v", err)
	}
}

func pemOf(certificate tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
}
