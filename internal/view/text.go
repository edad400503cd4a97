package view

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// longest is how much of a text of others a node keeps, in bytes. Fleet puts whole command
// outputs into messages, and ten thousand of these are on one page.
const longest = 2048

// Text returns a text that others wrote so that it can be shown anywhere: what would move a
// cursor, turn the direction of writing or hide something is spelled out.
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

// isShowable: letters, marks, digits, signs and spaces are; controls, formats such as
// U+202E, and what has no meaning are not.
func isShowable(r rune) bool {
	return r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Zl, r) && !unicode.Is(unicode.Zp, r)
}

// Cut shortens a text to at most limit bytes, and says how much is left out.
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

// shown is what a node keeps of a text that others wrote.
func shown(text string) string { return Text(Cut(text, longest)) }
