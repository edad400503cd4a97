package sync

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// Any caller that knows a clientID can call as the cluster, so the syncer replaces a guessable ID,
// unless a working agent uses it.
func TestClientID(t *testing.T) {
	const long = "0123456789abcdef"
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		had       string
		checkedIn bool
		keeps     bool
		live      string // what Fleet has drawn meanwhile
	}{
		"none":                           {},
		"drawn":                          {had: long, keeps: true},
		"guessed":                        {had: "edge-1"},
		"guessed, of a live agent":       {had: "edge-1", checkedIn: true, keeps: true},
		"none, though it has checked in": {checkedIn: true},
		"none that is seen yet":          {live: long},
	} {
		live := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "edge"}}
		live.Spec.ClientID = test.had + test.live
		s := &scope{byAgent: true, cluster: &clusterv1.Cluster{ObjectMeta: live.ObjectMeta}, fleetState: fleetState{fleet: live.DeepCopy()}}
		if s.fleet.Spec.ClientID = test.had; test.checkedIn {
			s.fleet.Status.Agent.LastSeen = metav1.NewTime(time.Now())
		}
		r := &clusterReconciler{live: fake.NewClientBuilder().WithScheme(scheme).WithObjects(live).Build()}
		got, err := r.clientID(t.Context(), s)
		if test.live != "" {
			if !apierrors.IsConflict(err) {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if keeps := got == test.had; keeps != test.keeps || !keeps && len(got) < 26 {
			t.Errorf("%s: %q becomes %q", name, test.had, got)
		}
	}
}

// A clientID stays when a Cluster turns to the manager, whether Muster or Fleet drew it, and changes
// no hash: otherwise the clientID that Fleet draws after an import would cause another write of the
// Fleet Cluster.
func TestClientIDIsRetained(t *testing.T) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "edge"}}
	s := &scope{in: settings.Default(), cluster: cluster}
	first := s.wants("", nil)
	s.fleet = first.DeepCopy()
	s.fleet.Spec.ClientID = "drawn"
	again := s.wants("", nil)
	if again.Spec.ClientID != "drawn" || again.Spec.KubeConfigSecret != "edge-kubeconfig" || kube.Differs(again, s.fleet) {
		t.Errorf("it is to become %+v", again.Spec)
	}
	if one, other := first.Annotations[desired.HashAnnotation], again.Annotations[desired.HashAnnotation]; one != other {
		t.Errorf("the hash changes from %s to %s", one, other)
	}
}

// An apply without the clientID would remove it.
func TestClientIDOutlivesAStaleCache(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	live := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "edge"}}
	for reason, refused := range map[string]bool{addonsv1.WaitingForAgentReason: true, addonsv1.RegistrarMissingReason: true, addonsv1.ImportedReason: false, addonsv1.WaitingForControlPlaneReason: false} {
		s := &scope{cluster: &clusterv1.Cluster{ObjectMeta: live.ObjectMeta}}
		s.cluster.Annotations = map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "edge"}
		s.cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Reason: reason}}
		for _, there := range []bool{true, false} {
			builder := fake.NewClientBuilder().WithScheme(scheme)
			if there {
				builder = builder.WithObjects(live)
			}
			r := &clusterReconciler{live: builder.Build()}
			if got, err := r.clientID(t.Context(), s); got != "" || apierrors.IsConflict(err) != (refused && there) {
				t.Errorf("%s, there is one: %v: got %q, %v", reason, there, got, err)
			}
		}
	}
}

// The agent of a Cluster that registers itself cannot follow spec.cluster.agentNamespace.
func TestAgentNamespace(t *testing.T) {
	own := func(change func(*metFleet)) *metFleet {
		fleet := &metFleet{relation: stamp.Own, ours: true, owned: true, checkedIn: true}
		change(fleet)
		return fleet
	}
	for name, test := range map[string]struct {
		met      met
		runs     string // where the agent says that it runs
		written  string // where the Fleet Cluster says that it is to
		retained bool
	}{
		"by the manager":                  {met: met{fleet: own(func(*metFleet) {}), initialized: true}, runs: "here"},
		"by agent":                        {met: met{byAgent: true, fleet: own(func(f *metFleet) { f.initiated = true })}, runs: "here", retained: true},
		"by agent, says nothing":          {met: met{byAgent: true, fleet: own(func(f *metFleet) { f.initiated = true })}},
		"by agent, has not checked in":    {met: met{byAgent: true, fleet: own(func(f *metFleet) { f.initiated, f.checkedIn = true, false })}, runs: "here"},
		"by agent, a namesake's called":   {met: met{byAgent: true, fleet: own(func(f *metFleet) { f.initiated, f.inherited = true, time.Minute })}, runs: "here", written: settings.Default().Cluster.AgentNamespace},
		"handed over with its agent":      {met: met{byAgent: true, fleet: own(func(f *metFleet) { f.initiated, f.inherited = true, time.Minute })}, runs: "here", retained: true},
		"from the manager to the agent":   {met: met{byAgent: true, initialized: true, fleet: own(func(*metFleet) {})}, runs: "here", retained: true},
		"from the agent to the manager":   {met: met{initialized: true, fleet: own(func(f *metFleet) { f.initiated = true })}, runs: "here"},
		"before its control plane, still": {met: met{fleet: own(func(f *metFleet) { f.initiated = true })}, runs: "here", retained: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.met.scope()
			s.fleet.Status.Agent.Namespace, s.fleet.Spec.AgentNamespace = test.runs, test.written
			want := s.in.Cluster.AgentNamespace
			if test.retained {
				want = test.runs
			}
			if got := s.agentNamespace(); got != want {
				t.Errorf("agentNamespace = %q, want %q", got, want)
			}
			if note := s.agentNote(); (note != "") != test.retained {
				t.Errorf("it says %q", note)
			}
		})
	}
}
