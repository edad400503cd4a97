package version

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestFrom(t *testing.T) {
	checkout := func(version, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: []debug.BuildSetting{
			{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: modified},
		}}
	}
	released := Info{Version: "v1.2.3", Revision: "def", Date: "2026-11-22T00:00:00Z"}
	for name, test := range map[string]struct {
		linked Info
		build  *debug.BuildInfo
		want   string
	}{
		"released":              {linked: released, build: &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, want: "v1.2.3 (commit def of 2026-11-22T00:00:00Z, "},
		"released in checkout":  {linked: released, build: checkout("v9.9.9", "true"), want: "v1.2.3 (commit def of 2026-11-22T00:00:00Z, "},
		"from a checkout":       {build: checkout("v0.0.0-20260102030405-abc", "false"), want: "v0.0.0-20260102030405-abc (commit abc of 2026-01-02T03:04:05Z, "},
		"with changes":          {build: checkout("v0.0.0-20260102030405-abc+dirty", "true"), want: "v0.0.0-20260102030405-abc+dirty (commit abc-dirty of 2026-01-02T03:04:05Z, "},
		"without git":           {build: &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, want: "devel (commit unknown of unknown, "},
		"without a build's log": {want: "devel (commit unknown of unknown, "},
	} {
		if got, want := from(test.linked, test.build).String(), test.want+runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH+")"; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
