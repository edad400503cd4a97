package view

import (
	"fmt"
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// A Cluster that is attached to a Fleet Cluster of Rancher's has the state of that Fleet Cluster. Without the
// Cluster's own condition, the annotation of the Fleet Cluster means nothing.
func TestAttached(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "c-abcde", Annotations: map[string]string{stamp.AttachedAnnotation: "team/prod"}}}
	fleet.Status.Agent.LastSeen = metav1.NewTime(now.Add(-time.Minute))
	for name, test := range map[string]struct {
		status metav1.ConditionStatus
		reason string
		state  State
		want   string
	}{
		"attached": {"True", "Attached", Ready, reasonReady},
		"waiting":  {"False", "WaitingForRancher", Waiting, "WaitingForRancher"},
		"twice":    {"True", "DoubleImport", Problem, reasonNoFleet},
		"imported": {"True", "Imported", Problem, reasonNoFleet},
	} {
		t.Run(name, func(t *testing.T) {
			objects := NewObjects()
			objects.Now = now
			objects.Clusters[types.NamespacedName{Namespace: "team", Name: "prod"}] = &CAPICluster{Imported: &Condition{Status: test.status, Reason: test.reason}}
			objects.FleetClusters[types.NamespacedName{Namespace: "fleet-default", Name: "c-abcde"}] = CutFleetCluster(fleet)
			var seen []*Node
			Build(objects).Walk(func(node, _ *Node) {
				if node.Kind == Cluster || node.Kind == FleetCluster {
					seen = append(seen, node)
				}
			})
			if seen[0].State != test.state || seen[0].Reason != test.want || (len(seen) == 1) != (test.reason == "Attached") {
				t.Errorf("%s %s, want %s %s; %d nodes", seen[0].State, seen[0].Reason, test.state, test.want, len(seen))
			}
		})
	}
}

// A note names the Cluster that is the management cluster itself, if it is in Fleet.
func TestItself(t *testing.T) {
	cluster := &clusterv1.Cluster{}
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
	const note = "Cluster mgmt/self is this management cluster itself: who may write Bundles for it is cluster-admin here"
	for _, test := range []struct {
		server string
		status metav1.ConditionStatus
		want   bool
	}{
		{"10.0.0.1:6443", "True", true},
		{"10.0.0.1:6443", "False", false},
		{"10.0.0.2:6443", "True", false},
		{"", "True", false},
	} {
		objects := NewObjects()
		objects.Server = test.server
		cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: test.status, Reason: "Imported"}}
		objects.Clusters[types.NamespacedName{Namespace: "mgmt", Name: "self"}] = CutCluster(cluster)
		if notes := Build(objects).Notes; slices.Contains(notes, note) != test.want {
			t.Errorf("%+v: %q", test, notes)
		}
	}
}

// A held upgrade is a state, unless there is a worse one: then the message says both.
func TestHeld(t *testing.T) {
	const held = "v1.36.3 to v1.37.0: the upgrade is held until 2026-11-25T14:26:31Z at the latest: not ready: HelmChartProxy team/ingress"
	const says = "until 14:26 UTC: not ready: HelmChartProxy team/ingress"
	now := time.Date(2026, 11, 25, 14, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		message  string
		status   metav1.ConditionStatus // of the hold
		imported Condition
		fleet    fleetv1.BundleState
		want     verdict
	}{
		"nothing else":   {held, "True", Condition{Status: "True", Reason: "Imported"}, "", verdict{Waiting, "UpgradeHeld", says}},
		"it has ended":   {held, "False", Condition{Status: "True", Reason: "Imported"}, "", verdict{Ready, "Ready", ""}},
		"paused":         {held, "True", Condition{Status: "True", Reason: "Paused", Message: "it is paused"}, "", verdict{Waiting, "UpgradeHeld", says + "; Paused: it is paused"}},
		"waits already":  {held, "True", Condition{Status: "True", Reason: "Imported"}, fleetv1.WaitApplied, verdict{Waiting, "WaitApplied", "UpgradeHeld " + says}},
		"failed":         {held, "True", Condition{Status: "False", Reason: "Failed", Message: "no"}, "", verdict{Problem, "Failed", "no; UpgradeHeld " + says}},
		"other messages": {"held", "True", Condition{Status: "True", Reason: "Imported"}, "", verdict{Waiting, "UpgradeHeld", "held"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := NewObjects()
			objects.Now = now
			key := types.NamespacedName{Namespace: "team", Name: "prod"}
			cluster := &clusterv1.Cluster{}
			cluster.Status.Conditions = []metav1.Condition{
				{Type: addonsv1.FleetImportedCondition, Status: test.imported.Status, Reason: test.imported.Reason, Message: test.imported.Message},
				{Type: addonsv1.FleetUpgradeHeldCondition, Status: test.status, Reason: addonsv1.WaitingForAddOnsReason, Message: test.message},
			}
			objects.Clusters[key] = CutCluster(cluster)
			objects.Clusters[key].Pin.ClusterName = key.Name
			objects.FleetClusters[key] = &InFleet{Ours: true, LastSeen: now, State: string(test.fleet)}
			Build(objects).Walk(func(node, _ *Node) {
				if got := (verdict{node.State, node.Reason, node.Message}); node.Kind == Cluster && got != test.want {
					t.Errorf("got %+v, want %+v", got, test.want)
				}
			})
		})
	}
}

// Messages with any number of names of Bundles, which tenants write, hold nobody up who looks at the graph.
func TestManyNamesInMessages(t *testing.T) {
	took := func(text string) time.Duration {
		objects := NewObjects()
		for i := range 300 {
			proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("p", i)}}
			objects.Proxies[types.NamespacedName{Namespace: "team", Name: proxy.Name}] = CutProxy(proxy)
		}
		for i := range 100 {
			message := ""
			for j := range 100 {
				message += fmt.Sprintf("%s%d-%d ", text, i, j)
			}
			objects.Clusters[types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)}] = &CAPICluster{Imported: &Condition{Status: metav1.ConditionFalse, Reason: "Failed", Message: message}}
		}
		begin := time.Now()
		Build(objects)
		return time.Since(begin)
	}
	if usual, many := took("Bundle of-"), took("Bundle hcp-"); many > 50*usual+time.Second {
		t.Errorf("%s with names, %s without", many, usual)
	}
}
