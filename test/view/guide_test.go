package view

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

var block = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// TestGuide executes every command of docs/guides/troubleshooting.md, in the cluster that
// its outputs show.
func TestGuide(t *testing.T) {
	guideScene(t)
	commands, outputs := follow(t, newUser(t), "troubleshooting.md", false)
	t.Logf("%d commands, %d outputs", commands, outputs)
	if commands < 12 || outputs < 3 {
		t.Errorf("only %d commands and %d outputs were found", commands, outputs)
	}
}

// TestOutputs executes the commands of every other guide that an output follows, in a cluster with what the programs
// have written when they are run.
func TestOutputs(t *testing.T) {
	root, err := stack.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	guides, err := filepath.Glob(filepath.Join(root, "docs", "guides", "*.md"))
	if err != nil || len(guides) == 0 {
		t.Fatalf("no guides were found: %v", err)
	}
	scene(t, "team", "cluster-team-prod")
	user := newUser(t)
	for _, guide := range guides {
		page := filepath.Base(guide)
		if page == "troubleshooting.md" {
			continue // TestGuide executes all of it.
		}
		t.Run(page, func(t *testing.T) {
			if shown[page] == nil {
				t.Fatal("nothing makes the cluster that its outputs show")
			}
			putFor(t, shown[page](t)...)
			if _, outputs := follow(t, user, page, true); outputs == 0 {
				t.Error("it shows no output")
			}
		})
	}
}

// follow executes the commands of a guide, or only those that have an output. It checks that the command before an output
// prints each of its lines, and returns how many blocks of commands and of outputs it has found.
func follow(t *testing.T, user *fixture.Shell, page string, onlyShown bool) (commands, outputs int) {
	t.Helper()
	root, err := stack.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs", "guides", page))
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	blocks := block.FindAllStringSubmatch(string(guide), -1)
	for i, match := range blocks {
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
		if onlyShown && (i+1 == len(blocks) || blocks[i+1][1] != "text") {
			continue
		}
		last = ""
		for line := range strings.Lines(text) {
			_, out, err := user.Run(ctx, env.Kubeconfig, line)
			if err != nil && !onlyShown { // An output also shows a failure.
				t.Error(err)
			}
			last += out
			commands++
		}
	}
	return commands, outputs
}

// newUser returns a shell with the programs that guides call.
func newUser(t *testing.T) *fixture.Shell {
	t.Helper()
	shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, muster := fixture.Program(".", "./cmd/kubectl-muster", shell.Tools)
	_, clusterctl := fixture.Clusterctl(shell.Tools)
	if err := errors.Join(muster, clusterctl); err != nil {
		t.Fatal(err)
	}
	return shell
}

