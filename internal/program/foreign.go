package program

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
)

// foreign is a flag that Cluster API's tools give to managers, and that a program of Muster may not have. If a program
// has a flag of that name, this is not used.
type foreign struct {
	// source defines the flag.
	source string
	// to is the flag of Muster to which it maps, and as translates its value. Without to, or if the program does not
	// have that flag, it is ignored.
	to string
	as func(string) (string, error)
	// isSwitch says that it needs no value.
	isSwitch bool
}

// Sources of flags.
const (
	core     = "Cluster API 1.14.2, core/main.go"
	logs     = "k8s.io/component-base, logs/api/v1/options.go, which Cluster API 1.14.2 and CAAPH 0.6.4 add"
	klogs    = "k8s.io/klog, which CAAPH 0.6.4 adds"
	caaph    = "CAAPH 0.6.4, main.go"
	operator = "Cluster API Operator 0.29.0, component_customizer.go, from spec.manager"
)

// foreigners are these flags by name. Flags that restrict what a program acts on (namespace, watch-filter), and
// kubeconfig, are not among them: ignoring one would make it act on more, or elsewhere.
var foreigners = map[string]foreign{
	// Never passed on to klog: from 8 on, client-go logs the bodies of requests, Secrets included.
	"v":                                   {source: logs, to: "log-level", as: levelOf},
	"logging-format":                      {source: logs, to: "log-format", as: formatOf},
	"log-flush-frequency":                 {source: logs},
	"vmodule":                             {source: logs},
	"log-text-split-stream":               {source: logs, isSwitch: true},
	"log-text-info-buffer-size":           {source: logs},
	"log-json-split-stream":               {source: logs, isSwitch: true},
	"log-json-info-buffer-size":           {source: logs},
	"add_dir_header":                      {source: klogs, isSwitch: true},
	"alsologtostderr":                     {source: klogs, isSwitch: true},
	"alsologtostderrthreshold":            {source: klogs},
	"legacy_stderr_threshold_behavior":    {source: klogs, isSwitch: true},
	"log_backtrace_at":                    {source: klogs},
	"log_dir":                             {source: klogs},
	"log_file":                            {source: klogs},
	"log_file_max_size":                   {source: klogs},
	"logtostderr":                         {source: klogs, isSwitch: true},
	"one_output":                          {source: klogs, isSwitch: true},
	"skip_headers":                        {source: klogs, isSwitch: true},
	"skip_log_headers":                    {source: klogs, isSwitch: true},
	"stderrthreshold":                     {source: klogs},
	"leader-elect":                        {source: core, isSwitch: true}, // The webhook elects nobody.
	"leader-elect-lease-duration":         {source: core},
	"leader-elect-renew-deadline":         {source: core},
	"leader-elect-retry-period":           {source: core},
	"profiler-address":                    {source: core}, // pprof is on the address of diagnostics.
	"contention-profiling":                {source: core, isSwitch: true},
	"feature-gates":                       {source: operator},
	"kube-api-qps":                        {source: core}, // The API server's own fairness is enough.
	"kube-api-burst":                      {source: core},
	"webhook-port":                        {source: core},
	"webhook-cert-dir":                    {source: core},
	"webhook-cert-name":                   {source: core},
	"webhook-key-name":                    {source: core},
	"remote-connection-grace-period":      {source: core},
	"remote-conditions-grace-period":      {source: core},
	"clustercache-client-qps":             {source: core},
	"clustercache-client-burst":           {source: core},
	"runtime-extension-client-cert-file":  {source: core},
	"runtime-extension-client-key-file":   {source: core},
	"machineset-preflight-checks":         {source: core},
	"skip-crd-migration-phases":           {source: core},
	"additional-sync-machine-labels":      {source: core},
	"additional-sync-machine-annotations": {source: core},
	"cluster-concurrency":                 {source: core},
	"clusterclass-concurrency":            {source: core},
	"clustertopology-concurrency":         {source: core},
	"clustercache-concurrency":            {source: core},
	"clusterresourceset-concurrency":      {source: core},
	"extensionconfig-concurrency":         {source: core},
	"machine-concurrency":                 {source: core},
	"machineset-concurrency":              {source: core},
	"machinedeployment-concurrency":       {source: core},
	"machinepool-concurrency":             {source: core},
	"machinehealthcheck-concurrency":      {source: core},
	"helm-chart-proxy-concurrency":        {source: caaph, to: "helmchartproxy-concurrency"},
	"helm-release-proxy-concurrency":      {source: caaph}, // The same number as of HelmChartProxies.
	"metrics-bind-addr":                   {source: operator, to: "diagnostics-address"},
	"webhook-host":                        {source: operator},
	"leader-election-id":                  {source: operator},
	"max-concurrent-reconciles":           {source: operator},
}

// levelOf returns the level for a verbosity. By the conventions of Kubernetes, 4 and more is for debugging.
func levelOf(verbosity string) (string, error) {
	number, err := strconv.ParseUint(verbosity, 10, 31)
	if err != nil {
		return "", fmt.Errorf("%q is not a number", verbosity)
	}
	if number >= 4 {
		return "debug", nil
	}
	return "info", nil
}

func formatOf(format string) (string, error) {
	switch format {
	case "json":
		return format, nil
	case "text":
		return "console", nil
	}
	return "", fmt.Errorf("%q is neither json nor text", format)
}

// foreignValue is the value of a foreign flag, which Set has translated.
type foreignValue struct {
	foreign
	text string
}

// Set implements pflag.Value.
func (v *foreignValue) Set(text string) (err error) {
	if v.as != nil {
		text, err = v.as(text)
	}
	v.text = text
	return err
}

// String implements pflag.Value.
func (v *foreignValue) String() string { return v.text }

// Type implements pflag.Value.
func (v *foreignValue) Type() string { return "string" }

// addForeigners adds the foreign flags that a program does not have, hidden from its help.
func addForeigners(fs *pflag.FlagSet) {
	for name, its := range foreigners {
		if fs.Lookup(name) != nil {
			continue
		}
		short := ""
		if name == "v" {
			short = name
		}
		flag := fs.VarPF(&foreignValue{foreign: its}, name, short, "See "+its.source+".")
		flag.Hidden = true
		if its.isSwitch {
			flag.NoOptDefVal = "true"
		}
	}
}

// settle gives the flags of Muster the values of the foreign flags that map to them, unless they are set themselves, and
// returns the names of the foreign flags that have no effect.
func settle(fs *pflag.FlagSet) (ignored []string, err error) {
	set := map[string]*foreignValue{}
	fs.Visit(func(flag *pflag.Flag) {
		if its, is := flag.Value.(*foreignValue); is {
			set[flag.Name] = its
		}
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		to := fs.Lookup(cmp.Or(set[name].to, name))
		if to == nil || to.Name == name || to.Changed {
			ignored = append(ignored, name)
			continue
		}
		if err := fs.Set(to.Name, set[name].text); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
	}
	return ignored, nil
}
