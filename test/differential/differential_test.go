// Package differential compares the packages targets and rollout with Fleet's own code, which the program in
// testdata/fleet calls, on cases drawn at random.
package differential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/view/rollout"
	"github.com/muster-fleet/muster/internal/view/targets"
)

type question struct {
	Bundle     *fleetv1.Bundle
	Clusters   []*fleetv1.Cluster
	Groups     []*fleetv1.ClusterGroup
	Mappings   []*fleetv1.BundleNamespaceMapping
	Namespaces []*corev1.Namespace
	States     []rollout.State
}

type answer struct {
	Targets      []string
	Error        string
	Moved        []string
	RolloutError string
}

// drawer draws questions. There is little to choose from, so that much of it matches.
type drawer struct{ *rand.Rand }

func (d drawer) one(of ...string) string { return of[d.IntN(len(of))] }

func (d drawer) labels() map[string]string {
	result := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if d.IntN(2) == 0 {
			result[key] = d.one("1", "2")
		}
	}
	if d.IntN(8) == 0 {
		result["management.cattle.io/cluster-display-name"] = d.one("c0", "c1")
	}
	if d.IntN(8) == 0 {
		result[d.one("x.cattle.io/y", "fleet.cattle.io/z")] = "hidden-or-not"
	}
	return result
}

func (d drawer) selector() *metav1.LabelSelector {
	switch d.IntN(8) {
	case 0, 1:
		return nil
	case 2:
		return &metav1.LabelSelector{}
	case 3:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: d.one("a", "b"), Operator: metav1.LabelSelectorOperator(d.one("Exists", "DoesNotExist"))}}}
	case 4:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOperator(d.one("In", "NotIn")), Values: []string{"1"}}}}
	default:
		return &metav1.LabelSelector{MatchLabels: map[string]string{d.one("a", "b"): d.one("1", "2")}}
	}
}

func (d drawer) maybe(of ...string) string {
	if d.IntN(3) > 0 {
		return ""
	}
	return d.one(of...)
}

func (d drawer) target() fleetv1.BundleTarget {
	result := fleetv1.BundleTarget{
		Name: d.maybe("t1", "t2"), ClusterName: d.maybe("c0", "c1", "c2"), ClusterGroup: d.maybe("g0", "g1"),
		ClusterSelector: d.selector(), ClusterGroupSelector: nil, DoNotDeploy: d.IntN(8) == 0,
	}
	if d.IntN(3) == 0 {
		result.ClusterGroupSelector = d.selector()
	}
	if d.IntN(20) == 0 {
		result.ClusterSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	}
	return result
}

func (d drawer) question() *question {
	namespaces := []string{"lib", "x", "y"}
	q := &question{Bundle: &fleetv1.Bundle{}}
	q.Bundle.Namespace, q.Bundle.Name, q.Bundle.Labels = "lib", "bundle", d.labels()
	for range 1 + d.IntN(3) {
		q.Bundle.Spec.Targets = append(q.Bundle.Spec.Targets, d.target())
	}
	q.Bundle.Spec.TargetCustomizationMode = fleetv1.TargetCustomizationMode(d.one("", "FirstMatch", "AllMatches"))
	if d.IntN(2) == 0 { // As from a GitRepo: its targets come last, and are restrictions, too.
		for range 1 + d.IntN(len(q.Bundle.Spec.Targets)) {
			of := q.Bundle.Spec.Targets[len(q.Bundle.Spec.Targets)-1-len(q.Bundle.Spec.TargetRestrictions)]
			q.Bundle.Spec.TargetRestrictions = append(q.Bundle.Spec.TargetRestrictions, fleetv1.BundleTargetRestriction{
				ClusterName: of.ClusterName, ClusterGroup: of.ClusterGroup, ClusterSelector: of.ClusterSelector, ClusterGroupSelector: of.ClusterGroupSelector,
			})
		}
	}
	for _, name := range namespaces {
		namespace := &corev1.Namespace{}
		namespace.Name, namespace.Labels = name, d.labels()
		q.Namespaces = append(q.Namespaces, namespace)
		for i := range 2 {
			cluster := &fleetv1.Cluster{}
			cluster.Namespace, cluster.Name, cluster.Labels = name, fmt.Sprintf("c%d", i), d.labels()
			group := &fleetv1.ClusterGroup{}
			group.Namespace, group.Name, group.Labels, group.Spec.Selector = name, fmt.Sprintf("g%d", i), d.labels(), d.selector()
			q.Clusters, q.Groups = append(q.Clusters, cluster), append(q.Groups, group)
		}
	}
	for i := range d.IntN(3) {
		mapping := &fleetv1.BundleNamespaceMapping{BundleSelector: d.selector(), NamespaceSelector: d.selector()}
		mapping.Namespace, mapping.Name = d.one("lib", "lib", "x"), fmt.Sprintf("m%d", i)
		q.Mappings = append(q.Mappings, mapping)
	}
	return q
}

