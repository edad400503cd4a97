package helm

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// keeper has Helm never delete the objects of a release: with Fleet's CRDs every object of
// Fleet would go, and what those have deployed.
type keeper struct{}

// Run annotates every object.
func (keeper) Run(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	result := &bytes.Buffer{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(manifests, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return result, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading what the chart renders: %w", err)
		}
		if len(object.Object) == 0 {
			continue
		}
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[kube.ResourcePolicyAnno] = kube.KeepPolicy
		object.SetAnnotations(annotations)
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		result.WriteString("---\n")
		result.Write(text)
	}
}
