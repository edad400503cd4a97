// Package message makes texts safe to show, and keeps messages within the limits of the API server.
package message

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// Condition is the maximum length of a condition's message, in bytes. The API server refuses more than
	// 32 KiB, and messages from Fleet, Helm or an admission webhook have no bound.
	Condition = 4 << 10
	// Note is the API server's limit for an event's note, in bytes (validation of events.k8s.io/v1). An event
	// with a longer note is lost.
	Note = 1024
)

// Short cuts a message to at most this many bytes.
func Short(message string, longest int) string {
	const more = "…"
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest-len(more)], "") + more
}

// List joins entries with a separator, and counts those that are more than most.
func List(entries []string, most int, separator string) string {
	if left := len(entries) - most; left > 0 {
		entries = append(slices.Clone(entries[:most]), fmt.Sprintf("and %d more", left))
	}
	return strings.Join(entries, separator)
}

// Names joins the first three names, and counts the others.
func Names(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
