// Command docscheck compares the documentation with the code: every make target, test, flag, metric,
// setting, key, condition and reason that it names exists, the reference names all existing ones, internal links
// resolve, README shows output that a test compares, and comments and pages read well.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/muster-fleet/muster/internal/settings"
)

const (
	// The pages of the reference must name everything that a user can set or see.
	reference = "docs/reference/"
	// operations must name each webhook, with the consequence of its absence.
	operations = "docs/operations.md"
	// permissions must name each role and each admission policy.
	permissions = "docs/permissions.md"
	// guide has outputs that a test compares with what commands print.
	guide = "docs/guides/troubleshooting.md"
	// support must name the versions that Muster is built for and tested with.
	support = "docs/support.md"
)

func main() {
	problems, err := check(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "docscheck:", err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Println(problem)
	}
	if len(problems) > 0 {
		fmt.Printf("the documentation has %d problems\n", len(problems))
		os.Exit(1)
	}
}

// check returns the problems of the documentation in the tree at root.
func check(root string) ([]string, error) {
	pages, err := readPages(root)
	if err != nil {
		return nil, err
	}
	problems := append(checkLinks(root, pages), checkOutputs(pages)...)
	problems = append(problems, tooLong(pages)...)

	targets, err := makeTargets(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil, err
	}
	problems = append(problems, named(pages, makeCall, targets, "make target")...)

	tests, err := testNames(root)
	if err != nil {
		return nil, err
	}
	problems = append(problems, named(pages, testName, tests, "test")...)

	flags, err := programFlags(root)
	if err != nil {
		return nil, err
	}
	problems = append(problems, named(pages, flagSpan, flags, "flag")...)
	problems = append(problems, missing(pages, reference, flags, "--", "flag")...)

	metrics, err := literals(filepath.Join(root, "internal"), metricName)
	if err != nil {
		return nil, err
	}
	problems = append(problems, named(pages, metricName, metrics, "metric")...)
	problems = append(problems, missing(pages, reference, metrics, "", "metric")...)

	for file, page := range map[string]string{
		"manifests/crd/addons.cluster.x-k8s.io_fleetaddonconfigs.yaml": "configuration.md",
		"manifests/helm/addons.cluster.x-k8s.io_helmchartproxies.yaml": "helmchartproxy.md",
	} {
		fields, err := settingPaths(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		problems = append(problems, missing(pages, reference+page, fields, "", "field")...)
	}

	problems = append(problems, missing(pages, reference, settings.DefaultExclude(), "", "default exclusion")...)

	keys, err := ourKeys(filepath.Join(root, "internal"))
	if err != nil {
		return nil, err
	}
	problems = append(problems, missing(pages, reference, keys, "", "label or annotation")...)

	versions, err := testedVersions(root)
	if err != nil {
		return nil, err
	}
	problems = append(problems, missing(pages, support, versions, "", "tested version")...)

	for _, path := range []string{"api/v1alpha1/conditions.go", "internal"} {
		reasons, err := conditionWords(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		problems = append(problems, missing(pages, reference, reasons, "", "condition or reason")...)
	}

	for _, decides := range []struct{ files, what string }{
		{"manifests/webhook/*.yaml", "webhook"},
		{"manifests/policy/*.yaml", "policy"},
		{"manifests/rbac/*.yaml", "role"},
		{"manifests/helm/*.yaml", "webhook"},
		{"manifests/helm/*.yaml", "policy"},
		{"manifests/helm/*.yaml", "role"},
		{"manifests/registrar/*.yaml", "policy"},
		{"manifests/registrar/*.yaml", "role"},
		{"manifests/installer/*.yaml", "policy"},
		{"manifests/installer/*.yaml", "role"},
	} {
		names, err := manifestNames(filepath.Join(root, decides.files), decides.what)
		if err != nil {
			return nil, err
		}
		page := permissions
		if decides.what == "webhook" {
			page = operations
		}
		problems = append(problems, missing(pages, page, names, "", decides.what)...)
	}

	stumbling, err := prose(root, "cmd", "docs", "hack", "internal", "test")
	if err != nil {
		return nil, err
	}
	problems = append(problems, stumbling...)

	slices.Sort(problems)
	return slices.Compact(problems), nil
}
