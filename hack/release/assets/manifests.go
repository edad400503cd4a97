package assets

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/hack/release/programs"
)

// manifests are the files of dist/ that a release has. The others are not released.
var manifests = []string{
	"install.yaml",
	"monitoring.yaml",
	"registrar.yaml",
	"installer.yaml",
	"helm.yaml",
	"helmreadsecrets.yaml",
	"classlabels.yaml",
	"mappingauthors.yaml",
	"addon-components.yaml",
	clusterctlMetadata,
	capiOperator,
}

// capiOperator holds the components for the Cluster API Operator, and the AddonProvider.
const capiOperator = "capi-operator.yaml"

// operatorVersion finds the version in that file: in the name and the labels of the ConfigMap, and in the
// spec of the AddonProvider.
var operatorVersion = regexp.MustCompile(`(?m)^(  name: addon-muster-|    provider\.cluster\.x-k8s\.io/version: |        provider\.cluster\.x-k8s\.io/version: |  version: )v\S+$`)

// ofVersion gives capi-operator.yaml a version.
func ofVersion(content []byte, version string) ([]byte, error) {
	if found := len(operatorVersion.FindAll(content, -1)); found != 4 {
		return nil, fmt.Errorf("it has the version in %d places instead of 4", found)
	}
	return operatorVersion.ReplaceAll(content, []byte("${1}"+version)), nil
}

// clusterctlMetadata says which releases follow which contract of Cluster API.
const clusterctlMetadata = "metadata.yaml"

var imageLine = regexp.MustCompile(`(?m)^([ -]*image: *)(\S+)$`)

// withVersion gives Muster's images in a manifest a version.
func withVersion(content []byte, version string) ([]byte, error) {
	var unknown []string
	result := imageLine.ReplaceAllFunc(content, func(line []byte) []byte {
		match := imageLine.FindSubmatch(line)
		name, _, _ := strings.Cut(strings.TrimPrefix(string(match[2]), programs.Registry+"/"), ":")
		if !slices.ContainsFunc(programs.All, func(p programs.Program) bool { return p.Image() == name }) {
			unknown = append(unknown, string(match[2]))
			return line
		}
		return []byte(string(match[1]) + programs.Registry + "/" + name + ":" + version)
	})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("it names %s, which is not built here: add its program to hack/release/programs", strings.Join(unknown, ", "))
	}
	return result, nil
}

// checkSeries refuses a metadata.yaml without the version's series: clusterctl would refuse the release.
func checkSeries(content []byte, version string) error {
	var metadata struct {
		ReleaseSeries []struct {
			Major, Minor int
		} `json:"releaseSeries"`
	}
	if err := yaml.Unmarshal(content, &metadata); err != nil {
		return err
	}
	for _, series := range metadata.ReleaseSeries {
		if strings.HasPrefix(version, fmt.Sprintf("v%d.%d.", series.Major, series.Minor)) {
			return nil
		}
	}
	return fmt.Errorf("releaseSeries has no entry for %s, without which clusterctl refuses it: add one with its major and minor version, and the contract", version)
}
