// Package version identifies the build of a program. It imports no other package of Muster.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// A release's build sets these with -ldflags=-X; hack/release has their names.
var version, revision, date string

// Info identifies the build of a program.
type Info struct {
	// Version is the release's version, or Go's own pseudo-version for a build between releases.
	Version string
	// Revision is the commit, with "-dirty" if the work tree was modified.
	Revision string
	// Date is when the commit was made, not the build: the same sources must give the same bytes.
	Date string
	// GoVersion is the Go version that built the program, and Platform the platform for which it was built.
	GoVersion, Platform string
}

// Get returns the build of this program.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return from(Info{Version: version, Revision: revision, Date: date}, build)
}

// from adds the data that Go records in every binary to the linked-in values. Go records the commit only
// if it builds from a git checkout.
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
