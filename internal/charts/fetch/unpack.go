package fetch

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/muster-fleet/muster/internal/charts/plan"
)

// compressedFrom is from which size a file is compressed. Fleet takes both.
const compressedFrom = 1 << 10

const (
	// maxArchive is how large a chart may be that is downloaded, and maxFiles what is in it: much
	// of what a chart has compresses well, and nothing larger fits into a Bundle.
	maxArchive = 8 << 20
	maxFiles   = 8 << 20
)

// measure refuses an archive that becomes too large when it is opened, before anything is
// made of it: many empty files, too, are much.
func measure(archive []byte) error {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return errors.New("the chart is no archive")
	}
	size, err := io.Copy(io.Discard, io.LimitReader(unzipped, maxFiles+1))
	if err != nil {
		return errors.New("the chart is no whole archive")
	}
	if size > maxFiles {
		return fmt.Errorf("the chart is larger than %d MiB when it is opened", maxFiles>>20)
	}
	return nil
}

// unpack reads a chart, as Helm does, and returns it as it lies in a Bundle.
func unpack(archive []byte, name string) (*plan.Chart, error) {
	if err := measure(archive); err != nil {
		return nil, err
	}
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("reading the chart: %w", err)
	}
	if err := loaded.Validate(); err != nil {
		return nil, fmt.Errorf("the chart is not valid: %w", err)
	}
	if loaded.Metadata.Type == "library" {
		return nil, fmt.Errorf("%s is a library chart, which cannot be installed", name)
	}
	chart := &plan.Chart{}
	for _, file := range loaded.Raw {
		resource, err := resourceOf(file.Name, file.Data)
		if err != nil {
			return nil, err
		}
		chart.Resources = append(chart.Resources, resource)
	}
	if len(chart.Resources) == 0 {
		return nil, errors.New("the chart is empty")
	}
	slices.SortFunc(chart.Resources, func(a, b fleetv1.BundleResource) int { return cmp.Compare(a.Name, b.Name) })
	if size := chart.Size(); size > plan.MaxChart {
		return nil, &TooLargeError{Size: size}
	}
	return chart, nil
}

func resourceOf(name string, data []byte) (fleetv1.BundleResource, error) {
	if len(data) < compressedFrom && utf8.Valid(data) {
		return fleetv1.BundleResource{Name: name, Content: string(data)}, nil
	}
	var packed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return fleetv1.BundleResource{}, err
	}
	if _, err := writer.Write(data); err != nil {
		return fleetv1.BundleResource{}, err
	}
	if err := writer.Close(); err != nil {
		return fleetv1.BundleResource{}, err
	}
	return fleetv1.BundleResource{Name: name, Content: base64.StdEncoding.EncodeToString(packed.Bytes()), Encoding: "base64+gz"}, nil
}
