package oracle

import (
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

var (
	one        = Key{Namespace: "team", Name: "one"}
	mapping    = Key{Namespace: "lib", Name: "team"}
	crossGroup = Key{Namespace: "team", Name: "small.lib"}
	noon       = metav1.NewTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
)

// scene is an initialized Cluster team/one of the class lib/small.
func scene() State {
	s := NewState()
	for _, name := range []string{"team", "lib", "other"} {
		s.Namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for _, namespace := range []string{"lib", "other"} {
		addClass(&s, Key{Namespace: namespace, Name: "small"})
	}
	s.add("one", "uid-of-one")
	return s
}

func addClass(s *State, key Key) {
	s.Classes[key] = &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: types.UID("class-in-" + key.Namespace)}}
}

func (s *State) add(name string, uid types.UID) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: uid}}
	cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: "small", Namespace: "lib"}
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	s.Clusters[Key{Namespace: "team", Name: name}] = cluster
	return cluster
}

// change is an event that changes a state.
type change func(*State)

// then combines changes, in order.
func then(changes ...change) change {
	return func(s *State) {
		for _, happen := range changes {
			happen(s)
		}
	}
}

// configured writes the FleetAddonConfig.
func configured(cluster addonsv1.ClusterConfig) change {
	return func(s *State) {
		s.Config = &addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Cluster: &cluster}}
	}
}

func named(prefix, suffix string) change {
	return configured(addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: prefix, Suffix: suffix}})
}

// edited changes Cluster one.
func edited(edit func(*clusterv1.Cluster)) change {
	return func(s *State) { edit(s.Clusters[one]) }
}

func annotate(key, value string) change {
	return edited(func(c *clusterv1.Cluster) { c.Annotations = set(c.Annotations, key, value) })
}

func pinned(name string) change {
	return then(annotate(ownedBy, "fleet-addon-config"), annotate(pinnedName, name))
}

func fleet(s *State) *fleetv1.Cluster { return s.FleetClusters[one] }

func converge(s *State)    { *s = Converge(*s) }
func deleteOne(s *State)   { delete(s.Clusters, one) }
func stopGarbage(s *State) { s.GarbageRemains = true }
func addTwo(s *State)      { s.add("two", "uid-of-two") }

// anew makes a Cluster of the same name again, with another UID.
func anew(s *State) {
	s.add("one", "uid-of-one-anew").CreationTimestamp = metav1.NewTime(noon.Add(time.Hour))
}

// foreignOne makes a Fleet Cluster of another client under the name.
func foreignOne(s *State) {
	s.FleetClusters[one] = &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: one.Namespace, Name: one.Name}}
}

func retire(s *State) {
	s.Mappings[mapping].BundleSelector, s.Mappings[mapping].NamespaceSelector = nil, nil
}
func edit(s *State) {
	s.Mappings[mapping].BundleSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"theirs": "x"}}
}

var (
	nobody        = &metav1.LabelSelector{MatchLabels: map[string]string{"import": "yes"}}
	deselect      = configured(addonsv1.ClusterConfig{Selector: nobody})
	deselectAway  = configured(addonsv1.ClusterConfig{Selector: nobody, OnDeselect: addonsv1.DeselectDelete})
	withoutOwners = configured(addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)})
	noGroups      = configured(addonsv1.ClusterConfig{ApplyClassGroup: ptr.To(false)})
	turnOff       = configured(addonsv1.ClusterConfig{Enabled: ptr.To(false)})
	pause         = edited(func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
	toOther       = edited(func(c *clusterv1.Cluster) { c.Spec.Topology.ClassRef.Namespace = "other" })
	classless     = edited(func(c *clusterv1.Cluster) { c.Spec.Topology = clusterv1.Topology{} })
	uninitialize  = edited(func(c *clusterv1.Cluster) { c.Status.Initialization.ControlPlaneInitialized = nil })
	dangle        = edited(func(c *clusterv1.Cluster) {
		c.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "g", Kind: "K", Name: "n"}
	})
)

