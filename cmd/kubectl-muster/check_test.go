package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/program"
)

// TestCheckExitCodes compares the exit codes. A Cluster that does not exist is not healthy.
func TestCheckExitCodes(t *testing.T) {
	for name, test := range map[string]struct {
		state string
		args  []string
		want  int
	}{
		"all are well":                {"healthy", nil, 0},
		"one is well":                 {"bundle-failing", []string{"classes/dev"}, 0},
		"a class is well":             {"healthy", []string{"class/standard"}, 0},
		"one is not":                  {"bundle-failing", []string{"team-a/prod"}, 1},
		"its class is not":            {"bundle-failing", []string{"class/standard"}, 1},
		"a class by its kind":         {"healthy", []string{"clusterclass/classes/standard"}, 0},
		"a kind and a name":           {"bundle-failing", []string{"cluster", "team-a/prod"}, 1},
		"not of that kind":            {"healthy", []string{"clusterclass", "dev"}, 2},
		"a held upgrade waits":        {"upgrade-held", []string{"classes/dev"}, 1},
		"paused is fine":              {"paused", []string{"team-a/prod"}, 0},
		"no such Cluster":             {"healthy", []string{"team-a/typo"}, 2},
		"no such Cluster among ill":   {"bundle-failing", []string{"typo"}, 2},
		"no such class":               {"healthy", []string{"class/typo"}, 2},
		"no such Cluster, waited for": {"healthy", []string{"team-a/typo", "--wait", "--timeout=1ms"}, 2},
		"an unknown format":           {"healthy", []string{"-o", "typo"}, 2},

		"Fleet cannot process a Bundle":   {"blocked", nil, 1},
		"blocked and quiet":               {"blocked", []string{"--quiet"}, 1},
		"blocked for one of its Clusters": {"blocked", []string{"team-a/prod"}, 1},
		"blocked for its class":           {"blocked", []string{"class/standard"}, 1},
		"blocked for a namespace":         {"blocked", []string{"-n", "team-a"}, 1},
		"two Bundles of a name":           {"same-name", nil, 1},
		"two on this Cluster":             {"same-name", []string{"team-a/prod"}, 1},
		"two and not on this Cluster":     {"same-name", []string{"classes/dev"}, 0},
		"two in this namespace":           {"same-name", []string{"-n", "team-a"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"check", "-f", stateFile(t, test.state)}, test.args...)
			out, err := muster(t, args...)
			if got := program.ExitCode(err); got != test.want {
				t.Errorf("%v: got %d, want %d: %v\n%s", args, got, test.want, err, out)
			}
		})
	}
}

// TestCheckQuiet prints nothing at all, and TestCheckTimedOut says that --wait ended without success.
func TestCheckQuiet(t *testing.T) {
	for state, args := range map[string][]string{"blocked": nil, "healthy": {"typo"}} {
		out, err := muster(t, append([]string{"check", "-q", "-f", stateFile(t, state)}, args...)...)
		if out != "" || err == nil || err.Error() != "" {
			t.Errorf("%s: %q, %v", state, out, err)
		}
	}
}

