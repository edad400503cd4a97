package view

import (
	"fmt"
	"unicode/utf8"

	"github.com/muster-fleet/muster/internal/message"
)

// longest is how much of a text from outside a node keeps, in bytes. Fleet puts whole command outputs
// into messages, and a page may have ten thousand of these.
const longest = 2048

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
func shown(text string) string { return message.Text(Cut(text, longest)) }
