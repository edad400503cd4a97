package message

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
