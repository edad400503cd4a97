package kubelet

import (
	"fmt"
	"path"
	"strings"
)

// Image is what a node runs for a container image.
type Image struct {
	// Programs says what the image's programs are on this host, by their base names: a
	// path and the arguments before the container's own. The one named "" runs where the
	// container names none.
	Programs map[string][]string
	// Env is what its program takes for granted where the container does not set it. Ports
	// in it are written out, so that they can be moved.
	Env map[string]string
	// Ports are those in Env.
	Ports []int
}

// Images are known by repository, without tag and digest.
type Images map[string]Image

// find returns the image of a container, and its program.
func (i Images) find(name, command string) (Image, []string, error) {
	repository, _, _ := strings.Cut(name, "@")
	if slash, colon := strings.LastIndex(repository, "/"), strings.LastIndex(repository, ":"); colon > slash {
		repository = repository[:colon]
	}
	image, known := i[repository]
	if !known {
		return image, nil, fmt.Errorf("no image %s is known on this host", repository)
	}
	program, known := image.Programs[path.Base("/"+command)]
	if command == "" {
		program, known = image.Programs[""]
	}
	if !known {
		return image, nil, fmt.Errorf("image %s has no program %q on this host", repository, command)
	}
	return image, program, nil
}
