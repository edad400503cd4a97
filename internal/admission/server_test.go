package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// At its end, the server accepts no new connection, and answers the requests that it has: a request that is cut counts as
// refused where a webhook fails closed.
func TestServerFinishesOpenRequests(t *testing.T) {
	content, pair := certificate(t, 1)
	key, err := x509.MarshalECPrivateKey(pair.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	for name, content := range map[string][]byte{"tls.crt": content, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key})} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unused, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	address, port := unused.Addr().String(), unused.Addr().(*net.TCPAddr).Port
	_ = unused.Close()

	server := NewServer(webhook.Options{Port: port, CertDir: directory})
	open, finish := make(chan struct{}), make(chan struct{})
	server.Register("/slow", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(open)
		<-finish
		if err := r.Context().Err(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended, answered := make(chan error, 1), make(chan string, 1)
	go func() { ended <- server.Start(ctx) }()
	isServing := func() bool {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	}
	becomes := func(serving bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); isServing() != serving; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the server does not become serving: %t", serving)
			}
		}
	}
	becomes(true)
	go func() {
		client := http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		response, err := client.Get("https://localhost:" + strconv.Itoa(port) + "/slow")
		if err != nil {
			answered <- err.Error()
			return
		}
		_ = response.Body.Close()
		answered <- response.Proto + " " + response.Status
	}()
	<-open
	stop()
	becomes(false)
	select {
	case err := <-ended:
		t.Fatalf("it ended before the request: %v", err)
	default:
	}
	close(finish)
	if got := <-answered; got != "HTTP/2.0 200 OK" {
		t.Errorf("the answer is %s", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