// putFor creates objects with their status, for one test: others count Clusters.
func putFor(t *testing.T, all ...client.Object) {
	t.Helper()
	t.Cleanup(func() {
		for _, object := range all {
			_ = admin.Delete(ctx, object)
		}
	})
	if err := putAll(all...); err != nil {
		t.Fatal(err)
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
				Type: addonsv1.FleetBundlesReadyCondition, Status: metav1.ConditionFalse, Reason: "BundlesNotReady", Message: "NotReady(1) [Bundle cni]", LastTransitionTime: metav1.Now(),
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
	putFor(t, all...)
}

// shown makes, for each guide, the cluster that its outputs show. Messages are what the programs wrote in make demo.
var shown = map[string]func(*testing.T) []client.Object{
	"charts.md": func(*testing.T) []client.Object {
		proxy := chart("metrics-server", "3.13.0")
		proxy.Status.Conditions = conditions(metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"})
		return append(releases(proxy, "dev", "prod"), proxy)
	},
	"cni.md": func(*testing.T) []client.Object {
		return append(inFleet(metav1.Condition{Type: clusterv1.AvailableCondition, Status: metav1.ConditionTrue, Reason: "Available"}), fixture.Config())
	},
	"fleet.md": func(*testing.T) []client.Object {
		config := fixture.Config()
		config.Status.Conditions = conditions(metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"})
		config.Status.InstalledVersion = "0.16.2"
		return []client.Object{config}
	},
	"gitops.md": func(*testing.T) []client.Object {
		apps := &fleetv1.Bundle{}
		apps.Namespace, apps.Name, apps.Labels = class.Namespace, "apps-hello", map[string]string{fleetv1.RepoLabel: "apps"}
		apps.Spec.Targets = []fleetv1.BundleTarget{{ClusterGroup: "standard.classes"}}
		return append(inFleet(), fixture.Config(), apps, deployed("cluster-team-prod", apps.Name, client.ObjectKey{Namespace: "team", Name: "prod"}))
	},
	"nat.md": func(*testing.T) []client.Object {
		all := objects("team", "till")
		cluster, fleet := all[0].(*clusterv1.Cluster), all[1].(*fleetv1.Cluster)
		cluster.Status.Conditions = conditions(
			metav1.Condition{Type: "FleetImported", Status: metav1.ConditionFalse, Reason: "WaitingForAgent", Message: `its Fleet agent has not checked in yet; once the condition FleetAgentManifestReady is True, apply the manifest in Secret "till-fleet-agent" (key manifest) to the cluster, if its bootstrap does not`},
			metav1.Condition{Type: "FleetAgentManifestReady", Status: metav1.ConditionTrue, Reason: "ManifestReady"})
		fleet.Status.Agent.LastSeen, fleet.Status.Display.ReadyBundles = metav1.Time{}, "0/1"
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "till-fleet-agent"}, Type: "fleet.addons.cluster.x-k8s.io/agent-manifest"}
		secret.Data = map[string][]byte{"manifest": []byte("..."), "token": []byte("...")}
		return append(all, secret, groupAndMapping()[0], groupAndMapping()[1], fixture.Config())
	},
	"rollouts.md": func(t *testing.T) []client.Object {
		proxy := chart("ingress", "1.1.0")
		blocks, err := fixture.Guide("rollouts.md", 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(blocks[0]), proxy); err != nil { // Its spec.rollout.
			t.Fatal(err)
		}
		last := proxy.DeepCopy()
		last.Spec.Rollout, last.Spec.Version = nil, "1.0.1"
		spec, err := json.Marshal(last.Spec)
		if err != nil {
			t.Fatal(err)
		}
		proxy.Status.Rollout = &addonsv1.RolloutStatus{
			Stage: "canary", LastCompleted: &addonsv1.CompletedRollout{Time: metav1.Now(), Version: "1.0.1", Spec: runtime.RawExtension{Raw: spec}},
			Stages: []addonsv1.RolloutStageStatus{{Name: "canary", Clusters: 2, Failing: 1}, {Name: "tenth", Clusters: 3, Held: 3}, {Name: "production", Clusters: 20, Held: 20}},
		}
		proxy.Status.Conditions = conditions(
			metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "HelmReleasesNotReady"},
			metav1.Condition{Type: addonsv1.RolloutCompletedCondition, Status: metav1.ConditionFalse, Reason: addonsv1.RolloutHaltedReason, Message: "stage canary, 0 of 2 updated: the change fails on team/edge"})
		return []client.Object{proxy}
	},
	"upgrades.md": func(t *testing.T) []client.Object {
		began := time.Now()
		held := hold.Decide(hold.State{
			Cluster: hold.Cluster{Version: "v1.37.0", Place: hold.In, Annotations: map[string]string{
				stamp.HoldAnnotation: "30m", stamp.HookAnnotation: hold.Hold{From: "v1.36.3", To: "v1.37.0", Since: began}.String(),
			}},
			Progress: func(hold.Hold) hold.Progress {
				return hold.Progress{Handed: true, Waiting: []string{"Bundle autoscaler"}}
			},
			Now: began,
		})
		return inFleet(*held.Tell)
	},
}

func conditions(all ...metav1.Condition) []metav1.Condition {
	for i := range all {
		all[i].LastTransitionTime, all[i].ObservedGeneration = metav1.Now(), 1
	}
	return all
}

// groupAndMapping are what Muster makes for a class of another namespace.
func groupAndMapping() []client.Object {
	return []client.Object{desired.CrossNamespaceGroup(settings.Default(), "team", class, nil), desired.Mapping(class.Namespace, "team")}
}

// inFleet is Cluster team/prod with these conditions more, and what Muster makes of it.
func inFleet(more ...metav1.Condition) []client.Object {
	all := objects("team", "prod")
	cluster := all[0].(*clusterv1.Cluster)
	cluster.Status.Conditions = append(cluster.Status.Conditions, conditions(more...)...)
	return append(all, groupAndMapping()...)
}

func chart(name, version string) *addonsv1.HelmChartProxy {
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	proxy.Spec = addonsv1.HelmChartProxySpec{ChartName: name, RepoURL: "https://charts.example.com", Version: version, ReleaseNamespace: "default"}
	proxy.Status.MatchingClusters = []corev1.ObjectReference{}
	proxy.Status.ObservedGeneration = 1
	return proxy
}

// releases are those of a HelmChartProxy, ready on these Clusters.
func releases(of *addonsv1.HelmChartProxy, on ...string) (all []client.Object) {
	of.Status.Display = addonsv1.HelmChartProxyDisplay{Version: of.Spec.Version, Clusters: fmt.Sprintf("%d/%[1]d", len(on))}
	for _, name := range on {
		its := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name + "-" + name}}
		its.Spec = addonsv1.HelmReleaseProxySpec{ClusterRef: corev1.ObjectReference{Namespace: of.Namespace, Name: name}, ChartName: of.Spec.ChartName, RepoURL: of.Spec.RepoURL, ReleaseNamespace: of.Spec.ReleaseNamespace}
		its.Status = addonsv1.HelmReleaseProxyStatus{Status: "deployed", Revision: 1, Conditions: conditions(metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"})}
		all = append(all, its)
	}
	return all
}
