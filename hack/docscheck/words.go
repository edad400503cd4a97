package main

import (
	"fmt"
	"regexp"
	"strings"
)

// limits are the most words of prose that pages may have together.
var limits = []struct {
	pages *regexp.Regexp
	words int
}{
	{regexp.MustCompile(`^(README|docs/(install|quickstart|concepts|operations|runbook|support|rancher|migrate-.*|reference|guides/.*|reference/.*))\.md$`), 30000},
	{regexp.MustCompile(`^docs/(threat-model|permissions)\.md$`), 4500},
	{regexp.MustCompile(`^docs/internals/.*\.md$`), 12546},
}

// noWord is what counts as no word: targets of links, comments, and marks of tables and lists.
var noWord = regexp.MustCompile(`\]\([^)]*\)|<!--.*?-->|\||(^|\s)[^\s\pL\pN]+(\s|$)`)

// tooLong reports pages that together have more words than their limit. Code blocks do not count.
func tooLong(pages []page) (problems []string) {
	for _, limit := range limits {
		words := 0
		for _, page := range pages {
			if limit.pages.MatchString(page.path) {
				all := strings.Join(texts(".md", strings.Join(page.lines, "\n")), "\n")
				words += len(strings.Fields(noWord.ReplaceAllString(noWord.ReplaceAllString(all, " "), " ")))
			}
		}
		if words > limit.words {
			problems = append(problems, fmt.Sprintf("%s: %d words of prose, at most %d", limit.pages, words, limit.words))
		}
	}
	return problems
}
