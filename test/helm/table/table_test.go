package table

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

// packages maps the short names of packages in rows to their folders.
var packages = map[string]string{
	"plan": "internal/helm/plan", "proxy": "internal/helm/proxy", "release": "internal/helm/release", "bundle": "internal/helm/bundle", "admission": "internal/admission", "table": "test/helm/table",
	"api": "test/integration", "stack": "test/helm", "migration": "test/migration/caaph",
}

func rows(t *testing.T) []Row {
	t.Helper()
	all, err := Read(filepath.Join("..", Page))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// crd returns one of ours.
func crd(t *testing.T, plural string) apiextensionsv1.CustomResourceDefinitionVersion {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "manifests/helm/addons.cluster.x-k8s.io_"+plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var its apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(content, &its); err != nil {
		t.Fatal(err)
	}
	return its.Spec.Versions[0]
}

// fields returns the schemas below one, by path; each without the schemas below it.
func fields(path string, schema apiextensionsv1.JSONSchemaProps, into map[string]apiextensionsv1.JSONSchemaProps) {
	bare := schema
	bare.Properties, bare.Items, bare.Description = nil, nil, ""
	into[path] = bare
	for name, its := range schema.Properties {
		fields(path+"."+name, its, into)
	}
	if schema.Items != nil {
		fields(path+"[]", *schema.Items.Schema, into)
	}
}

// leaves returns the paths of schemas without fields.
func leaves(path string, schema apiextensionsv1.JSONSchemaProps) []string {
	switch {
	case len(schema.Properties) > 0:
		var all []string
		for name, its := range schema.Properties {
			all = append(all, leaves(path+"."+name, its)...)
		}
		return all
	case schema.Items != nil:
		return leaves(path+"[]", *schema.Items.Schema)
	}
	return []string{path}
}

// written returns the paths of the fields that an object sets.
func written(path string, value any) []string {
	switch typed := value.(type) {
	case map[string]any:
		all := []string{path}
		for name, its := range typed {
			all = append(all, written(path+"."+name, its)...)
		}
		return all
	case []any:
		all := []string{path}
		for _, its := range typed {
			all = append(all, written(path+"[]", its)...)
		}
		return all
	}
	return []string{path}
}

// Every field has a row, and every row has a field and tests, which exist and contain the row's word.
func TestComplete(t *testing.T) {
	all := rows(t)
	known := map[string]bool{}
	for _, row := range all {
		if key := row.Table + " " + row.What; known[key] {
			t.Errorf("%s: there are two rows", row.What)
		} else {
			known[key] = true
		}
		if verdicts := []string{Same, Refused, Warned, Differs, Never, Musters}; !slices.Contains(verdicts, row.Verdict) {
			t.Errorf("%s: %q is none of %v", row.What, row.Verdict, verdicts)
		}
		checkTests(t, row)
	}
	checkSpec(t, all)
	for kind, plural := range map[string]string{"HelmChartProxy": "helmchartproxies", "HelmReleaseProxy": "helmreleaseproxies"} {
		its := crd(t, plural)
		want := []string{}
		for _, column := range its.AdditionalPrinterColumns {
			want = append(want, kind+" column "+column.Name)
		}
		for _, part := range []string{"spec", "status"} {
			if kind == "HelmChartProxy" && part == "spec" {
				continue // It has a table of its own.
			}
			for name := range its.Schema.OpenAPIV3Schema.Properties[part].Properties {
				want = append(want, kind+" "+part+"."+name)
			}
		}
		var have []string
		for _, row := range all {
			if row.Table == Status && strings.HasPrefix(row.What, kind+" ") {
				have = append(have, row.What)
			}
		}
		same(t, kind, have, want)
	}
}

// checkSpec compares the first table with the fields of the CRD.
func checkSpec(t *testing.T, all []Row) {
	t.Helper()
	schema := crd(t, "helmchartproxies").Schema.OpenAPIV3Schema.Properties["spec"]
	there, have := map[string]apiextensionsv1.JSONSchemaProps{}, map[string]bool{}
	fields("spec", schema, there)
	for _, row := range all {
		if row.Table != Spec {
			continue
		}
		spec, err := Parse(row.What)
		if err != nil {
			t.Error(err)
		}
		for _, path := range written("spec", spec) {
			if parent, name := path[:strings.LastIndex("."+path, ".")], path; there[path].Type == "" && !there[path].XIntOrString &&
				there[strings.TrimSuffix(parent, ".")].AdditionalProperties == nil {
				t.Errorf("%s: there is no field %s", row.What, name)
			}
			have[path] = true
		}
	}
	for _, path := range leaves("spec", schema) {
		if !have[path] {
			t.Errorf("field %s has no row", path)
		}
	}
}

func same(t *testing.T, what string, have, want []string) {
	t.Helper()
	for _, its := range want {
		if !slices.Contains(have, its) {
			t.Errorf("%s has no row", its)
		}
	}
	for _, its := range have {
		if !slices.Contains(want, its) && !strings.Contains(its, ",") {
			t.Errorf("%s: a row of %s, which has none", its, what)
		}
	}
}

// word matches the words of a row; its tests must contain the last one.
var word = regexp.MustCompile(`[A-Za-z][A-Za-z0-9.-]*[A-Za-z0-9]`)

// checkTests looks for the tests of a row.
func checkTests(t *testing.T, row Row) {
	t.Helper()
	for _, name := range row.Tests {
		of, function, _ := strings.Cut(name, " ")
		content := sourceOf(t, of, function)
		if content == "" {
			t.Errorf("%s: there is no test %q", row.What, name)
			continue
		}
		if row.Table == Spec || strings.Contains(content, "table.Read(") {
			continue // These tests follow the table itself.
		}
		words := word.FindAllString(row.What, -1)
		key := words[len(words)-1]
		for _, part := range []string{"spec.", "status."} {
			key = strings.TrimPrefix(key, part)
		}
		if !strings.Contains(strings.ToLower(content), strings.ToLower(key)) {
			t.Errorf("%s: the file of %s says nothing of %q", row.What, name, key)
		}
	}
}

// sourceOf returns the file that has a test; empty if there is none.
func sourceOf(t *testing.T, of, function string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, packages[of], "*_test.go"))
	if err != nil || packages[of] == "" {
		return ""
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(parsed.Decls, func(its ast.Decl) bool {
			declared, found := its.(*ast.FuncDecl)
			return found && declared.Recv == nil && declared.Name.Name == function && strings.HasPrefix(function, "Test")
		}) {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	return ""
}

// caaph is the API of cluster-api-addon-provider-helm.
type caaph struct {
	HelmChartProxy, HelmReleaseProxy struct {
		Columns []apiextensionsv1.CustomResourceColumnDefinition `json:"columns"`
		Schema  map[string]apiextensionsv1.JSONSchemaProps       `json:"schema"`
	}
	Words    []string `json:"words"`
	Messages []string `json:"messages"`
}

// Our API accepts everything that cluster-api-addon-provider-helm accepts, with the same defaults; every word
// and message of that API has a row.
func TestAsThere(t *testing.T) {
	content, err := os.ReadFile("testdata/caaph.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var there caaph
	if err := yaml.UnmarshalStrict(content, &there); err != nil {
		t.Fatal(err)
	}
	for plural, its := range map[string]struct {
		columns []apiextensionsv1.CustomResourceColumnDefinition
		schema  map[string]apiextensionsv1.JSONSchemaProps
	}{
		"helmchartproxies":   {there.HelmChartProxy.Columns, there.HelmChartProxy.Schema},
		"helmreleaseproxies": {there.HelmReleaseProxy.Columns, there.HelmReleaseProxy.Schema},
	} {
		ours := crd(t, plural)
		compareColumns(t, plural, ours.AdditionalPrinterColumns, its.columns)
		have := map[string]apiextensionsv1.JSONSchemaProps{}
		for _, part := range []string{"spec", "status"} {
			fields(part, ours.Schema.OpenAPIV3Schema.Properties[part], have)
		}
		for path, want := range its.schema {
			got, found := have[path]
			if want.MaxLength == nil {
				got.MaxLength, got.XValidations = nil, nil // The limits are ours.
			}
			if path == "spec.credentials" {
				want.Required = []string{"secret"} // Its webhook writes a key that is missing.
			}
			if diff := cmp.Diff(want, got); !found || diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", plural, path, diff)
			}
		}
	}
	checkWords(t, there)
}

func compareColumns(t *testing.T, plural string, have, want []apiextensionsv1.CustomResourceColumnDefinition) {
	t.Helper()
	for i := range have {
		have[i].Type, have[i].Description = "", ""
	}
	if diff := cmp.Diff(want, have[:min(len(want), len(have))]); diff != "" { // Muster's own come after them.
		t.Errorf("%s: columns (-want +got):\n%s", plural, diff)
	}
}

func checkWords(t *testing.T, there caaph) {
	t.Helper()
	known := map[string]Row{}
	all := ""
	for _, row := range rows(t) {
		if row.Table != Spec {
			known[row.What] = row
		}
		all += row.How + "\n"
	}
	for _, its := range there.Words {
		if _, found := known[its]; !found {
			t.Errorf("%s has no row", its)
		}
	}
	for what, row := range known {
		isField := strings.HasPrefix(what, "HelmChartProxy ") || strings.HasPrefix(what, "HelmReleaseProxy")
		if !isField && row.Verdict != Musters && !slices.Contains(there.Words, what) {
			t.Errorf("%s: it is not known there", what)
		}
	}
	for _, message := range there.Messages {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(message), "%s", ".+")
		if !regexp.MustCompile(pattern).MatchString(all) {
			t.Errorf("no row has the message %q", message)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(there.HelmChartProxy.Schema)) {
		if strings.HasPrefix(path, "status.") && strings.Count(path, ".") == 1 && !strings.HasSuffix(path, "[]") {
			if _, found := known["HelmChartProxy "+path]; !found {
				t.Errorf("HelmChartProxy %s has no row", path)
			}
		}
	}
}
