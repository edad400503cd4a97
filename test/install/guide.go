// Package install installs Muster on an empty API server in every way that the guide
// describes, by the guide's own commands.
package install

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// guidePath is the guide, from here.
const guidePath = "../../docs/install.md"

// guide holds the guide's commands by the way to install and the phase.
type guide map[string]map[string]string

var block = regexp.MustCompile("(?ms)^<!-- run: ([a-z]+) ([a-z]+) -->\n```sh\n(.*?)^```$")

// readGuide reads the blocks that are marked as to be run.
func readGuide(path string) (guide, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	result := guide{}
	for _, match := range block.FindAllStringSubmatch(string(content), -1) {
		way, phase := match[1], match[2]
		if result[way] == nil {
			result[way] = map[string]string{}
		}
		if result[way][phase] != "" {
			return nil, fmt.Errorf("%s: there are two blocks to %s with %s", path, phase, way)
		}
		result[way][phase] = match[3]
	}
	if marks := strings.Count(string(content), "<!-- run:"); marks != len(block.FindAllString(string(content), -1)) {
		return nil, fmt.Errorf("%s: a mark is not followed by a block", path)
	}
	return result, nil
}