// ask answers a question by our rules.
func ask(q *question) answer {
	result := answer{Targets: []string{}}
	for i, cluster := range q.Clusters {
		namespace := q.Namespaces[i/2]
		if !targets.ReachOf(q.Bundle, namespace.Name, namespace.Labels, q.Mappings).Reaches() {
			continue
		}
		in, _ := targets.GroupsOf(cluster, q.Groups)
		match := targets.MatchOf(q.Bundle, cluster, in)
		if match.Invalid != nil {
			return answer{Error: match.Invalid.Error()}
		}
		if !match.Deploys() {
			continue
		}
		result.Targets = append(result.Targets, cluster.Namespace+"/"+cluster.Name)
	}
	if indexed := askIndex(q); !slices.Equal(indexed, slices.Sorted(slices.Values(result.Targets))) {
		return answer{Error: fmt.Sprintf("by the index it is for %v", indexed)}
	}
	return result
}

// askIndex answers a question by the index for many Bundles.
func askIndex(q *question) (result []string) {
	namespaces := map[string]map[string]string{}
	for _, namespace := range q.Namespaces {
		namespaces[namespace.Name] = namespace.Labels
	}
	members, err := targets.NewIndex(q.Clusters, q.Groups, q.Mappings, namespaces).MembersOf(q.Bundle)
	if err != nil {
		return []string{err.Error()}
	}
	for _, member := range members {
		result = append(result, member.String())
	}
	slices.Sort(result)
	return result
}

// buildFleet builds the program with the requirements of the local stack's Fleet. Only
// packages below Fleet's module path may import its internal packages: for this build the
// module has such a path.
func buildFleet(t *testing.T) string {
	t.Helper()
	if fleetProgram != "" {
		return fleetProgram
	}
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		t.Fatal(err)
	}
	built = dir
	if err := os.CopyFS(dir, os.DirFS("../parts/controllers")); err != nil {
		t.Fatal(err)
	}
	modfile, program := filepath.Join(dir, "go.mod"), filepath.Join(dir, "program")
	for _, args := range [][]string{
		{"mod", "edit", "-module=github.com/rancher/fleet/muster", modfile},
		{"build", "-modfile=" + modfile, "-o", program, "./testdata/fleet"},
	} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v: %s", args, err, out)
		}
	}
	fleetProgram = program
	return program
}

// fleetProgram is the program, built once for all tests, in the folder built.
var fleetProgram, built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// askFleet has Fleet's code answer.
func askFleet(t *testing.T, program string, asked []*question) []answer {
	t.Helper()
	var in, stderr bytes.Buffer
	for _, q := range asked {
		if err := json.NewEncoder(&in).Encode(q); err != nil {
			t.Fatal(err)
		}
	}
	fleet := exec.Command(program)
	fleet.Stdin, fleet.Stderr = &in, &stderr
	out, err := fleet.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	result := make([]answer, len(asked))
	answers := json.NewDecoder(bytes.NewReader(out))
	for i := range result {
		if err := answers.Decode(&result[i]); err != nil {
			t.Fatal(err)
		}
	}
	return result
}

// TestAgainstFleet compares both on thousands of cases.
func TestAgainstFleet(t *testing.T) {
	const cases = 4000
	fleet := buildFleet(t)
	d := drawer{rand.New(rand.NewPCG(15, 1))}
	var asked []*question
	for range cases {
		asked = append(asked, d.question())
	}
	answers := askFleet(t, fleet, asked)
	with, without, failed, wrong := 0, 0, 0, 0
	for i, q := range asked {
		want, got := answers[i], ask(q)
		slices.Sort(want.Targets)
		slices.Sort(got.Targets)
		switch {
		case want.Error != "":
			failed++
		case len(want.Targets) > 0:
			with++
		default:
			without++
		}
		if (got.Error == "") != (want.Error == "") || want.Error == "" && !slices.Equal(got.Targets, want.Targets) {
			if wrong++; wrong <= 3 {
				text, _ := json.Marshal(q)
				t.Errorf("case %d: got %+v, Fleet says %+v:\n%s", i, got, want, text)
			}
		}
	}
	t.Logf("%d cases: %d with targets, %d without, %d with an error; %d differ", cases, with, without, failed, wrong)
	if with < cases/10 || without < cases/10 || failed < cases/20 {
		t.Error("the cases are too much alike")
	}
}
