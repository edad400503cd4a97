package page

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/muster-fleet/muster/internal/view"
)

// nowhere counts and drops everything written.
type nowhere struct {
	header http.Header
	length int
}

func (n *nowhere) Header() http.Header { return n.header }
func (n *nowhere) WriteHeader(int)     {}

func (n *nowhere) Write(text []byte) (int, error) {
	n.length += len(text)
	return len(text), nil
}

// BenchmarkServe serves a page of ten thousand Clusters.
func BenchmarkServe(b *testing.B) {
	for _, many := range []int{1, 10_000} {
		c := newCrowd(many, 20)
		for name, path := range map[string]string{"overview": "", "detail": "part/" + view.ClusterID(crowdKey(0, 20))} {
			b.Run(fmt.Sprintf("%s/%d", name, many), func(b *testing.B) {
				server, request := c.serve(b, path)
				b.ReportAllocs()
				for b.Loop() {
					written := &nowhere{header: http.Header{}}
					server.ServeHTTP(written, request)
					b.ReportMetric(float64(written.length), "bytes")
				}
			})
		}
	}
}

// BenchmarkChange handles a change of one of ten thousand Clusters.
func BenchmarkChange(b *testing.B) {
	c := newCrowd(10_000, 20)
	server, _ := c.serve(b, "")
	last, err := shownOf(server.overviewOf(view.Build(c.Snapshot())))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.become(crowdKey(17, 20), []string{"ErrApplied", ""}[i%2])
		before := server.feed.now()
		last = server.compare(last)
		if updates := server.feed.recent[len(server.feed.recent)-1]; updates.number != before+1 || len(updates.changes) != 3 {
			b.Fatalf("told: %v", updates)
		}
	}
}
