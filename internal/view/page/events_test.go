package page

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/internal/view"
)

// served is a running page, as a reader sees it.
type served struct {
	testing.TB
	*crowd
	*Server
	url string
}

func serveCrowd(t *testing.T, many int) *served {
	t.Helper()
	listener := listen(t)
	c := newCrowd(many, 1)
	server := New(c, "many", listener)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &served{t, c, server, "http://" + listener.Addr().String() + server.Path()}
}

func (s *served) get(path, lastEvent string) *http.Response {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	s.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	if lastEvent != "" {
		request.Header.Set("Last-Event-ID", lastEvent)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = response.Body.Close() })
	return response
}

var pageNumber = regexp.MustCompile(`data-number="(\d+)"`)

// load loads the page and returns the number of its last update.
func (s *served) load() int {
	s.Helper()
	text, err := io.ReadAll(s.get("", "").Body)
	if err != nil {
		s.Fatal(err)
	}
	found := pageNumber.FindSubmatch(text)
	if found == nil {
		s.Fatalf("no number in %s", text)
	}
	number, err := strconv.Atoi(string(found[1]))
	if err != nil {
		s.Fatal(err)
	}
	return number
}

// change changes a Cluster, and returns once that was sent.
func (s *served) change(state string) {
	s.Helper()
	before := s.feed.now()
	s.become(crowdKey(0, 1), state)
	s.changed <- struct{}{}
	for begin := time.Now(); s.feed.now() == before; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			s.Fatalf("%s was not sent", state)
		}
	}
}

// next returns the next nonempty message, and its number.
func next(lines *bufio.Scanner) (id, data string) {
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name == "id":
			id = value
		case name == "data" && value != "[]":
			return id, value
		}
	}
	return id, ""
}

// TestMissedOnTheWay: a reader gets the changes between the rendering of its page and its connection, and gets
// none twice when it reconnects.
func TestMissedOnTheWay(t *testing.T) {
	s := serveCrowd(t, 3)
	number := s.load()
	s.change("ErrApplied")
	s.change("NotReady")
	lines := bufio.NewScanner(s.get(fmt.Sprintf("events?after=%d", number), "").Body)
	last := ""
	for i, state := range []string{"ErrApplied", "NotReady"} {
		id, data := next(lines)
		if want := strconv.Itoa(number + i + 1); id != want || !strings.Contains(data, view.ClusterID(crowdKey(0, 1))) || !strings.Contains(data, state) {
			t.Errorf("got %s: %s, want %s about %s", id, data, want, state)
		}
		last = id
	}
	s.change("Modified")
	lines = bufio.NewScanner(s.get(fmt.Sprintf("events?after=%d", number), last).Body)
	if id, data := next(lines); id != strconv.Itoa(number+3) || !strings.Contains(data, "Modified") {
		t.Errorf("a reader that reconnected was sent %s: %s", id, data)
	}
}

// TestEventsWithoutANumber: the server refuses a reader without a number.
func TestEventsWithoutANumber(t *testing.T) {
	if response := serveCrowd(t, 1).get("events", ""); response.StatusCode != http.StatusBadRequest {
		t.Errorf("it was answered %s", response.Status)
	}
}

// TestBackAndForth: a reader's page shows a state that no comparison has seen; the reader is sent the change back.
func TestBackAndForth(t *testing.T) {
	s := serveCrowd(t, 3)
	s.load()
	s.become(crowdKey(0, 1), "ErrApplied")
	number := s.load()
	s.become(crowdKey(0, 1), "")
	s.changed <- struct{}{}
	_, data := next(bufio.NewScanner(s.get(fmt.Sprintf("events?after=%d", number), "").Body))
	if !strings.Contains(data, view.ClusterID(crowdKey(0, 1))) || strings.Contains(data, "ErrApplied") {
		t.Errorf("a reader that saw ErrApplied was sent %q", data)
	}
}

// TestImportedWhileWatched: a Cluster is imported while a reader watches it; the reader gets its Bundles.
func TestImportedWhileWatched(t *testing.T) {
	s := serveCrowd(t, 3)
	key := crowdKey(0, 1)
	imported := s.objects.FleetClusters[key]
	delete(s.objects.FleetClusters, key)
	number := s.load()
	lines := bufio.NewScanner(s.get(fmt.Sprintf("events?after=%d&cluster=%s", number, url.QueryEscape(view.ClusterID(key))), "").Body)
	select {
	case namespace := <-s.watched:
		t.Fatalf("%s is watched, but does not exist", namespace)
	case <-time.After(time.Second):
	}
	s.mu.Lock()
	s.objects.FleetClusters[key] = imported
	s.mu.Unlock()
	s.changed <- struct{}{}
	if _, data := next(lines); !strings.Contains(data, view.ClusterID(key)) {
		t.Errorf("told: %s", data)
	}
	select {
	case namespace := <-s.watched:
		if namespace != imported.Namespace {
			t.Errorf("%s is watched, not %s", namespace, imported.Namespace)
		}
	case <-time.After(10 * time.Second):
		t.Error("its Bundles are not watched")
	}
}
