package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

var (
	makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	helpFlag   = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z][a-z0-9-]*)`)
	reason     = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)`)
)

// makeTargets returns the targets of a Makefile that documentation may name.
func makeTargets(path string) ([]string, error) {
	content, err := os.ReadFile(path)
	return groups(makeTarget, string(content)), err
}

// testNames returns the names of the repository's tests.
func testNames(root string) ([]string, error) {
	out, err := exec.Command("git", "-C", root, "grep", "--untracked", "-h", "^func ", "--", "*_test.go").Output()
	return groups(testFunc, string(out)), err
}

// subcommands are the subcommands whose flags must be in the reference, too.
var subcommands = [][]string{
	{"./kubectl-muster", "tree"}, {"./kubectl-muster", "trace"}, {"./kubectl-muster", "check"}, {"./kubectl-muster", "view"},
	{"./kubectl-muster", "lint"}, {"./kubectl-muster", "render"}, {"./kubectl-muster", "plan"}, {"./kubectl-muster", "audit"},
	{"./kubectl-muster", "rollout", "status"}, {"./kubectl-muster", "rollout", "promote"},
	{"./kubectl-muster", "options"},
}

// programFlags returns the flags that the programs print with --help.
func programFlags(root string) ([]string, error) {
	programs, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	if err != nil {
		return nil, err
	}
	calls := slices.Clone(subcommands)
	for _, program := range programs {
		calls = append(calls, []string{"./" + filepath.Base(filepath.Dir(program))})
	}
	var flags []string
	for _, call := range calls {
		cmd := exec.Command("go", slices.Concat([]string{"run"}, call, []string{"--help"})...)
		cmd.Dir = filepath.Join(root, "cmd")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
		flags = append(flags, groups(helpFlag, string(out))...)
	}
	slices.Sort(flags)
	return slices.Compact(flags), nil
}

func groups(pattern *regexp.Regexp, text string) []string {
	var result []string
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		result = append(result, match[1])
	}
	return result
}

// tested are the modules whose versions Muster is tested with.
var tested = []struct{ file, module string }{
	{"test/parts/kube/go.mod", "k8s.io/kubernetes"},
	{"test/parts/controllers/go.mod", "sigs.k8s.io/cluster-api"},
	{"test/parts/controllers/go.mod", "github.com/rancher/fleet"},
	{"test/parts/controllers/go.mod", "github.com/cert-manager/cert-manager"},
	{"test/parts/older/kube/go.mod", "k8s.io/kubernetes"},
	{"test/parts/older/controllers/go.mod", "sigs.k8s.io/cluster-api"},
	{"test/parts/older/controllers/go.mod", "github.com/rancher/fleet"},
	{"test/parts/previous/kube/go.mod", "k8s.io/kubernetes"},
}

// testedVersions returns the versions of the parts that tests run, without the leading v.
func testedVersions(root string) ([]string, error) {
	var versions []string
	for _, part := range tested {
		content, err := os.ReadFile(filepath.Join(root, part.file))
		if err != nil {
			return nil, err
		}
		found := regexp.MustCompile(`(?m)^(?:require)?\s+` + regexp.QuoteMeta(part.module) + ` v(\S+)`).FindSubmatch(content)
		if found == nil {
			return nil, fmt.Errorf("%s does not require %s", part.file, part.module)
		}
		versions = append(versions, string(found[1]))
	}
	return versions, nil
}

// settingPaths returns the path of each field of spec and status, down to foreign types.
func settingPaths(crd string) ([]string, error) {
	content, err := os.ReadFile(crd)
	if err != nil {
		return nil, err
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &definition); err != nil {
		return nil, err
	}
	var paths []string
	for _, version := range definition.Spec.Versions {
		for _, root := range []string{"spec", "status"} {
			paths = append(paths, leaves(root, version.Schema.OpenAPIV3Schema.Properties[root])...)
		}
	}
	return paths, nil
}

