package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const mainModule = "github.com/muster-fleet/muster"

// RepoRoot returns the root of the work tree that the working directory is in.
func RepoRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		switch {
		case err == nil && strings.HasPrefix(string(content), "module "+mainModule+"\n"):
			return dir, nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return "", err
		case dir == filepath.Dir(dir):
			return "", fmt.Errorf("%s is not inside a work tree of %s", start, mainModule)
		}
	}
}
