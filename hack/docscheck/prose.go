package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// stumbles are patterns of sentences that read as if translated, with the points that each costs. A pattern is a hint, not
// a verdict, so a folder may have mostPoints.
var stumbles = []struct {
	pattern *regexp.Regexp
	points  int
	advice  string
}{
	{regexp.MustCompile(`(?i)\b(some|any|every|no)body\b`), 2, "name the actor"},
	{regexp.MustCompile(`(?i)\bwhoever\b`), 1, "name the actor"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were) to (be|have|get|keep|make|do|go|stay|show|say|know)\b`), 2, "must, should or will"},
	{regexp.MustCompile(`(?i)\b(it|that|this|what|which|all) (is|are|was) (said|told|waited|asked|looked|tried|taken|noted|known|meant|wanted)\b`), 2, "name the actor"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were) (looked|waited|asked|seen) (at|for|to|after)\b`), 2, "name the actor"},
	{regexp.MustCompile(`(^|[.:;] )Of (what|which|whom|a|the|those|these|two|several|many)\b`), 2, "begin with the subject"},
	{regexp.MustCompile(`(?i)\b(of|for|with|by|from|in|to|at) (what|whom)\b`), 1, "name the thing"},
	{regexp.MustCompile(`(?i)\b(that of|those of|those that|that which)\b`), 1, "name the thing"},
	{regexp.MustCompile(`(?i)\bwhat (is|was|are|were|it|they|we|he) `), 1, "name the thing"},
	{regexp.MustCompile(`(?i)\b(for want of|all the same|after all|none but|not any more|fares?|thereof|therein|whereby)\b`), 1, "use a current word"},
	{regexp.MustCompile(`(?i), (is|are) (it|there|that)\b`), 2, "put the subject before the verb"},
}

// mostPoints is how many points a folder may have for each 1000 words.
const mostPoints = 3

var (
	directive = regexp.MustCompile(`^//(go:|nolint| ?\+)`)
	sentences = regexp.MustCompile("[.!?]\\s+[A-Z`\\[]")
)

// prose returns a problem for each folder whose comments or pages read as if translated, with its worst sentences.
func prose(root string, folders ...string) ([]string, error) {
	var problems []string
	for _, folder := range folders {
		words, points, found := 0, 0, []string{}
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.Contains(path, "/testdata/") || strings.Contains(path, "zz_generated") {
				return err
			}
			content, err := os.ReadFile(path)
			for _, text := range texts(filepath.Ext(path), string(content)) {
				words += len(strings.Fields(text))
				for _, sentence := range split(text) {
					its, advice := judge(sentence)
					if points += its; its > 0 {
						found = append(found, fmt.Sprintf("%d %s: %s (%s)", its, path, sentence, advice))
					}
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if 1000*points > mostPoints*words {
			slices.Sort(found)
			slices.Reverse(found)
			problems = append(problems, fmt.Sprintf("%s: %.1f points in 1000 words for sentences that are hard to read, at most %d; the worst:\n  %s",
				folder, 1000*float64(points)/float64(words), mostPoints, strings.Join(found[:min(10, len(found))], "\n  ")))
		}
	}
	return problems, nil
}

// judge returns the points of a sentence, and what to do about the first pattern.
func judge(sentence string) (points int, advice string) {
	for _, its := range stumbles {
		if its.pattern.MatchString(sentence) {
			if points += its.points; advice == "" {
				advice = its.advice
			}
		}
	}
	return points, advice
}

// texts returns the comments of a Go file, or the paragraphs of a page outside code blocks.
func texts(extension, content string) []string {
	var all, block []string
	isCode := false
	end := func() {
		if len(block) > 0 {
			all, block = append(all, strings.Join(block, " ")), nil
		}
	}
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		switch {
		case extension == ".go" && strings.HasPrefix(line, "//") && !directive.MatchString(line):
			block = append(block, strings.TrimSpace(line[2:]))
		case extension == ".md" && strings.HasPrefix(line, "```"):
			isCode = !isCode
		case extension == ".md" && !isCode && line != "":
			all = append(all, line)
		default:
			end()
		}
	}
	end()
	return all
}

func split(text string) []string {
	var result []string
	for {
		at := sentences.FindStringIndex(text)
		if at == nil {
			return append(result, text)
		}
		result, text = append(result, text[:at[0]+1]), text[at[1]-1:]
	}
}
