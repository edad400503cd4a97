package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"
)

// TestK9sPlugins checks that the plugins for k9s in a release call commands that exist, with flags that they have. K9s
// runs no plugin that names a variable that it does not have.
func TestK9sPlugins(t *testing.T) {
	content, err := os.ReadFile("../../hack/release/assets/muster.k9s.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Plugins map[string]struct {
			ShortCut    string   `json:"shortCut"`
			Description string   `json:"description"`
			Scopes      []string `json:"scopes"`
			Command     string   `json:"command"`
			Background  bool     `json:"background"`
			Args        []string `json:"args"`
		} `json:"plugins"`
	}
	if err := yaml.UnmarshalStrict(content, &file); err != nil || len(file.Plugins) == 0 {
		t.Fatalf("%v, %d plugins", err, len(file.Plugins))
	}
	called := regexp.MustCompile(`^kubectl muster (.*) 2>&1 \| less -R?K$`)
	for name, plugin := range file.Plugins {
		if plugin.ShortCut == "" || plugin.Description == "" || len(plugin.Scopes) == 0 || plugin.Command != "sh" || len(plugin.Args) != 2 || !called.MatchString(plugin.Args[1]) {
			t.Fatalf("%s: %+v", name, plugin)
		}
		for _, variable := range regexp.MustCompile(`\$!?[\w-]+`).FindAllString(plugin.Args[1], -1) {
			if !slices.Contains([]string{"$NAMESPACE", "$NAME", "$CONTEXT"}, variable) {
				t.Errorf("%s: k9s may not know %s", name, variable)
			}
		}
		args := strings.Fields(called.FindStringSubmatch(plugin.Args[1])[1])
		cmd, rest, err := newRoot(newOptions(genericiooptions.IOStreams{})).Find(args)
		if err != nil || cmd.ParseFlags(rest) != nil || cmd.ValidateArgs(cmd.Flags().Args()) != nil {
			t.Errorf("%s: there is no command %s, or it has other arguments: %v", name, args, err)
		}
	}
}