// schema is the part of an OpenAPI schema that docscheck reads.
type schema struct {
	Properties map[string]schema `json:"properties"`
}

func leaves(path string, schema schema) []string {
	_, selector := schema.Properties["matchLabels"]
	_, reference := schema.Properties["resourceVersion"]
	if len(schema.Properties) == 0 || selector || reference {
		return []string{path}
	}
	var result []string
	for name, property := range schema.Properties {
		result = append(result, leaves(path+"."+name, property)...)
	}
	return result
}

// manifestNames returns the names of webhooks, admission policies or roles in manifests, except roles that
// are aggregated into another.
func manifestNames(files, what string) ([]string, error) {
	paths, err := filepath.Glob(files)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, document := range strings.Split(string(content), "\n---\n") {
			var object struct {
				Kind     string `json:"kind"`
				Metadata struct {
					Name   string            `json:"name"`
					Labels map[string]string `json:"labels"`
				} `json:"metadata"`
				Webhooks []struct {
					Name string `json:"name"`
				} `json:"webhooks"`
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			switch {
			case what == "webhook":
				for _, webhook := range object.Webhooks {
					names = append(names, webhook.Name)
				}
			case what == "policy" && strings.HasSuffix(object.Kind, "AdmissionPolicy"),
				what == "role" && strings.HasSuffix(object.Kind, "Role") && len(object.Metadata.Labels) == 0:
				names = append(names, object.Metadata.Name)
			}
		}
	}
	return names, nil
}

// inspect walks through a Go file, or those of a directory, tests excepted.
func inspect(dir string, visit func(ast.Node)) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			visit(node)
			return true
		})
		return nil
	})
}

func stringOf(node ast.Node) string {
	if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
		if text, err := strconv.Unquote(literal.Value); err == nil {
			return text
		}
	}
	return ""
}

// literals returns the strings in Go files that match a pattern.
func literals(dir string, pattern *regexp.Regexp) ([]string, error) {
	var result []string
	err := inspect(dir, func(node ast.Node) {
		if text := stringOf(node); pattern.MatchString(text) {
			result = append(result, text)
		}
	})
	return result, err
}

// ourKeys returns the labels and annotations in Go files that are written as <name> + Domain or
// Domain + <name>.
func ourKeys(dir string) ([]string, error) {
	const domain = "fleet.addons.cluster.x-k8s.io"
	isDomain := func(node ast.Expr) bool {
		switch node := node.(type) {
		case *ast.Ident:
			return node.Name == "Domain"
		case *ast.SelectorExpr:
			return node.Sel.Name == "Domain"
		}
		return false
	}
	var keys []string
	err := inspect(dir, func(node ast.Node) {
		if sum, ok := node.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
			switch {
			case isDomain(sum.X) && len(stringOf(sum.Y)) > 1:
				keys = append(keys, domain+stringOf(sum.Y))
			case isDomain(sum.Y) && stringOf(sum.X) != "":
				keys = append(keys, stringOf(sum.X)+domain)
			}
		}
		if text := stringOf(node); strings.HasPrefix(text, domain+"/") && !strings.ContainsAny(text, " :") {
			keys = append(keys, text)
		}
	})
	return keys, err
}

// conditionWords returns the types and reasons of conditions: constants named …Condition and …Reason, and values of fields
// named Reason.
func conditionWords(path string) ([]string, error) {
	var words []string
	add := func(node ast.Node) {
		if text := stringOf(node); reason.MatchString(text) {
			words = append(words, text)
		}
	}
	err := inspect(path, func(node ast.Node) {
		switch node := node.(type) {
		case *ast.ValueSpec:
			for i, name := range node.Names {
				if i < len(node.Values) && (strings.HasSuffix(name.Name, "Condition") || strings.HasSuffix(name.Name, "Reason")) {
					add(node.Values[i])
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := node.Key.(*ast.Ident); ok && key.Name == "Reason" {
				add(node.Value)
			}
		}
	})
	return words, err
}
