package page

import (
	"html/template"
	"net/url"
	"strings"

	"github.com/muster-fleet/muster/internal/picture"
)

// cell is a Cluster in the overview.
type cell struct {
	ID, Base, Name, Namespace string
	Sign                      string
	State                     picture.State
	Reason                    string
	// First is the one that the tab key leads to.
	First bool
	// Dense leaves no room for the name, which is said only.
	Dense bool
}

// HTML writes a cell. Of all that is on the page only cells are not written by a template:
// for ten thousand of them that takes most of the time until the page is there.
func (c cell) HTML() template.HTML {
	text := func(text string) string { return template.HTMLEscapeString(text) }
	id, name, reason := text(c.ID), text(c.Name), text(c.Reason)
	address := text((&url.URL{Path: c.Base + c.ID}).EscapedPath())
	tab := "-1"
	if c.First {
		tab = "0"
	}
	var out strings.Builder
	out.Grow(512)
	for _, part := range []string{
		`<li id="`, id, `"><a class="cell `, text(string(c.State)), `" href="`, address, `" tabindex="`, tab,
		`" title="`, text(c.Namespace), `/`, name, `: `, reason,
	} {
		out.WriteString(part)
	}
	inside := []string{`"><span class="sign" aria-hidden="true">`, c.Sign, `</span><span class="name">`, name, `</span><span class="state">`, reason, `</span></a></li>`}
	if c.Dense {
		inside = []string{`" aria-label="`, name, ` `, reason, `">`, c.Sign, `</a></li>`}
	}
	for _, part := range inside {
		out.WriteString(part)
	}
	return template.HTML(out.String()) //nolint:gosec // All that others wrote is escaped above.
}