// made lists Fleet's objects, except the groups of the classes, which are always the same.
func made(s State) string {
	names := missing(s, NewState(), nil)
	return strings.Join(slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "/small") }), ", ")
}

func reason(s State) string {
	if s.Clusters[one] == nil {
		return ""
	}
	if condition := meta.FindStatusCondition(s.Clusters[one].Status.Conditions, importedCondition); condition != nil {
		return string(condition.Status) + " " + condition.Reason
	}
	return ""
}

// TestConverge anchors the rules to the contract. It does not repeat what random runs and integration tests check
// on an API server.
func TestConverge(t *testing.T) {
	const (
		shared = "ClusterGroup team/small.lib, BundleNamespaceMapping lib/team"
		all    = "Fleet Cluster team/one, " + shared
		alone  = "Fleet Cluster team/one"
	)
	isOpened := func(s *State) bool { return len(s.Namespaces["team"].Annotations) > 0 }
	isAnew := func(s *State) bool {
		return fleet(s).Spec.RedeployAgentGeneration == 1 && fleet(s).Annotations[importedFrom] == "one" && !has(fleet(s).Annotations, released)
	}
	untouched := func(s *State) bool {
		return fleet(s).Spec.RedeployAgentGeneration == 0 && !isOwner(fleet(s), "uid-of-one-anew")
	}
	isPinned := func(name string) func(*State) bool {
		return func(s *State) bool { return s.Clusters[one].Annotations[pinnedName] == name }
	}
	for name, test := range map[string]struct {
		happens      change
		made, reason string
		// is checks what else must be true.
		is func(*State) bool
	}{
		"imported":                      {converge, all, "True Imported", nil},
		"not initialized":               {uninitialize, shared, "False WaitingForControlPlane", nil},
		"not initialized any more":      {then(converge, uninitialize), all, "True Imported", nil},
		"rebased":                       {then(converge, toOther), strings.NewReplacer(".lib", ".other", "lib/", "other/").Replace(all), "True Imported", nil},
		"paused and rebased":            {then(converge, pause, toOther), all, "True Paused", nil},
		"paused makes nothing":          {then(pinned("one"), pause), "", "False Paused", nil},
		"moved away":                    {then(converge, pause, converge, deleteOne), all, "", nil},
		"deleted":                       {then(converge, deleteOne), "", "", nil},
		"deleted, with a sibling":       {then(addTwo, converge, deleteOne), "Fleet Cluster team/two, " + shared, "", nil},
		"deselected, Keep":              {then(converge, deselect), all, "True Deselected", nil},
		"deselected, Delete":            {then(converge, deselectAway), "", "", nil},
		"deselected and rebased":        {then(converge, deselect, converge, toOther), all, "True Deselected", nil},
		"turned off":                    {turnOff, "", "", nil},
		"turned off later":              {then(converge, turnOff, deleteOne, stopGarbage), all, "", nil},
		"no groups":                     {then(converge, noGroups), alone, "True Imported", nil},
		"a dangling reference":          {dangle, shared, "False TemplateValuesUnresolved", nil},
		"a dangling reference later":    {then(converge, dangle), all, "True TemplateValuesUnresolved", nil},
		"a foreign Fleet Cluster":       {foreignOne, all, "False NameConflict", nil},
		"naming changed: the pin stays": {then(converge, named("late-", "")), all, "True Imported", nil},
		"a name that Fleet cannot use":  {named("", ".x"), "Fleet Cluster team/one-x-f6ce39dd, " + shared, "True Imported", nil},
		"a forged pin":                  {then(deselect, pinned("one")), "", "False Deselected", func(s *State) bool { return !isOpened(s) }},
		"an altered pin":                {then(converge, pinned("forged")), all, "True Imported", isPinned("one")},
		"a retired mapping":             {then(converge, retire), all, "True Imported", func(s *State) bool { return isLive(s.Mappings[mapping]) }},
		"a retired mapping, deselected": {then(converge, deselect, converge, retire), "Fleet Cluster team/one, ClusterGroup team/small.lib", "True Deselected", nil},
		"a displaced group":             {func(s *State) { addClass(s, crossGroup) }, "ClusterGroup team/small.lib", "False NameConflict", nil},
		"a displaced group later":       {then(converge, func(s *State) { addClass(s, crossGroup) }), all, "True NameConflict", nil},
		"anew, the garbage stays":       {then(converge, stopGarbage, deleteOne, anew), all, "False FleetClusterDeleting", untouched},
		"anew, without owners":          {then(withoutOwners, converge, deleteOne, anew), all, "True Imported", isAnew},
	} {
		t.Run(name, func(t *testing.T) {
			s := scene()
			test.happens(&s)
			s = Converge(s)
			if got := made(s) + "; " + reason(s); got != test.made+"; "+test.reason {
				t.Errorf("made\n  %s\nwant\n  %s; %s", got, test.made, test.reason)
			}
			if test.is != nil && !test.is(&s) {
				t.Errorf("not as it must be:\n%s", Diff(nil, View(s)))
			}
			if diff := Diff(View(s), View(Converge(s))); diff != "" {
				t.Errorf("not at rest:\n%s", diff)
			}
		})
	}
}