func TestCheckTimedOut(t *testing.T) {
	for want, args := range map[string][]string{
		"timed out after 1ms: not healthy: 1 TargetingError":                  {"-f", stateFile(t, "blocked")},
		`timed out after 1ms: no ClusterClass or Cluster "team-a/typo" found`: {"-f", stateFile(t, "cross-namespace"), "team-a/typo"},
	} {
		if _, err := muster(t, append([]string{"check", "--wait", "--timeout=1ms"}, args...)...); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestNames compares -o name, which has kubectl's form.
func TestNames(t *testing.T) {
	for args, want := range map[string]string{
		"tree":                      "cluster.cluster.x-k8s.io/dev\ncluster.cluster.x-k8s.io/prod\n",
		"check":                     "cluster.cluster.x-k8s.io/prod\n",
		"trace classes/cni":         "cluster.cluster.x-k8s.io/dev\ncluster.cluster.x-k8s.io/prod\n",
		"trace classes/cni dev":     "bundle.fleet.cattle.io/cni\n",
		"tree team-a/prod":          "cluster.cluster.x-k8s.io/prod\nbundle.fleet.cattle.io/cni\nbundle.fleet.cattle.io/monitoring\n",
		"check clusterclass/dev -q": "",
	} {
		if out, _, _ := fed(t, "", append(strings.Fields(args), "-o", "name", "-f", stateFile(t, "bundle-failing"))...); out != want {
			t.Errorf("%s:\n%s, want\n%s", args, out, want)
		}
	}
}

// TestProblemsOfNobody runs tree --problems for a Cluster that does not exist.
func TestProblemsOfNobody(t *testing.T) {
	if out, err := muster(t, "tree", "--problems", "team-a/typo", "-f", stateFile(t, "healthy")); err == nil {
		t.Errorf("no error, and this was printed:\n%s", out)
	}
}

// arriving is a management cluster in which a Cluster is created after a while.
type arriving struct {
	client.Reader
	looks *int
}

func (a arriving) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch list.(type) {
	case *clusterv1.ClusterList:
		*a.looks++
	case *fleetv1.ClusterList:
	default:
		return a.Reader.List(ctx, list, options...)
	}
	if *a.looks == 1 {
		return nil
	}
	return a.Reader.List(ctx, list, options...)
}

// Now implements the clock of a file.
func (a arriving) Now() time.Time { return noon }

// TestCheckWaitsForACluster waits for a Cluster that does not exist yet.
func TestCheckWaitsForACluster(t *testing.T) {
	looks := 0
	out := through(t, func(reader client.Reader) client.Reader { return arriving{reader, &looks} },
		"check", "classes/dev", "--wait", "--quiet", "-f", stateFile(t, "healthy"))
	if out != "" || looks != 2 {
		t.Errorf("after %d looks: %s", looks, out)
	}
}

// partitioned adds Bundles with partitions for dev, prod and edge, one for each row of the documentation.
func partitioned(w *world) {
	for _, name := range []string{"prod", "edge"} {
		w.cluster("team-a", name, standard)
	}
	w.cluster("classes", "dev", standard)
	dev := fleetv1.Partition{Name: "dev", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "dev"}}}
	rest := fleetv1.Partition{Name: "rest", ClusterSelector: &metav1.LabelSelector{}}
	limited := func(partition fleetv1.Partition, limit int32) fleetv1.Partition {
		partition.MaxUnavailable = ptr.To(intstr.FromInt32(limit))
		return partition
	}
	for name, partitions := range map[string][]fleetv1.Partition{
		"a-default": {dev, rest}, "b-small": {limited(dev, 1), rest}, "c-zero": {limited(dev, 0), rest}, "f-left-out": {dev, {Name: "edge", ClusterName: "edge", MaxUnavailable: ptr.To(intstr.FromInt32(1))}},
		"gated": {dev, limited(dev, 0), rest}, "plain": nil,
	} {
		bundle := w.bundle(name)
		bundle.Spec.RolloutStrategy = &fleetv1.RolloutStrategy{Partitions: partitions}
		switch name {
		case "a-default":
			bundle.Labels = map[string]string{fleetv1.RepoLabel: "apps"}
		case "b-small":
			bundle.Labels = nil
		}
	}
	for _, labels := range []map[string]string{plan.Labels(types.NamespacedName{Namespace: "classes", Name: "cni"}), {"objectset.rio.cattle.io/hash": "1"}} {
		ours := w.bundle(fmt.Sprintf("hcp-%d", len(labels)))
		ours.Labels, ours.Spec.RolloutStrategy = labels, &fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{dev}}
	}
}

