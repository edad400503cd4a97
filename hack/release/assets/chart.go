package assets

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/muster-fleet/muster/hack/release/source"
)

const chartFolder = "charts/muster"

// chartVersion finds the two fields of Chart.yaml with a version.
var chartVersion = regexp.MustCompile(`(?m)^(version|appVersion):.*$`)

// chart packs the chart like `helm package`, but with the commit's time for all files, where helm uses the
// files' own. It returns nothing if there is no chart.
func chart(ctx context.Context, src *source.Source) (name string, packed []byte, err error) {
	tracked, err := src.Tracked(ctx, chartFolder)
	if err != nil || len(tracked) == 0 {
		return "", nil, err
	}
	ignored, err := ignored(filepath.Join(src.Root, chartFolder, ".helmignore"))
	if err != nil {
		return "", nil, err
	}
	version := strings.TrimPrefix(src.Version, "v")
	var entries []entry
	for _, file := range tracked {
		relative := strings.TrimPrefix(file, chartFolder+"/")
		if ignored(relative) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(src.Root, file))
		if err != nil {
			return "", nil, err
		}
		if relative == "Chart.yaml" {
			content = chartVersion.ReplaceAllFunc(content, func(line []byte) []byte {
				if strings.HasPrefix(string(line), "appVersion") {
					return []byte("appVersion: " + src.Version)
				}
				return []byte("version: " + version)
			})
		}
		entries = append(entries, entry{name: "muster/" + relative, content: content})
	}
	packed, err = tarball(entries, src.Date, true)
	return "muster-" + version + ".tgz", packed, err
}

// ignored reads a .helmignore of names, folders, and patterns that path.Match understands.
func ignored(file string) (func(relative string) bool, error) {
	content, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	patterns := []string{".helmignore"}
	for line := range strings.Lines(string(content)) {
		pattern := strings.TrimSpace(line)
		if pattern == "" || strings.HasPrefix(pattern, "#") {
			continue
		}
		if _, err := path.Match(pattern, ""); err != nil || strings.HasPrefix(pattern, "!") || strings.Contains(pattern, "**") {
			return nil, fmt.Errorf("%s: %q is a pattern that is not understood here", file, pattern)
		}
		patterns = append(patterns, strings.Trim(pattern, "/"))
	}
	return func(relative string) bool {
		for part := relative; part != "."; part = path.Dir(part) {
			for _, pattern := range patterns {
				whole, _ := path.Match(pattern, part)
				base, _ := path.Match(pattern, path.Base(part))
				if whole || base {
					return true
				}
			}
		}
		return false
	}, nil
}
