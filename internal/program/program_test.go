package program

import (
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
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
	// Cluster API's own flag, secured unless somebody says otherwise.
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
		"json":                    {flags: Flags{LogLevel: "info", LogFormat: "json"}},
		"console":                 {flags: Flags{LogLevel: "debug", LogFormat: "console"}},
		"a level there is not":    {flags: Flags{LogLevel: "loud", LogFormat: "json"}, want: "--log-level: "},
		"a format there is not":   {flags: Flags{LogLevel: "info", LogFormat: "xml"}, want: `--log-format: "xml" is neither json nor console`},
		"an empty format":         {flags: Flags{LogLevel: "info"}, want: "--log-format: "},
		"the level is said first": {flags: Flags{LogLevel: "loud", LogFormat: "xml"}, want: "--log-level: "},
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
