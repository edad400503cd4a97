package installer

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// onlyTrue are the reasons that only a True condition has.
var onlyTrue = []string{ReasonInstalled, ReasonKnownDefect, ReasonUpgrading, ReasonConfigured, ReasonConfiguredForNow}

// An alert would never fire for a reason that the metrics do not know.
func TestEveryReasonIsTallied(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "report.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Clone(onlyTrue)
	for _, reasons := range reasonsToBeFalse {
		known = append(known, reasons...)
	}
	var all []string
	ast.Inspect(file, func(node ast.Node) bool {
		spec, isValue := node.(*ast.ValueSpec)
		if !isValue || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		reason, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, reason)
		return true
	})
	if len(all) < 30 {
		t.Fatalf("only these reasons were found: %q", all)
	}
	slices.Sort(all)
	slices.Sort(known)
	if diff := cmp.Diff(all, slices.Compact(known)); diff != "" {
		t.Errorf("report.go, and what is tallied (-reasons +tallied):\n%s", diff)
	}
}

// exposed returns the version metric, and those of the conditions that are not 0.
func exposed(t *testing.T) []string {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, family := range families {
		if family.GetName() != "muster_fleet_condition" && family.GetName() != "muster_fleet_info" {
			continue
		}
		for _, metric := range family.GetMetric() {
			var values []string
			for _, label := range metric.GetLabel() {
				values = append(values, label.GetValue())
			}
			if metric.GetGauge().GetValue() != 0 {
				found = append(found, strings.Join(values, " "))
			}
		}
	}
	slices.Sort(found)
	return found
}

// The metrics agree with the FleetAddonConfig's status until it no longer asks for Fleet.
func TestTally(t *testing.T) {
	spec := custom()
	spec.Install = version("0.17.0").Install
	p := newFixture(t, spec, fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	p.after(0, InstalledCondition)
	want := []string{"0.16.0", "FleetConfigured ConfiguredOutsideRelease True", "FleetInstalled ForeignRelease False"}
	if diff := cmp.Diff(want, exposed(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.after(0, InstalledCondition) // The second reconcile writes nothing, and the metrics stay.
	if diff := cmp.Diff(want, exposed(t)); diff != "" {
		t.Errorf("a second time (-want +got):\n%s", diff)
	}
	config := &addonsv1.FleetAddonConfig{}
	config.Name = addonsv1.FleetAddonConfigName
	if err := p.Delete(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(config)}); err != nil {
		t.Fatal(err)
	}
	if left := exposed(t); len(left) > 0 {
		t.Errorf("nothing is requested, but it reports %q", left)
	}
}
