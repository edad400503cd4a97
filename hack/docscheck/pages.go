package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// page is a Markdown file.
type page struct {
	path  string // from the root
	lines []string
}

func readPages(root string) ([]page, error) {
	var paths []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "docs/internals/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	var pages []page
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page{rel, strings.Split(string(content), "\n")})
	}
	return pages, nil
}

var (
	// References to things that must exist.
	makeCall   = regexp.MustCompile("(?:`|^\\s*)make ([a-z][a-z0-9-]*)")
	flagSpan   = regexp.MustCompile("`--([a-z][a-z0-9-]*)")
	testName   = regexp.MustCompile(`\b((?:Test|Fuzz|Benchmark)[A-Z]\w*)`)
	metricName = regexp.MustCompile(`\b(muster_[a-z_]+)\b`)

	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`^#+ +(.*?) *$`)
	// The characters that GitHub leaves out of a heading's anchor.
	punctuation = regexp.MustCompile("[^a-z0-9 _-]")
)

// named reports each name in the pattern's first group that pages mention and that is unknown.
func named(pages []page, pattern *regexp.Regexp, known []string, what string) []string {
	exists := map[string]bool{}
	for _, name := range known {
		exists[name] = true
	}
	var problems []string
	for _, page := range pages {
		if page.path == "CHANGELOG.md" {
			continue // The changelog describes the past.
		}
		for number, line := range page.lines {
			for _, match := range pattern.FindAllStringSubmatch(line, -1) {
				if !exists[match[1]] {
					problems = append(problems, fmt.Sprintf("%s:%d: there is no %s %s", page.path, number+1, what, match[1]))
				}
			}
		}
	}
	return problems
}

// missing reports each known name that a page, or all pages of a folder, do not have in code font.
func missing(pages []page, path string, known []string, prefix, what string) []string {
	var text string
	for _, page := range pages {
		if strings.HasPrefix(page.path, path) {
			text += strings.Join(page.lines, "\n")
		}
	}
	var problems []string
	for _, name := range known {
		if !strings.Contains(text, "`"+prefix+name+"`") && !strings.Contains(text, "`"+prefix+name+"{") {
			problems = append(problems, fmt.Sprintf("%s: %s `%s%s` is not documented", path, what, prefix, name))
		}
	}
	return problems
}

// checkLinks reports links within the repository that lead nowhere.
func checkLinks(root string, pages []page) []string {
	anchors := map[string]map[string]bool{}
	for _, page := range pages {
		anchors[page.path] = page.anchors()
	}
	var problems []string
	for _, page := range pages {
		for number, line := range page.lines {
			for _, match := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
					continue
				}
				path, anchor, _ := strings.Cut(match[1], "#")
				target := page.path
				if path != "" {
					target = filepath.Join(filepath.Dir(page.path), path)
				}
				if _, err := os.Stat(filepath.Join(root, target)); err != nil {
					problems = append(problems, fmt.Sprintf("%s:%d: there is no %s", page.path, number+1, target))
				} else if anchor != "" && anchors[target] != nil && !anchors[target][anchor] {
					problems = append(problems, fmt.Sprintf("%s:%d: there is no heading #%s in %s", page.path, number+1, anchor, target))
				}
			}
		}
	}
	return problems
}

var textBlock = regexp.MustCompile("(?ms)^```text\n.*?^```$")

// checkOutputs reports outputs in README.md that the guide does not show. A test compares
// the guide's outputs with what the commands print.
func checkOutputs(pages []page) []string {
	content := map[string]string{}
	for _, page := range pages {
		content[page.path] = strings.Join(page.lines, "\n")
	}
	var problems []string
	for _, block := range textBlock.FindAllString(content["README.md"], -1) {
		if !strings.Contains(content[guide], block) {
			problems = append(problems, fmt.Sprintf("README.md: %s does not have this output:\n%s", guide, block))
		}
	}
	return problems
}

// anchors returns the anchors of the headings, as GitHub forms them.
func (p page) anchors() map[string]bool {
	anchors := map[string]bool{}
	fenced := false
	for _, line := range p.lines {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if match := heading.FindStringSubmatch(line); match != nil && !fenced {
			anchors[strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")] = true
		}
	}
	return anchors
}
