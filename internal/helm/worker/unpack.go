package worker

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

const (
	// maxChart limits the bytes of a chart in a Bundle: etcd accepts objects of up to 1.5 MiB, and targets need room
	// as well.
	maxChart = 900 << 10
	// compressedFrom is the size from which on files are compressed. Fleet accepts both.
	compressedFrom = 1 << 10
)

// Chart is a chart as a Fleet Bundle carries it. Callers share it, and must not change it.
type Chart struct {
	// Version is exact.
	Version string
	// Resources are the files, sorted by name.
	Resources []fleetv1.BundleResource
	// HasHooks reports whether a template is a hook that runs at an install or an upgrade, and HasDeleteHooks
	// whether one runs at an uninstall.
	HasHooks, HasDeleteHooks bool
}

// Size returns the number of bytes that the chart adds to a Bundle.
func (c *Chart) Size() int {
	size := len(`{"content":"","name":""},`) * len(c.Resources) // Empty files take room, too.
	for _, resource := range c.Resources {
		size += len(resource.Name) + len(resource.Content) + len(resource.Encoding)
	}
	return size
}

// TooLargeError says that a chart does not fit into a Bundle.
type TooLargeError struct{ Size int }

// Error returns the message.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the chart takes %d KiB in a Bundle, which can hold %d", e.Size>>10, maxChart>>10)
}

// unpacked reads an archive as Helm does.
func unpacked(archive io.Reader) (*Chart, error) {
	loaded, err := loader.LoadArchive(archive)
	switch {
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("the chart is not an archive")
	case err != nil:
		return nil, fmt.Errorf("reading the chart: %w", err)
	case loaded.Metadata.Type == "library":
		return nil, fmt.Errorf("%s is a library chart, which cannot be installed", loaded.Name())
	}
	made := &Chart{}
	for _, file := range loaded.Raw {
		resource, err := resourceOf(file.Name, file.Data)
		if err != nil {
			return nil, err
		}
		made.Resources = append(made.Resources, resource)
	}
	slices.SortFunc(made.Resources, func(a, b fleetv1.BundleResource) int { return cmp.Compare(a.Name, b.Name) })
	if size := made.Size(); size > maxChart {
		return nil, &TooLargeError{Size: size}
	}
	findHooks(loaded, made)
	return made, nil
}

func resourceOf(name string, data []byte) (fleetv1.BundleResource, error) {
	if len(data) < compressedFrom && utf8.Valid(data) {
		return fleetv1.BundleResource{Name: name, Content: string(data)}, nil
	}
	var packed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		_, err = writer.Write(data)
	}
	if err == nil {
		err = writer.Close()
	}
	return fleetv1.BundleResource{Name: name, Content: base64.StdEncoding.EncodeToString(packed.Bytes()), Encoding: "base64+gz"}, err
}

var (
	hook   = regexp.MustCompile(`helm\.sh/hook["']?[ \t]*:(.*)`)
	noWait = regexp.MustCompile(`^[ "']*((test(-success|-failure)?|(pre|post)-(delete|rollback))[ ,]*)+["'\s]*$`)
)

// findHooks notes the hooks in the templates of a chart and its subcharts, enabled or not.
func findHooks(at *chartv2.Chart, found *Chart) {
	for _, file := range at.Templates {
		for _, match := range hook.FindAllSubmatch(file.Data, -1) {
			found.HasHooks = found.HasHooks || !noWait.Match(match[1])
			found.HasDeleteHooks = found.HasDeleteHooks || strings.Contains(string(match[1]), "-delete")
		}
	}
	for _, dependency := range at.Dependencies() {
		findHooks(dependency, found)
	}
}
