package view

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/internal/sync"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

var block = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// TestGuide executes every command of docs/guides/troubleshooting.md, in the cluster that
// its outputs show: each line of an output is in what the command before prints.
func TestGuide(t *testing.T) {
	guideScene(t)
	root, err := stack.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs", "guides", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, muster := fixture.Program(".", "./cmd/kubectl-muster", shell.Tools)
	_, clusterctl := fixture.Clusterctl(shell.Tools)
	if err := errors.Join(muster, clusterctl); err != nil {
		t.Fatal(err)
	}
	commands, outputs, last := 0, 0, ""
	for _, match := range block.FindAllStringSubmatch(string(guide), -1) {
		kind, text := match[1], match[2]
		if kind == "text" {
			outputs++
			for want := range strings.Lines(text) {
				if want = strings.TrimRight(want, "\n"); !hasLine(last, want) {
					t.Errorf("no line starts with the words of\n%s\nin\n%s", want, last)
				}
			}
			continue
		}
		last = ""
		for line := range strings.Lines(text) {
			_, out, err := shell.Run(ctx, env.Kubeconfig, line)
			if err != nil {
				t.Error(err)
			}
			last += out
			commands++
		}
	}
	t.Logf("%d commands, %d outputs", commands, outputs)
	if commands < 12 || outputs < 3 {
		t.Errorf("only %d commands and %d outputs were found", commands, outputs)
	}
}

// hasLine reports whether a line of a text starts with the words of another line, of which
// "…" is any word: an age differs.
func hasLine(text, want string) bool {
	var words []string
	for _, word := range strings.Fields(want) {
		if word = regexp.QuoteMeta(word); word == "…" {
			word = `\S+`
		}
		words = append(words, word)
	}
	return regexp.MustCompile(`(?m)^\s*` + strings.Join(words, `\s+`)).MatchString(text)
}

// guideScene makes the cluster that the guide shows.
func guideScene(t *testing.T) {
	t.Helper()
	scene(t, "team-a", "cluster-team-a-prod")
	var all []client.Object
	for _, key := range [][2]string{{class.Namespace, "dev"}, {"team-a", "edge"}, {"team-a", "prod"}, {"team-a", "staging"}} {
		made := objects(key[0], key[1])
		cluster, fleet := made[0].(*clusterv1.Cluster), made[1].(*fleetv1.Cluster)
		switch key[1] {
		case "edge":
			fleet.Status.Agent.LastSeen = metav1.NewTime(time.Now().Add(-time.Hour))
		case "prod":
			fleet.Status.Display = fleetv1.ClusterDisplay{State: string(fleetv1.NotReady), ReadyBundles: "1/2"}
			fleet.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: corev1.ConditionFalse, Message: "NotReady(1) [Bundle cni]"}}
			cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{
				Type: sync.BundlesReadyCondition, Status: metav1.ConditionFalse, Reason: "BundlesNotReady", Message: "NotReady(1) [Bundle cni]", LastTransitionTime: metav1.Now(),
			})
		case "staging":
			condition := &cluster.Status.Conditions[0]
			condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "WaitingForControlPlane", "the control plane is not initialized yet"
			made = made[:1]
		}
		all = append(all, made...)
	}
	prod := client.ObjectKey{Namespace: "team-a", Name: "prod"}
	failing := deployed("cluster-team-a-prod", "cni", prod)
	failing.Status.Ready, failing.Status.ResourceCounts.Ready = false, 5
	resource := fleetv1.NonReadyStatus{Kind: "DaemonSet", Namespace: "kube-system", Name: "calico-node"}
	resource.Summary.State, resource.Summary.Message = "in-progress", []string{"Available: 1/3"}
	failing.Status.NonReadyStatus = []fleetv1.NonReadyStatus{resource}
	all = append(all, failing, deployed("cluster-team-a-prod", "monitoring", prod), desired.CrossNamespaceGroup(settings.Default(), "team-a", class, nil), desired.Mapping(class.Namespace, "team-a"))
	for name, selector := range map[string]map[string]string{"cni": {}, "gpu": {"gpu": "yes"}} {
		bundle := &fleetv1.Bundle{}
		bundle.Namespace, bundle.Name = class.Namespace, name
		bundle.Spec.Targets = []fleetv1.BundleTarget{{Name: "all", ClusterSelector: &metav1.LabelSelector{MatchLabels: selector}}}
		all = append(all, bundle)
	}
	all = append(all, fixture.Config())
	t.Cleanup(func() { // Other tests count Clusters.
		for _, object := range all {
			_ = admin.Delete(ctx, object)
		}
	})
	if err := putAll(all...); err != nil {
		t.Fatal(err)
	}
}
