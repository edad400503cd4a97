package source

import "testing"

func TestCheckVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"v0.1.0": true, "v10.20.30": true, "v0.2.0-rc.1": true, "v1.0.0-alpha-2.x": true,
		"": false, "0.1.0": false, "v0.1": false, "v0.1.0.0": false, "v01.0.0": false, "v0.1.0-": false, "v0.1.0-rc..1": false, "v0.1.0-01": false,
		"v0.1.0+dirty": false, "v0.1.0 ": false, "latest": false, "v0.1.0\nv0.2.0": false,
	} {
		if err := CheckVersion(version); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}