// TestDiff checks that Diff finds a difference in every kind of object.
func TestDiff(t *testing.T) {
	s := Converge(scene())
	for where, alter := range map[string]change{
		"Fleet Cluster team/one":          func(s *State) { fleet(s).Spec.AgentNamespace = "x" },
		"ClusterGroup team/small.lib":     func(s *State) { delete(s.Groups, crossGroup) },
		"BundleNamespaceMapping lib/team": edit,
		"Namespace /team":                 func(s *State) { s.Namespaces["team"].Annotations = nil },
		"Cluster team/one":                pinned("x"),
		"what must not be there":          func(s *State) { s.Helm.Wrong = []string{"x"} },
	} {
		seen := s.Copy()
		alter(&seen)
		if diff := Diff(View(s), View(seen)); !strings.Contains(diff, where) || strings.Count(diff, "@@") != 2 {
			t.Errorf("%s: the difference is\n%s", where, diff)
		}
	}
}

// agentInitiated turns the Cluster into one without a topology whose agent must register itself.
func agentInitiated(s *State) {
	s.AgentInitiated.Registrar, s.AgentInitiated.Server = true, "https://fleet.example.com"
	then(classless, uninitialize, annotate(registration, "agent"))(s)
}

// TestRecognize checks that a new clientID is distinguished from an old one and from one that is too short.
func TestRecognize(t *testing.T) {
	was := scene()
	agentInitiated(&was)
	was.FleetClusters[Key{Namespace: "team", Name: "other"}] = &fleetv1.Cluster{Spec: fleetv1.ClusterSpec{ClientID: strings.Repeat("o", 30)}}
	want := Converge(was)
	for id, is := range map[string]bool{strings.Repeat("n", 26): true, strings.Repeat("o", 30): false, "short": false} {
		seen := want.Copy()
		seen.FleetClusters[one].Spec.ClientID = id
		if got := Diff(View(want), View(Recognize(want, seen))) == ""; got != is {
			t.Errorf("%q is recognized: %t, want %t", id, got, is)
		}
	}
}

// TestFleetAnswers checks that FleetAnswers turns requests alone into a Cluster whose agent has checked in.
func TestFleetAnswers(t *testing.T) {
	s := scene()
	agentInitiated(&s)
	s = FleetAnswers(s, func(fleet *fleetv1.Cluster) string { return "of " + fleet.Name })
	if got, want := reason(s)+" "+string(s.AgentInitiated.Manifests[ManifestOf(one)].Data["token"]), "True Imported of one"; got != want {
		t.Errorf("it comes to %s, want %s", got, want)
	}
	if diff := Diff(View(s), View(Converge(s))); diff != "" {
		t.Errorf("not at rest:\n%s", diff)
	}
}
