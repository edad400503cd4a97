package oracle

import (
	"maps"
	"slices"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

var one = Key{Namespace: "team", Name: "one"}

// scene is an initialized Cluster team/one of the class lib/small.
func scene() State {
	s := NewState()
	for _, name := range []string{"team", "lib", "other"} {
		s.Namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for _, namespace := range []string{"lib", "other"} {
		s.Classes[Key{Namespace: namespace, Name: "small"}] = &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "small", UID: types.UID("class-in-" + namespace), Labels: map[string]string{"tier": "gold", "both": "class"},
		}}
	}
	s.add("one")
	return s
}

func (s *State) add(name string) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: "uid-of-one", Labels: map[string]string{"both": "cluster", "fleet.cattle.io/shard-ref": "x"},
	}}
	cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: "small", Namespace: "lib"}
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	s.Clusters[Key{Namespace: "team", Name: name}] = cluster
	return cluster
}

func (s *State) configure(cluster addonsv1.ClusterConfig) {
	s.Config = &addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Cluster: &cluster}}
}

// made lists the objects of Fleet, each as kind and name.
func made(s State) string {
	var names []string
	for key := range s.FleetClusters {
		names = append(names, "cluster "+key.String())
	}
	for key := range s.Groups {
		names = append(names, "group "+key.String())
	}
	for key := range s.Mappings {
		names = append(names, "mapping "+key.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func reason(s State) string {
	if condition := meta.FindStatusCondition(s.Clusters[one].Status.Conditions, importedCondition); condition != nil {
		return string(condition.Status) + " " + condition.Reason
	}
	return ""
}

const all = "cluster team/one, group lib/small, group other/small, group team/small.lib, mapping lib/team"

func TestSettle(t *testing.T) {
	for name, test := range map[string]struct {
		// before is what happened before Muster came to rest once, then what happened since.
		before, since func(*State)
		made, reason  string
	}{
		"imported": {made: all, reason: "True Imported"},
		"not initialized": {
			before: func(s *State) { s.Clusters[one].Status.Initialization.ControlPlaneInitialized = nil },
			made:   "group lib/small, group other/small, group team/small.lib, mapping lib/team", reason: "False WaitingForControlPlane",
		},
		"not initialized any more": {
			since: func(s *State) { s.Clusters[one].Status.Initialization.ControlPlaneInitialized = ptr.To(false) },
			made:  all, reason: "True Imported",
		},
		"an explicit reference to the own namespace": {
			before: func(s *State) { s.Clusters[one].Spec.Topology.ClassRef.Namespace = "team" },
			made:   "cluster team/one, group lib/small, group other/small", reason: "True Imported",
		},
		"rebased": {
			since:  func(s *State) { s.Clusters[one].Spec.Topology.ClassRef.Namespace = "other" },
			made:   "cluster team/one, group lib/small, group other/small, group team/small.other, mapping other/team",
			reason: "True Imported",
		},
		"paused, then rebased: nothing is made": {
			since: func(s *State) {
				s.Clusters[one].Spec.Paused = ptr.To(true)
				s.Clusters[one].Spec.Topology.ClassRef.Namespace = "other"
			},
			made: all, reason: "True Paused",
		},
		"deselected, Keep": {
			since: func(s *State) {
				s.configure(addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"import": "yes"}}})
			},
			made: all, reason: "True Deselected",
		},
		"deselected, Delete": {
			since: func(s *State) {
				s.configure(addonsv1.ClusterConfig{
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"import": "yes"}}, OnDeselect: "Delete"})
			},
			made: "group lib/small, group other/small",
		},
		"naming changed: the pin stays": {
			since: func(s *State) { s.configure(addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: "late-"}}) },
			made:  all, reason: "True Imported",
		},
		"naming": {
			before: func(s *State) {
				s.configure(addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: "capi-", Suffix: ".x"}})
			},
			made: strings.Replace(all, "team/one", "team/capi-one-x-e3f81ce7", 1), reason: "True Imported",
		},
		"a section without the field, and off": {
			since: func(s *State) { s.configure(addonsv1.ClusterConfig{ApplyClassGroup: ptr.To(false)}) },
			made:  "cluster team/one, group lib/small, group other/small", reason: "True Imported",
		},
		"a foreign Fleet Cluster has the name": {
			before: func(s *State) {
				s.FleetClusters[one] = &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"}}
			},
			made: all, reason: "False NameConflict",
		},
		"a reference that leads nowhere": {
			before: func(s *State) {
				s.Clusters[one].Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "g", Kind: "K", Name: "n"}
			},
			made: "group lib/small, group other/small, group team/small.lib, mapping lib/team", reason: "False TemplateValuesUnresolved",
		},
		"a reference that leads nowhere any more": {
			since: func(s *State) {
				s.Clusters[one].Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "g", Kind: "K", Name: "n"}
			},
			made: all, reason: "True TemplateValuesUnresolved",
		},
		"turned off": {
			before: func(s *State) { s.configure(addonsv1.ClusterConfig{Enabled: ptr.To(false)}) },
			made:   "group lib/small, group other/small",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := scene()
			if test.before != nil {
				test.before(&s)
			}
			s = Settle(s)
			if test.since != nil {
				test.since(&s)
				s = Settle(s)
			}
			if got := made(s); got != test.made {
				t.Errorf("made\n  %s\nwant\n  %s", got, test.made)
			}
			if got := reason(s); got != test.reason {
				t.Errorf("%s = %q, want %q", importedCondition, got, test.reason)
			}
			if diff := Diff(View(s), View(Settle(s))); diff != "" {
				t.Errorf("not at rest:\n%s", diff)
			}
		})
	}
}