// partitionedFile writes these objects to a file.
func partitionedFile(t *testing.T) string {
	t.Helper()
	w := newWorld()
	partitioned(w)
	var objects []client.Object
	seen := map[string]bool{} // Groups and mappings were added with each Cluster.
	for _, object := range w.objects {
		if key := fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName()); !seen[key] {
			objects, seen[key] = append(objects, object), true
		}
	}
	slices.SortFunc(objects, func(a, b client.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	file := filepath.Join(t.TempDir(), "partitioned.yaml")
	if err := os.WriteFile(file, recorded(t, objects), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestCheckPartitions compares the warnings about partitions. They do not change the exit code.
func TestCheckPartitions(t *testing.T) {
	file := partitionedFile(t)
	var a archive
	for _, args := range [][]string{{"check"}, {"check", "-o", "wide"}, {"check", "-o", "json"}, {"check", "-n", "classes"}, {"check", "-n", "team-a"}, {"check", "classes/dev"}, {"check", "--quiet"}} {
		a.add(strings.Join(args, " "), must(t, append(args, "-f", file)...))
	}
	a.add("tree", must(t, "tree", "-f", file))
	for _, hidden := range []client.ObjectList{&fleetv1.BundleList{}, &fleetv1.ClusterGroupList{}, &fleetv1.BundleNamespaceMappingList{}, &metav1.PartialObjectMetadataList{}} {
		isHidden := func(list client.ObjectList) bool { return fmt.Sprintf("%T", list) == fmt.Sprintf("%T", hidden) }
		a.add(fmt.Sprintf("check without %T", hidden), through(t, func(reader client.Reader) client.Reader { return forbidding{reader, isHidden} }, "check", "-f", file))
	}
	same := func(reader client.Reader) client.Reader { return reader }
	a.add("check without Bundles in the file", through(t, same, "check", "-f", stateFile(t, "fleet-absent")))
	a.golden(t, "check-partitions")
}

// TestCheckReadsNoMore checks that the Clusters that Bundles target are read only if a Bundle has partitions.
func TestCheckReadsNoMore(t *testing.T) {
	count := func(file string, args ...string) (lists int) {
		through(t, func(reader client.Reader) client.Reader {
			return forbidding{reader, func(client.ObjectList) bool { lists++; return false }}
		}, append(args, "-f", file)...)
		return lists
	}
	file := stateFile(t, "healthy")
	tree := count(file, "tree")
	if check, quiet, named := count(file, "check"), count(file, "check", "-q"), count(file, "check", "classes/dev"); check != tree+1 || quiet != tree+1 || named != tree+1 {
		t.Errorf("lists: %d for tree, %d for check, %d for check --quiet, %d for check CLUSTER", tree, check, quiet, named)
	}
	if check := count(partitionedFile(t), "check"); check != tree+5 {
		t.Errorf("lists: %d for tree, %d for check", tree, check)
	}
}

// TestCheckBundles compares the exit codes for a Bundle about which only Fleet's report on the Bundle says something. A Bundle that
// waits has not failed, whatever the reason of its condition.
func TestCheckBundles(t *testing.T) {
	summary := func(state fleetv1.BundleState, message string) func(*fleetv1.Bundle) {
		return func(bundle *fleetv1.Bundle) {
			bundle.Status.Summary = fleetv1.BundleSummary{DesiredReady: 2, Ready: 1, NonReadyResources: []fleetv1.NonReadyResource{{Name: "classes/dev", State: state, Message: message}}}
			switch state {
			case fleetv1.ErrApplied:
				bundle.Status.Summary.ErrApplied = 1
			case fleetv1.Modified:
				bundle.Status.Summary.Modified = 1
			default:
				bundle.Status.Summary.WaitApplied = 1
			}
			reported(bundle, "", fmt.Sprintf("%s(1) [Cluster classes/dev: %s]", state, message))
		}
	}
	elsewhere := func(bundle *fleetv1.Bundle) { bundle.Spec.Targets[0].ClusterName = "other" }
	for name, test := range map[string]struct {
		change []func(*fleetv1.Bundle)
		args   string
		want   string
	}{
		"a targeting error":               {[]func(*fleetv1.Bundle){func(b *fleetv1.Bundle) { reported(b, "Error", targetingError) }}, "", "1 TargetingError"},
		"of a Bundle for another Cluster": {[]func(*fleetv1.Bundle){func(b *fleetv1.Bundle) { reported(b, "Error", targetingError) }, elsewhere}, "classes/dev", ""},
		"no target can be parsed": {[]func(*fleetv1.Bundle){func(b *fleetv1.Bundle) {
			reported(b, "Error", "targeting error: bad selector")
			b.Spec.Targets[0].ClusterSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "typo"}}}
		}}, "classes/dev", "1 TargetingError"},
		"another error":            {[]func(*fleetv1.Bundle){func(b *fleetv1.Bundle) { reported(b, "Error", "failed to update partitions: typo") }}, "", "1 Error"},
		"not ready after an error": {[]func(*fleetv1.Bundle){func(b *fleetv1.Bundle) { reported(b, "Error", "WaitApplied(1) [Cluster classes/dev]") }}, "", ""},
		"being deleted": {[]func(*fleetv1.Bundle){func(b *fleetv1.Bundle) {
			reported(b, "Error", targetingError)
			b.Finalizers = []string{"fleet"}
			b.DeletionTimestamp = &metav1.Time{Time: noon}
		}}, "", ""},
		"no condition":                {nil, "", ""},
		"a cluster that is not seen":  {[]func(*fleetv1.Bundle){summary(fleetv1.WaitApplied, "")}, "", ""},
		"a rollout":                   {[]func(*fleetv1.Bundle){summary(fleetv1.OutOfSync, "")}, "", ""},
		"a failed deployment":         {[]func(*fleetv1.Bundle){summary(fleetv1.ErrApplied, "no matches for kind")}, "", "1 ErrApplied"},
		"for this Cluster":            {[]func(*fleetv1.Bundle){summary(fleetv1.ErrApplied, "no matches for kind")}, "classes/dev", "1 ErrApplied"},
		"for another":                 {[]func(*fleetv1.Bundle){summary(fleetv1.ErrApplied, "no matches for kind"), elsewhere}, "classes/dev", ""},
		"changed by others":           {[]func(*fleetv1.Bundle){summary(fleetv1.Modified, "")}, "", "1 Modified"},
		"a dependency":                {[]func(*fleetv1.Bundle){summary(fleetv1.ErrApplied, "dependent bundle(s) are not ready: [a]")}, "", ""},
		"a dependency in newer Fleet": {[]func(*fleetv1.Bundle){summary("WaitingForDependency", "a")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			_, fleet := w.cluster("classes", "dev", standard)
			bundle := w.bundle("cni", fleet)
			for _, change := range test.change {
				change(bundle)
			}
			file := filepath.Join(t.TempDir(), "all.yaml")
			if err := os.WriteFile(file, recorded(t, w.objects), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"check", "-f", file}, strings.Fields(test.args)...)
			out, err := muster(t, args...)
			if want := test.want; want == "" && err != nil || want != "" && (program.ExitCode(err) != 1 || err.Error() != "not healthy: "+want || !strings.Contains(out, "Bundle classes/cni")) {
				t.Errorf("got %v, want %q:\n%s", err, want, out)
			}
		})
	}
}
