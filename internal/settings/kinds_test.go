package settings

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestKindsOfProviders compares the table with testdata/providers.tsv, what the providers' CRDs say, and that with the
// providers that clusterctl knows by default.
func TestKindsOfProviders(t *testing.T) {
	text, err := os.ReadFile("testdata/providers.tsv")
	if err != nil {
		t.Fatal(err)
	}
	known, seen := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(strings.TrimSpace(line), "\t")
		known[columns[0]] = true
		if regexp.MustCompile(`^\d{4}-\d\d-\d\d$`).MatchString(columns[len(columns)-1]) {
			seen[strings.Join(columns[:len(columns)-1], " ")] = true
		}
	}
	for _, kind := range Kinds() {
		row := strings.Join([]string{kind.Provider, kind.Group, kind.Kind, kind.Plural}, " ")
		if !seen[row] {
			t.Errorf("no CRD was seen for %s", row)
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
