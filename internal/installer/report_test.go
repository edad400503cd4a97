package installer

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// onlyTrue are the reasons that only a True condition has.
var onlyTrue = []string{addonsv1.InstalledReason, addonsv1.KnownDefectReason, addonsv1.UpgradingReason, addonsv1.ConfiguredReason, addonsv1.ConfiguredOutsideReleaseReason}

// An alert would never fire for a reason that the metrics do not know: each that the API declares for the two conditions, and
// each that this package uses.
func TestEveryReasonIsTallied(t *testing.T) {
	known := slices.Clone(onlyTrue)
	for _, reasons := range reasonsToBeFalse {
		known = append(known, reasons...)
	}
	const api = "../../api/v1alpha1/conditions.go"
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared, used []string
	for _, path := range append(files, api) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.GenDecl:
				return path != api || strings.Contains(node.Doc.Text(), "FleetInstalledCondition") || strings.Contains(node.Doc.Text(), "FleetConfiguredCondition")
			case *ast.ValueSpec:
				if path == api {
					declared = append(declared, strings.TrimSuffix(node.Names[0].Name, "Reason"))
				}
			case *ast.SelectorExpr:
				if name, isReason := strings.CutSuffix(node.Sel.Name, "Reason"); isReason && name != "" {
					used = append(used, name)
				}
			}
			return true
		})
	}
	if len(declared) < 30 {
		t.Fatalf("only these reasons were found: %q", declared)
	}
	for what, names := range map[string][]string{"declared": declared, "used": used} {
		slices.Sort(names)
		slices.Sort(known)
		if diff := cmp.Diff(slices.Compact(names), slices.Compact(slices.Clone(known))); diff != "" {
			t.Errorf("the reasons that are %s, and what is tallied (-%s +tallied):\n%s", what, what, diff)
		}
	}
}

// While a step is taken, a condition that the step is not about stays, and holds for the generation that the step is for.
func TestConditionStaysDuringAStep(t *testing.T) {
	p := newFixture(t, custom(), fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	before := p.after(0, addonsv1.FleetConfiguredCondition)
	config := &addonsv1.FleetAddonConfig{}
	config.Name = addonsv1.FleetAddonConfigName
	if err := p.live.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
		t.Fatal(err)
	}
	config.Generation = before.ObservedGeneration + 1
	if err := p.report(t.Context(), config, "", &plan{step: putFleet, installed: installedIs(false, addonsv1.InstallingReason, "x")}); err != nil {
		t.Fatal(err)
	}
	if err := p.live.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
		t.Fatal(err)
	}
	before.ObservedGeneration++
	if after := meta.FindStatusCondition(config.Status.Conditions, before.Type); after == nil || *after != before {
		t.Errorf("got %+v, want %+v", after, before)
	}
}

// A condition goes when the FleetAddonConfig no longer has the setting that the condition reports on.
func TestConditionGoes(t *testing.T) {
	spec := custom()
	spec.Install = version("0.17.0").Install
	p := newFixture(t, spec, fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	if reported := p.after(0, addonsv1.FleetInstalledCondition); reported.Reason != addonsv1.ForeignReleaseReason {
		t.Fatalf("%+v", reported)
	}
	config := &addonsv1.FleetAddonConfig{}
	config.Name = addonsv1.FleetAddonConfigName
	if err := p.live.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
		t.Fatal(err)
	}
	config.Spec.Install = nil
	if err := p.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if reported := p.after(0, addonsv1.FleetInstalledCondition); reported.Reason != "" {
		t.Errorf("%+v", reported)
	}
	if reported := p.after(0, addonsv1.FleetConfiguredCondition); reported.Reason != addonsv1.ConfiguredOutsideReleaseReason {
		t.Errorf("%+v", reported)
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
	p.after(0, addonsv1.FleetInstalledCondition)
	want := []string{"0.16.0", "FleetConfigured ConfiguredOutsideRelease True", "FleetInstalled ForeignRelease False"}
	if diff := cmp.Diff(want, exposed(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.after(0, addonsv1.FleetInstalledCondition) // The second reconcile writes nothing, and the metrics stay.
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
