package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaFolder is where CycloneDX's own schemas are: beside the library that writes SBOMs.
type schemaFolder string

// Load is for what a schema refers to. Nothing is fetched.
func (dir schemaFolder) Load(url string) (any, error) {
	name := url[strings.LastIndex(url, "/")+1:]
	if name == "jsf-0.82.schema.json" {
		name = "jsf-0.82.schemax.json" // as the library's authors call it
	}
	return jsonschema.FileLoader{}.Load("file://" + filepath.Join(string(dir), name))
}

// validSBOM says what CycloneDX's schema does not allow in an SBOM.
func validSBOM(content []byte) error {
	dir, err := exec.Command("go", "list", "-m", "-f={{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	compiler.UseLoader(schemaFolder(filepath.Join(strings.TrimSpace(string(dir)), "schema")))
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		return err
	}
	return schema.Validate(document)
}