func TestDeletion(t *testing.T) {
	s := scene()
	two := s.add("two")
	two.UID = "uid-of-two"
	s = Settle(s)
	delete(s.Clusters, one)
	s = Settle(s)
	if got, want := made(s), strings.Replace(all, "team/one", "team/two", 1); got != want {
		t.Errorf("with a sibling: made\n  %s\nwant\n  %s", got, want)
	}
	clear(s.Clusters)
	s = Settle(s)
	if got, want := made(s), "group lib/small, group other/small"; got != want {
		t.Errorf("after the last: made\n  %s\nwant\n  %s", got, want)
	}
	if len(s.Namespaces["team"].Annotations) != 0 {
		t.Errorf("the Namespace is still annotated: %v", s.Namespaces["team"].Annotations)
	}
}

func TestMoved(t *testing.T) {
	s := Settle(scene())
	s.Clusters[one].Spec.Paused = ptr.To(true)
	s = Settle(s)
	delete(s.Clusters, one)
	if got := made(Settle(s)); got != all {
		t.Errorf("a Cluster that was moved leaves\n  %s\nwant\n  %s", got, all)
	}
}

func TestMetadata(t *testing.T) {
	s := Settle(scene())
	want := map[string]string{
		"both": "cluster", "tier": "gold", managedBy: "muster",
		"clusterclass-name.fleet.addons.cluster.x-k8s.io": "small", "clusterclass-namespace.fleet.addons.cluster.x-k8s.io": "lib",
	}
	if got := s.FleetClusters[one].Labels; !maps.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	want["both"] = "class"
	if got := s.Groups[Key{Namespace: "team", Name: "small.lib"}].Labels; !maps.Equal(got, want) {
		t.Errorf("labels of the group %v, want %v", got, want)
	}
}

func TestDiff(t *testing.T) {
	want := "--- a\nx: 1\n--- b\none\ntwo\nthree\nfour\nfive"
	got := strings.Replace(want, "four", "vier", 1)
	expected := "--- expected\n+++ seen\n@@ b @@\n one\n two\n three\n-four\n+vier\n five\n"
	if diff := Diff(want, got); diff != expected {
		t.Errorf("Diff =\n%s\nwant\n%s", diff, expected)
	}
}
