package settings

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestKindsOfProviders compares the table with testdata/providers.tsv, what the providers' CRDs say, and that with the
// providers that clusterctl knows by default.
func TestKindsOfProviders(t *testing.T) {
	text, err := os.ReadFile("testdata/providers.tsv")
	if err != nil {
		t.Fatal(err)
	}
	known, seen := map[string]bool{}, map[string]string{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(strings.TrimSpace(line), "\t")
		known[columns[0]] = true
		if len(columns) == 6 && regexp.MustCompile(`^\d{4}-\d\d-\d\d$`).MatchString(columns[5]) {
			seen[strings.Join(columns[:4], " ")] = columns[4]
		}
	}
	for _, kind := range Kinds() {
		row := strings.Join([]string{kind.Provider, kind.Group, kind.Kind, kind.Plural}, " ")
		label, found := seen[row]
		if !found {
			t.Errorf("no CRD was seen for %s", row)
		}
		if want := readIn(t, kind, label); kind.Version != want {
			t.Errorf("%s: the table says that it is read in version %q, its CRD's label %q says %q", row, kind.Version, label, want)
		}
		delete(seen, row)
	}
	for row := range seen {
		t.Errorf("the table lacks %s", row)
	}
	for _, provider := range clusterctlProviders(t) {
		if !known[provider] {
			t.Errorf("testdata/providers.tsv lacks the provider %s", provider)
		}
	}
}

// readIn returns the version in which Cluster API reads a kind whose CRD has this contract label.
func readIn(t *testing.T, kind Kind, label string) string {
	t.Helper()
	contract, versions, isKnown := strings.Cut(label, "=")
	if !isKnown {
		return ""
	}
	read := ""
	crds := interceptor.NewClient(nil, interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
		if object, isObject := into.(*unstructured.Unstructured); isObject {
			read = object.GroupVersionKind().Version
		} else {
			into.SetLabels(map[string]string{clusterv1.GroupVersion.Group + "/" + contract: versions})
		}
		return nil
	}})
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: kind.Group, Kind: kind.Kind, Name: "x"}
	if _, err := external.GetObjectFromContractVersionedRef(t.Context(), crds, ref, "x"); err != nil {
		t.Fatal(err)
	}
	return read
}

// clusterctlProviders returns the names of the infrastructure and control plane providers in clusterctl's source.
func clusterctlProviders(t *testing.T) []string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f={{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "cmd/clusterctl/client/config/providers_client.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^\t(\w+ProviderName)\s+= "(.+)"$`).FindAllStringSubmatch(string(source), -1) {
		names[match[1]] = match[2]
	}
	var result []string
	entry := regexp.MustCompile(`name:\s+(\w+),\s+url:[^,]+,\s+providerType:\s+clusterctlv1\.(?:Infrastructure|ControlPlane)ProviderType`)
	for _, match := range entry.FindAllStringSubmatch(string(source), -1) {
		result = append(result, names[match[1]])
	}
	if len(result) < 40 || slices.Contains(result, "") {
		t.Fatalf("%d providers: %q", len(result), result)
	}
	return result
}

// Kinds whose fields the setting replaces are those of the first roles; a new row must not be among them.
func TestDefaultExcludeIsFixed(t *testing.T) {
	count := 0
	for _, kind := range Kinds() {
		if kind.IsReplaceable {
			count++
		}
	}
	if len(DefaultExclude()) != 56 || count != 43 {
		t.Errorf("the default has %d pointers, for %d kinds", len(DefaultExclude()), count)
	}
}

// TestKindsAreDocumented compares the table with the documentation.
func TestKindsAreDocumented(t *testing.T) {
	read := func(page string) string {
		text, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	permissions, reference := read("permissions.md"), read("reference/configuration.md")
	inGroup := map[string][]string{}
	pointers := map[string]bool{}
	for _, kind := range Kinds() {
		inGroup[kind.Group] = append(inGroup[kind.Group], kind.Kind)
		secret := kind.Secret
		if kind.IsReplaceable {
			secret = kind.Excluded()
		}
		for _, pointer := range secret {
			pointers[pointer] = true
		}
		if row := "<br>`" + strings.Join(secret, "`<br>`") + "` |"; len(secret) > 0 && !strings.Contains(strings.ReplaceAll(reference, " | `", "<br>`"), row) {
			t.Errorf("docs/reference/configuration.md has no row %s for %s", row, kind.Kind)
		}
	}
	for group, kinds := range inGroup {
		slices.SortFunc(kinds, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
		if row := "| `" + group + "` | " + strings.Join(kinds, ", ") + " |"; !strings.Contains(permissions, row) {
			t.Errorf("docs/permissions.md has no row %s", row)
		}
	}
	for _, match := range regexp.MustCompile("(?:<br>| )`(/(?:spec|ControlPlane)/[^`]+)`(?:<br>| \\|)").FindAllStringSubmatch(reference, -1) {
		if !pointers[match[1]] {
			t.Errorf("docs/reference/configuration.md names %s, which the table lacks", match[1])
		}
	}
}
