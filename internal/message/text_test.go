package message

import (
	"testing"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                  "plain",
		"Größe → 2 %":            "Größe → 2 %",
		"a\nb\tc\r":              "a b c ",
		"\x1b[2J":                `\x1b[2J`,
		"\x00\x7f":               `\x00\x7f`,
		"\u009b31m":              `\u009b31m`,
		"\u202eexe":              `\u202eexe`,
		"a\u200bb\ufeff":         `a\u200bb\ufeff`,
		"\u2028":                 `\u2028`,
		"\xff\xfe":               `\xff\xfe`,
		"\ufffd is a rune":       "\ufffd is a rune",
		"<b>&amp;</b> ${x}":      "<b>&amp;</b> ${x}",
		"日本語 \U0001F680 e\u0301": "日本語 \U0001F680 e\u0301",
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}
