// Package source identifies the source of a build: the commit, its time, and the version. All released bytes
// depend on these alone, so that everyone who builds the same commit with the same Go gets the same
// bytes.
package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Module is the path of Muster's own module.
const Module = "github.com/muster-fleet/muster"

// Source is a checkout of a commit.
type Source struct {
	// Root is the work tree.
	Root string
	// Version is a release's version, or a pseudo-version of the commit.
	Version string
	// Revision is the commit, with "-dirty" if the work tree differs from it.
	Revision string
	// Changes are the paths that differ.
	Changes []string
	// Date is the time of the commit, or SOURCE_DATE_EPOCH.
	Date time.Time
}

// Build metadata ("+…") is not allowed, because an image tag cannot have a plus sign.
var released = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?$`)

// CheckVersion refuses any text that is not a release's version.
func CheckVersion(version string) error {
	switch {
	case version == "":
		return errors.New("no version is given: say which, for example VERSION=v0.1.0")
	case !released.MatchString(version):
		return fmt.Errorf("%q is not a version: give one as in semantic versioning, with a leading v and without build metadata, for example VERSION=v0.1.0 or VERSION=v0.2.0-rc.1", version)
	}
	return nil
}

// Read reads the work tree at root. Without a version it derives one from the commit.
func Read(ctx context.Context, root, version string) (*Source, error) {
	s := &Source{Root: root, Version: version}
	commit, err := s.git(ctx, "log", "-1", "--no-show-signature", "--format=%H %ct")
	if err != nil {
		return nil, err
	}
	hash, seconds, _ := strings.Cut(strings.TrimSpace(commit), " ")
	s.Revision = hash
	if s.Date, err = date(seconds); err != nil {
		return nil, err
	}
	if s.Changes, err = s.changes(ctx); err != nil {
		return nil, err
	}
	suffix := ""
	if len(s.Changes) > 0 {
		suffix = "-dirty"
		s.Revision += suffix
	}
	if version == "" {
		// Go names a commit before the first tag like this.
		s.Version = "v0.0.0-" + s.Date.Format("20060102150405") + "-" + hash[:12] + suffix
		return s, nil
	}
	return s, CheckVersion(version)
}

// changes returns the paths in which the work tree differs from the commit: files whose bytes differ, missing
// files, and new ones, unless a tracked .gitignore names them. Git's own answer would depend on the
// configuration of the person and of the clone.
func (s *Source) changes(ctx context.Context) ([]string, error) {
	tree, err := s.list(ctx, "ls-tree", "-r", "-z", "HEAD")
	if err != nil {
		return nil, err
	}
	committed := map[string]string{}
	var changed, there []string
	for _, entry := range tree {
		about, path, _ := strings.Cut(entry, "\t")
		committed[path] = about[strings.LastIndex(about, " ")+1:]
		if info, err := os.Lstat(filepath.Join(s.Root, path)); err == nil && info.Mode().IsRegular() {
			there = append(there, path)
		} else {
			changed = append(changed, path)
		}
	}
	hashes, err := s.gitInput(ctx, strings.Join(there, "\n"), "hash-object", "--no-filters", "--stdin-paths")
	if err != nil {
		return nil, err
	}
	for i, hash := range strings.Fields(hashes) {
		if hash != committed[there[i]] {
			changed = append(changed, there[i])
		}
	}
	for _, args := range [][]string{{"ls-files", "-z"}, {"ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"}} {
		files, err := s.list(ctx, args...)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if committed[file] == "" {
				changed = append(changed, file)
			}
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed), nil
}

// date returns the time of the commit, unless the environment overrides it, see
// https://reproducible-builds.org/specs/source-date-epoch/.
func date(committed string) (time.Time, error) {
	seconds, what := os.Getenv("SOURCE_DATE_EPOCH"), "SOURCE_DATE_EPOCH"
	if seconds == "" {
		seconds, what = committed, "the commit's date"
	}
	parsed, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %q is not a number of seconds", what, seconds)
	}
	return time.Unix(parsed, 0).UTC(), nil
}

// TagIsElsewhere returns the commit of the version's tag, if that is another one.
func (s *Source) TagIsElsewhere(ctx context.Context) (string, error) {
	tags, err := s.git(ctx, "for-each-ref", "--format=%(objectname) %(*objectname)", "refs/tags/"+s.Version)
	if err != nil {
		return "", err
	}
	// An annotated tag is its own object; the commit comes second.
	if fields := strings.Fields(tags); len(fields) > 0 && fields[len(fields)-1] != strings.TrimSuffix(s.Revision, "-dirty") {
		return fields[len(fields)-1], nil
	}
	return "", nil
}

// Tracked returns the files that git tracks under a folder, from the root.
func (s *Source) Tracked(ctx context.Context, folder string) ([]string, error) {
	return s.list(ctx, "ls-files", "-z", "--", folder)
}

// list splits the output of git -z.
func (s *Source) list(ctx context.Context, args ...string) ([]string, error) {
	text, err := s.git(ctx, args...)
	return strings.FieldsFunc(text, func(r rune) bool { return r == 0 }), err
}

func (s *Source) git(ctx context.Context, args ...string) (string, error) {
	return s.gitInput(ctx, "", args...)
}

func (s *Source) gitInput(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stdin = s.Root, strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
