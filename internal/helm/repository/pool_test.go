//go:build !race

// The race detector needs more memory than a child may have.

package repository

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/internal/helm/worker"
	shelf "github.com/muster-fleet/muster/test/helm/repository"
)

func TestMain(m *testing.M) {
	if worker.Main() {
		return
	}
	if text := os.Getenv(asking); text != "" {
		answerTo(text)
		return
	}
	os.Exit(m.Run())
}

// An index or a chart that takes too much ends a child, and the next chart comes.
func TestPool(t *testing.T) {
	its, request := served(t)
	client := New(Options{Interval: time.Minute, Pool: worker.New(1)})
	bad := shelf.New()
	t.Cleanup(bad.Close)
	if err := bad.Publish("web", "1.0.0", nil); err != nil {
		t.Fatal(err)
	}
	bad.Put("index.yaml", []byte("entries: {web: ["+strings.Repeat("{},", 7_900_000/3)+"]}"))
	expensive, err := shelf.Archive("web", "3.0.0", map[string]string{"../values.yaml": "a: [" + strings.Repeat("{},", 5_200_000/3) + "]"})
	if err != nil {
		t.Fatal(err)
	}
	its.PublishArchive("web", "3.0.0", expensive)
	elsewhere := request
	elsewhere.RepoURL, elsewhere.Access.Authorities, elsewhere.Version = bad.URL, bad.CA, "1.x"
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, ofIndex := client.Version(t.Context(), elsewhere)
	_, ofChart := client.Chart(t.Context(), request, "3.0.0")
	runtime.ReadMemStats(&after)
	for want, err := range map[string]error{bad.URL + "/index.yaml: reading the index took ": ofIndex, "unpacking the chart took ": ofChart} {
		// More than 96 MiB, or too long on a busy machine.
		if !strings.HasPrefix(fmt.Sprint(err), want) || !errors.As(err, new(worker.LimitError)) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if more := int64(after.Sys-before.Sys) >> 20; more > 64 || len(expensive) > 16<<10 {
		t.Errorf("an archive of %d bytes took %d MiB here", len(expensive), more)
	}
	request.Version = "~1.2"
	version, err := client.Version(t.Context(), request)
	if err != nil || version != "1.2.0" {
		t.Errorf("%q, %v", version, err)
	}
	if chart, err := client.Chart(t.Context(), request, version); err != nil || len(chart.Resources) != 2 {
		t.Errorf("%v, %v", chart, err)
	}
}
