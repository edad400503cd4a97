package crd

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"strconv"
	"testing"

	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	shipped "github.com/muster-fleet/muster/manifests"
)

// digests has the digests of the CRDs' specs without descriptions, by revision. The last belongs to SchemaRevision.
var digests = []string{
	"f72b32619b368cd78df90804d40a873544dee008bec9c05a6b4a8852f21b0e01",
	"57effbfc513f964fd118e8ef787f75bd86a852d077ff153db023516afe187b0a",
	"a85d15c1e6f03a6e897e0da553de0ca2f04a5ed17f40f8ee75925c85652fd90c",
}

// The syncer names a CRD with a lower revision than its own, so every change of a schema has another one.
func TestSchemaRevision(t *testing.T) {
	files, err := fs.Glob(shipped.CRDs, "*/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("the CRDs are %v: %v", files, err)
	}
	sum := sha256.New()
	for _, file := range files {
		content, err := shipped.CRDs.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := struct {
			Metadata struct{ Annotations map[string]string }
			Spec     any
		}{}
		if err := yaml.Unmarshal(content, &crd); err != nil {
			t.Fatal(err)
		}
		if got := crd.Metadata.Annotations[addonsv1.SchemaRevisionAnnotation]; got != strconv.Itoa(addonsv1.SchemaRevision) {
			t.Errorf("%s has revision %q, and the program %d", file, got, addonsv1.SchemaRevision)
		}
		if err := json.NewEncoder(sum).Encode(undescribed(crd.Spec)); err != nil {
			t.Fatal(err)
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); len(digests) != addonsv1.SchemaRevision || got != digests[len(digests)-1] {
		t.Errorf("a schema has changed: raise SchemaRevision in api/v1alpha1 and the markers there, run make generate, and append %q to digests", got)
	}
}

// undescribed removes the descriptions from a schema. A property of that name is no string.
func undescribed(schema any) any {
	switch its := schema.(type) {
	case map[string]any:
		if _, isText := its["description"].(string); isText {
			delete(its, "description")
		}
		for _, value := range its {
			undescribed(value)
		}
	case []any:
		for _, value := range its {
			undescribed(value)
		}
	}
	return schema
}
