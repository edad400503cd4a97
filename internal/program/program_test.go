package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/version"
)

func TestFlags(t *testing.T) {
	var defaults Flags
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	defaults.AddTo(fs)
	if err := fs.Parse(nil); err != nil {
		t.Fatal(err)
	}
	if defaults.HealthAddress != ":9440" || defaults.LogLevel != "info" || defaults.LogFormat != "json" || defaults.SyncPeriod != 10*time.Hour {
		t.Errorf("the defaults are %+v", defaults)
	}
	// Cluster API's own flag, secure by default.
	if defaults.Manager.DiagnosticsAddress != ":8443" || defaults.Manager.InsecureDiagnostics {
		t.Errorf("diagnostics: %+v", defaults.Manager)
	}

	if err := fs.Parse([]string{"--health-addr=:1", "--log-level=debug", "--log-format=console", "--sync-period=10m", "--diagnostics-address=localhost:2", "--insecure-diagnostics"}); err != nil {
		t.Fatal(err)
	}
	if defaults.HealthAddress != ":1" || defaults.LogLevel != "debug" || defaults.LogFormat != "console" || defaults.SyncPeriod != 10*time.Minute ||
		defaults.Manager.DiagnosticsAddress != "localhost:2" || !defaults.Manager.InsecureDiagnostics {
		t.Errorf("parsed: %+v", defaults)
	}
}

func TestSetUpLogging(t *testing.T) {
	for name, test := range map[string]struct {
		flags Flags
		want  string
	}{
		"json":                                {flags: Flags{LogLevel: "info", LogFormat: "json"}},
		"console":                             {flags: Flags{LogLevel: "debug", LogFormat: "console"}},
		"an unknown level":                    {flags: Flags{LogLevel: "loud", LogFormat: "json"}, want: "--log-level: "},
		"an unknown format":                   {flags: Flags{LogLevel: "info", LogFormat: "xml"}, want: `--log-format: "xml" is neither json nor console`},
		"an empty format":                     {flags: Flags{LogLevel: "info"}, want: "--log-format: "},
		"both unknown: the level is reported": {flags: Flags{LogLevel: "loud", LogFormat: "xml"}, want: "--log-level: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.flags.SetUpLogging()
			if (err != nil) != (test.want != "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("the error is %v, want one that starts with %q", err, test.want)
			}
		})
	}
}

func TestScheme(t *testing.T) {
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for want, object := range map[string]runtime.Object{
		"cluster.x-k8s.io/v1beta2, Kind=Cluster":                      &clusterv1.Cluster{},
		"cluster.x-k8s.io/v1beta2, Kind=ClusterClass":                 &clusterv1.ClusterClass{},
		"fleet.cattle.io/v1alpha1, Kind=Cluster":                      &fleetv1.Cluster{},
		"fleet.cattle.io/v1alpha1, Kind=ClusterGroup":                 &fleetv1.ClusterGroup{},
		"fleet.cattle.io/v1alpha1, Kind=BundleNamespaceMapping":       &fleetv1.BundleNamespaceMapping{},
		"addons.cluster.x-k8s.io/v1alpha1, Kind=FleetAddonConfig":     &addonsv1.FleetAddonConfig{},
		"addons.cluster.x-k8s.io/v1alpha1, Kind=FleetAddonConfigList": &addonsv1.FleetAddonConfigList{},
		"/v1, Kind=Namespace":                                         &corev1.Namespace{},
	} {
		if kind, err := apiutil.GVKForObject(object, scheme); err != nil || kind.String() != want {
			t.Errorf("%T is %s: %v", object, kind, err)
		}
	}
}

// TestLogsForVisualizer: Cluster API's visualizer accepts each line (v1.5.0, internal/get_pod_logs.go):
// "ts" is first and a number, and the Cluster is an object.
func TestLogsForVisualizer(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = write
	t.Cleanup(func() { os.Stderr = before })
	flags := Flags{LogLevel: "info", LogFormat: "json"}
	if err := flags.SetUpLogging(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-time.Second)
	// controller-runtime keeps the first logger that a process sets up.
	log := klog.Background().WithName("test").WithValues("Cluster", klog.KRef("team-a", "prod"))
	log.V(1).Info("Hidden")
	log.Info("Imported", "count", 1)
	log.Error(errors.New("no"), "Failed")
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %s", len(lines), text)
	}
	for i, level := range []string{"info", "error"} {
		var line struct {
			Millis  float64 `json:"ts"`
			Level   string
			Cluster struct{ Namespace, Name string }
		}
		if err := json.Unmarshal([]byte(lines[i]), &line); err != nil {
			t.Fatalf("%v: %s", err, lines[i])
		}
		at := time.UnixMilli(int64(line.Millis))
		if !strings.HasPrefix(lines[i], `{"ts":`) || at.Before(begin) || time.Until(at) > 0 || line.Cluster.Namespace != "team-a" || line.Cluster.Name != "prod" {
			t.Errorf("the visualizer would not find the line: %s", lines[i])
		}
		if line.Level != level || strings.Count(lines[i], `"level"`) != 1 {
			t.Errorf("the level should be %s: %s", level, lines[i])
		}
	}
}

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		args   []string
		stdout string
		want   error
	}{
		"nothing asked": {args: []string{"--other=1", "rest"}},
		"version":       {args: []string{"--version"}, stdout: "some program " + version.Get().String() + "\n", want: ErrAnswered},
		"among others":  {args: []string{"rest", "--version", "--other=1"}, stdout: "some program " + version.Get().String() + "\n", want: ErrAnswered},
		"no":            {args: []string{"--version=false"}},
		"help":          {args: []string{"--version", "--help"}, want: pflag.ErrHelp},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			fs := pflag.NewFlagSet("some program", pflag.ContinueOnError)
			fs.SetOutput(&stderr)
			fs.String("other", "", "")
			if err := Parse(fs, test.args, &stdout); !errors.Is(err, test.want) || stdout.String() != test.stdout {
				t.Errorf("%v, %q; want %v, %q", err, stdout.String(), test.want, test.stdout)
			}
		})
	}
}

func TestAnnounce(t *testing.T) {
	var logged string
	announce(funcr.New(func(_, line string) { logged += line }, funcr.Options{}), "some program")
	for _, want := range []string{`"msg"="Starting some program"`, `"version"="` + version.Get().Version + `"`, `"revision"=`, `"date"=`, `"go"="` + goruntime.Version() + `"`} {
		if !strings.Contains(logged, want) {
			t.Errorf("%s is not in %s", want, logged)
		}
	}
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "muster_build_info" {
			return
		}
	}
	t.Error("there is no metric muster_build_info")
}

// The library recommends what docs/reference/commands.md says.
func TestTimesOfElections(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(Election).AddTo(fs)
	for name, want := range map[string]string{"lease-duration": "15s", "renew-deadline": "10s", "retry-period": "2s"} {
		if got := fs.Lookup("leader-elect-" + name).DefValue; got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
