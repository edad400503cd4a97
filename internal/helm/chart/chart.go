// Package chart defines a Helm chart in the form that a Fleet Bundle carries. It does not link Helm's library,
// because the webhook and kubectl muster use it, too.
package chart

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
)

// MaxSize limits the bytes of a chart in a Bundle: etcd accepts objects of up to 1.5 MiB, and targets need room
// as well.
const MaxSize = 900 << 10

// Chart is a chart as a Fleet Bundle carries it.
type Chart struct {
	// Version is exact.
	Version string
	// Resources are the files, sorted by name.
	Resources []fleetv1.BundleResource
	// Digest is a digest of Resources: 32 hexadecimal characters.
	Digest string
	// HasHooks reports whether a template is a hook that runs at an install or an upgrade, and HasDeleteHooks
	// whether one runs at an uninstall.
	HasHooks, HasDeleteHooks bool
}

// Size returns the number of bytes that the chart adds to a Bundle.
func (c *Chart) Size() int {
	size := 0
	for _, resource := range c.Resources {
		size += len(resource.Name) + len(resource.Content) + len(resource.Encoding)
	}
	return size
}

// DigestOf returns the digest of files.
func DigestOf(resources []fleetv1.BundleResource) string {
	sum := sha256.New()
	for _, its := range resources {
		fmt.Fprintf(sum, "%d %d %d %s%s%s", len(its.Name), len(its.Content), len(its.Encoding), its.Name, its.Content, its.Encoding)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}

// TooLargeError says that a chart does not fit into a Bundle.
type TooLargeError struct{ Size int }

// Error returns the message.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the chart takes %d KiB in a Bundle, which can hold %d", e.Size>>10, MaxSize>>10)
}
