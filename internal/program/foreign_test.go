package program

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// TestForeigners compares what foreign flags mean. Everything else unknown is an error, as is a flag that would restrict
// a program that cannot be restricted.
func TestForeigners(t *testing.T) {
	for args, test := range map[string]struct {
		level, format, address, concurrency, ignored, err string
	}{
		"":                                 {level: "info", format: "json", address: ":8443", concurrency: "4"},
		"--v=2":                            {level: "info", format: "json", address: ":8443", concurrency: "4"},
		"-v=9 --logging-format text":       {level: "debug", format: "console", address: ":8443", concurrency: "4"},
		"--v=9 --log-level=warn":           {level: "warn", format: "json", address: ":8443", concurrency: "4", ignored: "v"},
		"--metrics-bind-addr=localhost:1":  {level: "info", format: "json", address: "localhost:1", concurrency: "4"},
		"--helm-chart-proxy-concurrency=7": {level: "info", format: "json", address: ":8443", concurrency: "7"},
		"--kube-api-qps=5 --contention-profiling --feature-gates=A=true,B=false --logtostderr=true": {level: "info", format: "json", address: ":8443", concurrency: "4",
			ignored: "contention-profiling feature-gates kube-api-qps logtostderr"},
		"--v=loud":                          {err: `invalid argument "loud" for "-v, --v" flag: "loud" is not a number`},
		"--logging-format=xml":              {err: `invalid argument "xml" for "--logging-format" flag: "xml" is neither json nor text`},
		"--helm-chart-proxy-concurrency=no": {err: `--helm-chart-proxy-concurrency: invalid argument "no" for "--helmchartproxy-concurrency" flag`},
		"--typo":                            {err: "unknown flag: --typo"},
		"--namespace=a":                     {err: "unknown flag: --namespace"},
		"--watch-filter=a":                  {err: "unknown flag: --watch-filter"},
		"--kubeconfig=a":                    {err: "unknown flag: --kubeconfig"},
	} {
		t.Run(args, func(t *testing.T) {
			var flags Flags
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			flags.AddTo(fs)
			fs.Int("helmchartproxy-concurrency", 4, "")
			addForeigners(fs)
			var ignored []string
			err := fs.Parse(strings.Fields(args))
			if err == nil {
				ignored, err = settle(fs)
			}
			if (err != nil) != (test.err != "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
				t.Fatalf("%v, want %s", err, test.err)
			}
			if err != nil {
				return
			}
			got := []string{flags.LogLevel, flags.LogFormat, flags.Manager.DiagnosticsAddress, fs.Lookup("helmchartproxy-concurrency").Value.String(), strings.Join(ignored, " ")}
			if diff := cmp.Diff([]string{test.level, test.format, test.address, test.concurrency, test.ignored}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if usage := fs.FlagUsages(); strings.Contains(usage, "logging-format") {
				t.Errorf("they are in the help:\n%s", usage)
			}
		})
	}
}

// TestVerbosityStaysHere starts a program with the verbosity at which client-go logs the bodies of requests.
func TestVerbosityStaysHere(t *testing.T) {
	var flags Flags
	if err := flags.Begin("test", []string{"--v=10", "--profiler-address=:1"}); err != nil {
		t.Fatal(err)
	}
	if flags.LogLevel != "debug" || klog.V(1).Enabled() {
		t.Errorf("log level %s, klog's V(1) is %v", flags.LogLevel, klog.V(1).Enabled())
	}
}

// TestForeignersAreAll compares the table with the sources that it names: a flag is in it, is one that all programs have,
// or is one that must not be ignored. The table has no flag that its source lacks.
func TestForeignersAreAll(t *testing.T) {
	var flags Flags
	own := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.AddTo(own)
	refused := []string{"namespace", "watch-filter"}
	for name, source := range map[string]struct{ module, version, folder, file, flags string }{
		core:     {"sigs.k8s.io/cluster-api", "v1.14.2", ".", "core/main.go", `fs\.\w+Var\(&\w+, "([a-z-]+)"`},
		logs:     {"k8s.io/component-base", "", ".", "logs/api/v1/options.go", `(?:fs\.\w*VarP?\([^\n]*?, |FlagName += )"([a-z-]+)"`},
		klogs:    {"k8s.io/klog/v2", "", ".", "klog.go", `commandLine\.\w*Var\([^\n]*?, "([a-z_]+)", `},
		caaph:    {"sigs.k8s.io/cluster-api-addon-provider-helm", "v0.6.4", "test/parts/caaph", "main.go", `fs\.\w+Var\(&\w+, "([a-z-]+)"`},
		operator: {"sigs.k8s.io/cluster-api-operator", "v0.29.0", "test/parts/capi-operator", "internal/controller/component_customizer.go", `"--([a-z-]+)"`},
	} {
		cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", source.module)
		cmd.Dir = filepath.Join("..", "..", source.folder)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		var module struct{ Dir, Version string }
		if err := json.Unmarshal(out, &module); err != nil || source.version != "" && module.Version != source.version {
			t.Fatalf("%s: %v, %+v: compare the table with this version, and name it there", source.module, err, module)
		}
		content, err := os.ReadFile(filepath.Join(module.Dir, source.file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(source.flags).FindAllStringSubmatch(string(content), -1)
		if len(found) < 5 {
			t.Fatalf("%s: only %d flags were found", name, len(found))
		}
		has := map[string]bool{}
		for _, match := range found {
			has[match[1]] = true
			if _, known := foreigners[match[1]]; !known && own.Lookup(match[1]) == nil && !slices.Contains(refused, match[1]) {
				t.Errorf("%s has the flag %s, which the table lacks", name, match[1])
			}
		}
		for flag, its := range foreigners {
			if its.source == name && !has[flag] {
				t.Errorf("%s does not have the flag %s of the table", name, flag)
			}
		}
	}
}
