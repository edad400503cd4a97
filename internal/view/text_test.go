package view

import (
	"strings"
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
	long := strings.Repeat("é", 40_000)
	got := shown(long)
	if len(got) > longest+40 || !strings.HasSuffix(got, "more bytes)") {
		t.Errorf("%[2]d of %[1]d bytes are kept, with the end %[3]q", len(long), len(got), got[len(got)-20:])
	}
}
