// Package defects lists known defects of Fleet by which a user loses something. The installer avoids versions that have
// one, and says so where it installs one nevertheless. kubectl-muster and docs/support.md name the same defects.
package defects

import (
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"
	appsv1 "k8s.io/api/apps/v1"
)

// Defect is a known defect of Fleet.
type Defect struct {
	// Versions is the range of versions that have the defect. In a range, -0 includes pre-releases.
	Versions string
	// NotKnown is the part of Versions of which it is not known whether it has the fix; empty if there is none.
	NotKnown string
	// Text says what goes wrong. It begins in lower case and has no full stop.
	Text string
	// Fixed is the first version with the fix.
	Fixed string
	// Source is the URL of the report, of the fix, or of a release note.
	Source string
}

// Known are all known defects.
var Known = []Defect{
	{
		// Until the fix, the agent takes "not found" from its own cache for a deletion: internal/cmd/agent/controller, read in
		// Fleet 0.12.0, 0.12.19, 0.13.15, 0.14.10, 0.15.0, 0.15.6, 0.16.0 and 0.16.1.
		Versions: "<0.16.2-0",
		NotKnown: "~0.12.20-0 || ~0.13.16-0 || ~0.14.11-0 || ~0.15.7-0",
		Text:     "an agent that has lost its connection can uninstall everything that it manages",
		Fixed:    "0.16.2",
		Source:   "https://github.com/rancher/fleet/issues/5406",
	},
}

// Of returns the defects that a version has, or may have.
func Of(version *semver.Version) (result []Defect) {
	for _, defect := range Known {
		if version != nil && within(defect.Versions, version) {
			result = append(result, defect)
		}
	}
	return result
}

// Message describes the defects of a version of Fleet, in one line; empty if none is known.
func Message(version *semver.Version) string {
	var texts []string
	for _, defect := range Of(version) {
		verb := "has"
		if defect.NotKnown != "" && within(defect.NotKnown, version) {
			verb = "may have"
		}
		texts = append(texts, fmt.Sprintf("Fleet %s %s a known defect: %s; fixed in %s (%s)", version, verb, defect.Text, defect.Fixed, defect.Source))
	}
	return strings.Join(texts, "; ")
}

func within(text string, version *semver.Version) bool {
	constraint, err := semver.NewConstraint(text)
	if err != nil {
		panic(err) // The ranges are constant.
	}
	return constraint.Check(version)
}

// Running returns the version in the tag of the image of Fleet's Deployment, or nil if the tag has none.
func Running(controller *appsv1.Deployment) *semver.Version {
	for _, container := range controller.Spec.Template.Spec.Containers {
		if container.Name != controller.Name {
			continue
		}
		if version := ImageVersion(container.Image); version != nil {
			return version
		}
	}
	return nil
}

// ImageVersion returns the version in the tag of an image, or nil if the tag has none.
func ImageVersion(image string) *semver.Version {
	image, _, _ = strings.Cut(image, "@")
	version, _ := semver.NewVersion(image[strings.LastIndex(image, ":")+1:]) // An error leaves it nil.
	return version
}
