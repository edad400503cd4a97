package page

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/picture"
)

// crowd is a cluster with many Clusters in which nothing happens.
type crowd int

func (c crowd) Snapshot() *picture.Objects {
	objects := picture.NewObjects()
	for i := range int(c) {
		objects.Clusters[types.NamespacedName{Namespace: fmt.Sprintf("team-%d", i%20), Name: fmt.Sprintf("c%05d", i)}] = &picture.CAPICluster{}
	}
	return objects
}

func (crowd) Changed() <-chan struct{}                                   { return nil }
func (crowd) Bundles(context.Context, string, *picture.Objects) error    { return nil }
func (crowd) WatchBundles(ctx context.Context, _ string, changed func()) {}

// pieces keeps what is written apart.
type pieces struct {
	http.ResponseWriter
	lengths []int
	text    strings.Builder
}

func (p *pieces) Write(text []byte) (int, error) {
	p.lengths = append(p.lengths, len(text))
	return p.text.Write(text)
}

// TestPageComesInPieces has the head of the page on its way before the cells are made: a
// browser paints it while ten thousand of them are still to come.
func TestPageComesInPieces(t *testing.T) {
	const many = 10_000
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := New(crowd(many), "many", listener)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+server.Path(), nil)
	written := &pieces{ResponseWriter: httptest.NewRecorder()}
	server.ServeHTTP(written, request)

	text := written.text.String()
	if cells := strings.Count(text, `href="`+server.Path()+"cluster/"); cells != many {
		t.Errorf("there are %d cells for %d Clusters", cells, many)
	}
	longest := 0
	for _, length := range written.lengths {
		longest = max(longest, length)
	}
	if longest > 16<<10 {
		t.Errorf("the longest of %d pieces has %d of %d bytes", len(written.lengths), longest, len(text))
	}
	if first := text[:written.lengths[0]]; !strings.HasPrefix(first, "<!DOCTYPE html>") {
		t.Errorf("the first piece is %.200q", first)
	}
}
