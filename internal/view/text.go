package view

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// longest is how much of a text from outside a node keeps, in bytes. Fleet puts whole command outputs
// into messages, and a page may have ten thousand of these.
const longest = 2048

// Text makes a text from outside safe to show anywhere: it escapes characters that would move a cursor,
// reverse the writing direction or hide something.
func Text(text string) string {
	if isPlain(text) {
		return text
	}
	var out strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			fmt.Fprintf(&out, `\x%02x`, text[i])
		case r == '\n' || r == '\t' || r == '\r':
			out.WriteByte(' ')
		case r < 0x80 && unicode.IsControl(r):
			fmt.Fprintf(&out, `\x%02x`, r)
		case !isShowable(r):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// isShowable accepts letters, marks, digits, signs and spaces; it rejects controls, formats such as
// U+202E, and unassigned code points.
func isShowable(r rune) bool {
	return r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Zl, r) && !unicode.Is(unicode.Zp, r)
}

// Cut shortens a text to at most limit bytes, and appends how many it left out.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := limit
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d more bytes)", text[:end], len(text)-end)
}

// shown returns the part of a text from outside that a node keeps.
func shown(text string) string { return Text(Cut(text, longest)) }
