package stack

import (
	"fmt"
	"os"
	"path/filepath"
)

// programsVariable names a folder with Muster's programs, to be run instead of those that
// are built from cmd/: what was taken out of its images, say.
const programsVariable = "MUSTER_PROGRAMS"

// programsIn returns the programs of a folder by the names of their commands.
func programsIn(folder string) (map[string]string, error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", programsVariable, err)
	}
	programs := map[string]string{}
	for _, file := range files {
		if info, err := file.Info(); err != nil {
			return nil, err
		} else if info.Mode().IsRegular() && info.Mode()&0o100 != 0 {
			if programs[file.Name()], err = filepath.Abs(filepath.Join(folder, file.Name())); err != nil {
				return nil, err
			}
		}
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("%s: %s holds no program", programsVariable, folder)
	}
	return programs, nil
}
