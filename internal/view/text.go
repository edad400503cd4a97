package view

import "github.com/muster-fleet/muster/internal/message"

// longest is how much of a text from outside a node keeps, in bytes. Fleet puts whole command outputs
// into messages, and a page may have ten thousand of these.
const longest = 2048

// shown returns the part of a text from outside that a node keeps.
func shown(text string) string { return message.Text(message.Short(text, longest)) }
