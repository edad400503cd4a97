package pod

import (
	"regexp"
	"strconv"
	"strings"
)

// rewriter translates what a container's own mount and network namespaces would
// have kept apart: paths under mounts, and ports that are taken on this host.
type rewriter struct {
	mounts map[string]string
	ports  map[int]int
}

// arg rewrites `--flag=value`, or an argument that is a value itself.
func (r rewriter) arg(arg string) string {
	if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "-") {
		return flag + "=" + r.value(value)
	}
	return r.value(arg)
}

var address = regexp.MustCompile(`^((?:[A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):)?(\d+)$`)

func (r rewriter) value(value string) string {
	longest := ""
	for mount := range r.mounts {
		under := value == mount || strings.HasPrefix(value, strings.TrimSuffix(mount, "/")+"/")
		if under && len(mount) > len(longest) {
			longest = mount
		}
	}
	if longest != "" {
		return r.mounts[longest] + strings.TrimPrefix(value, longest)
	}
	if match := address.FindStringSubmatch(value); match != nil {
		port, err := strconv.Atoi(match[2])
		if moved, ok := r.ports[port]; err == nil && ok {
			return match[1] + strconv.Itoa(moved)
		}
	}
	return value
}

var reference = regexp.MustCompile(`\$\$|\$\([A-Za-z_][A-Za-z0-9_.-]*\)`)

// expand resolves $(NAME) as the kubelet does: unknown names stay as written, and
// $$ is a dollar.
func expand(text string, values map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := values[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}
