package page

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/muster-fleet/muster/internal/view"
)

// pieces records the length of each write.
type pieces struct {
	http.ResponseWriter
	lengths []int
	text    strings.Builder
	flushed int
}

// Flush implements http.Flusher.
func (p *pieces) Flush() { p.flushed++ }

func (p *pieces) Write(text []byte) (int, error) {
	p.lengths = append(p.lengths, len(text))
	return p.text.Write(text)
}

// TestPageComesInPieces: the head of the page is sent before the cells are rendered, so that a browser can paint
// it before ten thousand cells have arrived.
func TestPageComesInPieces(t *testing.T) {
	const many = 10_000
	server, request := newCrowd(many, 1).serve(t, "")
	written := &pieces{ResponseWriter: httptest.NewRecorder()}
	server.ServeHTTP(written, request)

	text := written.text.String()
	if cells := strings.Count(text, `href="`+server.Path()+"cluster/"); cells != many {
		t.Errorf("there are %d cells for %d Clusters", cells, many)
	}
	// Ten thousand Clusters take a megabyte or two, in lists of bounded length.
	if limit := many*220 + 20<<10; len(text) > limit {
		t.Errorf("the page has %d bytes, more than %d", len(text), limit)
	}
	for _, list := range strings.Split(text, `<ul class="cells"`)[1:] {
		if cells := strings.Count(list, `href="`+server.Path()+"cluster/"); cells > longest {
			t.Errorf("a list has %d cells", cells)
		}
	}
	most := 0
	for _, length := range written.lengths {
		most = max(most, length)
	}
	if most > 16<<10 {
		t.Errorf("the longest of %d pieces has %d of %d bytes", len(written.lengths), most, len(text))
	}
	if written.flushed != 2 { // The page is flushed after the style, and after the first list.
		t.Errorf("flushed %d times", written.flushed)
	}
	if first := text[:written.lengths[0]]; !strings.HasPrefix(first, "<!DOCTYPE html>") {
		t.Errorf("the first piece is %.200q", first)
	}
}

// asked is a crowd that calls a function before each Snapshot.
type asked struct {
	*crowd
	before func()
}

func (a asked) Snapshot() *view.Objects {
	a.before()
	return a.crowd.Snapshot()
}

// TestStyleComesFirst: the browser gets the style before the graph is built.
func TestStyleComesFirst(t *testing.T) {
	c := newCrowd(1, 1)
	written := &pieces{ResponseWriter: httptest.NewRecorder()}
	times := 0
	server, request := c.serve(t, "")
	server.source = asked{c, func() {
		if times++; times == 1 && (written.flushed == 0 || !strings.Contains(written.text.String(), `page.css"`)) {
			t.Errorf("flushed %d times, sent so far: %s", written.flushed, &written.text)
		}
	}}
	server.ServeHTTP(written, request)
	if times != 1 {
		t.Errorf("asked %d times", times)
	}
}

// TestDownloads: the browser downloads each format instead of showing it.
func TestDownloads(t *testing.T) {
	c := newCrowd(600, 20)
	for name, has := range map[string]string{
		"view.mmd": "flowchart LR", "view.json": `"counts":{"Ready":600}`,
	} {
		server, request := c.serve(t, name)
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, request)
		if recorder.Code != http.StatusOK || !strings.Contains(recorder.Body.String(), has) {
			t.Errorf("%s: %d: %.300s", name, recorder.Code, recorder.Body)
		}
		header := recorder.Header()
		if header.Get("Content-Disposition") != `attachment; filename="`+name+`"` || header.Get("Content-Type") != downloads[name] {
			t.Errorf("%s: %v", name, header)
		}
	}
}
