// Package version says which build a program is. It knows nothing else of ours.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// What a release's build sets, with -ldflags=-X. hack/release names
// these variables.
var version, revision, date string

// Info specifies which build a program is.
type Info struct {
	// Version is that of the release, or Go's own name for a build between releases.
	Version string
	// Revision is the commit, with "-dirty" if the work tree was modified.
	Revision string
	// Date is that of the commit, not of the build: the same sources give the same bytes.
	Date string
	// GoVersion and Platform are the Go that built it and the platform it is for.
	GoVersion, Platform string
}

// Get returns which build this program is.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return from(Info{Version: version, Revision: revision, Date: date}, build)
}

// from completes what was linked in with what Go records in every binary; it records the
// commit only when it builds from a git checkout.
func from(linked Info, build *debug.BuildInfo) Info {
	recorded, modified := Info{}, false
	if build != nil {
		recorded.Version = strings.Trim(build.Main.Version, "()")
		for _, setting := range build.Settings {
			switch setting.Key {
			case "vcs.revision":
				recorded.Revision = setting.Value
			case "vcs.time":
				recorded.Date = setting.Value
			case "vcs.modified":
				modified = setting.Value == "true"
			}
		}
	}
	if modified {
		recorded.Revision += "-dirty"
	}
	return Info{
		Version:   cmp.Or(linked.Version, recorded.Version, "devel"),
		Revision:  cmp.Or(linked.Revision, recorded.Revision, "unknown"),
		Date:      cmp.Or(linked.Date, recorded.Date, "unknown"),
		GoVersion: runtime.Version(),
		Platform:  runtime.GOOS + "/" + runtime.GOARCH,
	}
}

func (i Info) String() string {
	return fmt.Sprintf("%s (commit %s of %s, %s %s)", i.Version, i.Revision, i.Date, i.GoVersion, i.Platform)
}
