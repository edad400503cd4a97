package assets

import (
	"fmt"
	"regexp"
	"strings"
)

var section = regexp.MustCompile(`^## \[v?([^\]]+)\]`)

// notes returns what the changelog says of a version. The heading is left out: whatever
// shows the notes has a title.
func notes(changelog, version string) (string, error) {
	want := strings.TrimPrefix(version, "v")
	var lines []string
	found := false
	for line := range strings.Lines(changelog) {
		if match := section.FindStringSubmatch(line); match != nil {
			if found {
				break
			}
			found = match[1] == want
		} else if found {
			lines = append(lines, line)
		}
	}
	text := strings.TrimSpace(strings.Join(lines, ""))
	switch {
	case !found:
		return "", fmt.Errorf("CHANGELOG.md has no section of %s: put a heading \"## [%s] - YYYY-MM-DD\" below \"## [Unreleased]\", commit that, and run make release again", version, want)
	case text == "":
		return "", fmt.Errorf("the section [%s] of CHANGELOG.md is empty: say what changes for those who use Muster, commit that, and run make release again", want)
	}
	return text + "\n", nil
}
