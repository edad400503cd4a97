package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/program"
)

// files are the flags -f, -R and --exclude.
type files struct {
	filenames []string
	recursive bool
	exclude   []string
}

// addFilesTo adds the flags to a command. The help starts with the text, which describes the files.
func (f *files) addFilesTo(cmd *cobra.Command, text string) {
	fs := cmd.Flags()
	fs.StringSliceVarP(&f.filenames, "filename", "f", nil, text+" A file, a folder, or - for standard input; may be repeated.")
	fs.BoolVarP(&f.recursive, "recursive", "R", false, "With -f FOLDER: read the folders in it, too, except Helm charts.")
	fs.StringSliceVar(&f.exclude, "exclude", nil, "With -f FOLDER: leave out files and folders of this name, or of this path in it; * stands for any text without a slash. May be repeated.")
	// An error here means that the flag does not exist, which the line above excludes.
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
}

// given reports whether the person named files.
func (f *files) given() bool { return len(f.filenames) > 0 }

// paths returns the files, including those in folders.
func (f *files) paths() ([]string, error) {
	paths, err := manifests.Find(f.filenames, f.recursive, f.exclude)
	if err != nil {
		return nil, program.Exit(2, err)
	}
	return paths, nil
}

// read reads manifests. An error means that the command was used wrongly.
func (f *files) read(stdin io.Reader) ([]manifests.Object, []*manifests.Problem, error) {
	if !f.given() {
		return nil, nil, program.Exit(2, errors.New("name at least one file with -f"))
	}
	paths, err := f.paths()
	if err != nil {
		return nil, nil, err
	}
	objects, problems := manifests.Read(paths, stdin)
	return objects, problems, nil
}

// onlyFiles refuses arguments, and explains how to name files.
func onlyFiles(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("files are named with -f: -f %s", args[0])
	}
	return nil
}
