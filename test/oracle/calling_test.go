package oracle

import (
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

// caller makes it a Cluster without topology whose agent is to call.
func caller(s *State) {
	s.Calling.Registrar, s.Calling.Server = true, "https://fleet.example.com"
	s.Clusters[one].Spec.Topology = clusterv1.Topology{}
	s.Clusters[one].Status.Initialization.ControlPlaneInitialized = nil
	annotate(registration, "agent")(s)
}

func annotate(key, value string) change {
	return func(s *State) {
		s.Clusters[one].Annotations = set(s.Clusters[one].Annotations, key, value)
		s.Clusters[one].Name = one.Name
	}
}

// born gives what Muster made the UIDs and names that an API server would.
func born(s *State) {
	*s = Settle(*s)
	for key, fleet := range s.FleetClusters {
		if fleet.UID == "" {
			fleet.UID = "fleet-uid-of-" + types.UID(key.Name)
		}
	}
	for key, asked := range s.Calling.Registrations {
		if asked.Name == "" {
			delete(s.Calling.Registrations, key)
			asked.Name = "made-" + string(rune('a'+len(s.Calling.used)))
			asked.UID, asked.Spec.ClientRandom = types.UID(asked.Name), asked.Name
			s.Calling.used[asked.Name] = true // The next is called something else.
			s.Calling.Registrations[Key{Namespace: key.Namespace, Name: asked.Name}] = asked
		}
	}
	for _, fleet := range s.FleetClusters {
		drawn := fleet.Spec.ClientID
		if drawn != Drawn {
			continue
		}
		fleet.Spec.ClientID = "drawn-" + strings.Repeat(string(rune('a'+len(s.Calling.used))), drawnLength)
		for _, asked := range s.Calling.Registrations {
			if asked.Spec.ClientID == drawn && isOwner(asked, fleet.UID) {
				asked.Spec.ClientID = fleet.Spec.ClientID
			}
		}
	}
}

// deployed is Fleet, which takes note of the Fleet Cluster.
func deployed(s *State) {
	key := Key{Namespace: "team", Name: fleet(s).Name}
	fleet(s).Status.Namespace = FleetNamespace(key)
	s.Calling.Bundles[AgentBundle(key)] = Agent(fleet(s))
	born(s)
}

// granted is Fleet, which grants what waits for it, and revokes what has the same clientID.
func granted(token string) change {
	return func(s *State) {
		born(s)
		for key, asked := range s.Calling.Registrations {
			if asked.Status.Granted {
				continue
			}
			for earlier, other := range s.Calling.Registrations {
				if earlier != key && other.Spec.ClientID == asked.Spec.ClientID {
					delete(s.Calling.Registrations, earlier)
				}
			}
			asked.Status.Granted = true
			s.Calling.Credentials[CredentialName(asked)] = Credential(asked, fleet(s), token)
		}
		born(s)
	}
}

func called(s *State) { s.Calling.Called[fleet(s).UID] = true }

// installed is Fleet, which has installed an agent that has registered itself.
func installed(s *State) {
	if fleet(s).Spec.ClientID == "" {
		fleet(s).Spec.ClientID = "of-fleet-which-draws-its-own"
	}
	for key, other := range s.Calling.Registrations {
		if other.Spec.ClientID == fleet(s).Spec.ClientID {
			delete(s.Calling.Registrations, key)
		}
	}
	asked := &fleetv1.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "request-1", UID: "request-1",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: "one", UID: fleet(s).UID}}}}
	asked.Spec.ClientID, asked.Spec.ClientRandom, asked.Status.Granted = fleet(s).Spec.ClientID, "random", true
	s.Calling.Registrations[Key{Namespace: "team", Name: "request-1"}] = asked
	called(s)
}

func noConfig(s *State) { s.Config = nil }

// toManager has the management side register the Cluster, whose control plane is there by now.
func toManager(s *State) {
	s.Clusters[one].Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	annotate(registration, "manager")(s)
}

func loseCredential(s *State) { clear(s.Calling.Credentials) }
func loseManifest(s *State)   { clear(s.Calling.Manifests) }
func loseRecord(s *State)     { clear(s.Calling.Kept) }

func server(url string) change { return func(s *State) { s.Calling.Server = url } }

var ready = then(caller, born, deployed, granted("first"))

// told is what both conditions say, and what was registered and handed out.
func told(s *State) string {
	var words []string
	for _, name := range []string{importedCondition, manifestCondition} {
		if found := meta.FindStatusCondition(s.Clusters[one].Status.Conditions, name); found != nil {
			words = append(words, found.Reason)
		}
	}
	for _, asked := range s.Calling.Registrations {
		whose := map[bool]string{true: "ours", false: "theirs"}[isOurs(asked)]
		words = append(words, whose+map[bool]string{true: " granted", false: " asked"}[asked.Status.Granted])
	}
	for _, secret := range s.Calling.Manifests {
		words = append(words, "token "+string(secret.Data["token"]))
	}
	slices.Sort(words[min(2, len(words)):])
	return strings.Join(words, ", ")
}

func TestCalling(t *testing.T) {
	const handedOut = "WaitingForAgent, ManifestReady, ours granted, token first"
	hasID := func(s *State) bool { return fleet(s).Spec.ClientID == Drawn && fleet(s).Spec.KubeConfigSecret == "" }
	byManager := func(s *State) bool { return fleet(s).Spec.KubeConfigSecret == "one-kubeconfig" }
	stop := func(s *State) { s.Calling.Registrar = false }
	for name, test := range map[string]struct {
		happens change
		told    string
		is      func(*State) bool
	}{
		"made at creation, with a clientID and no kubeconfig": {happens: caller, told: "WaitingForAgent, WaitingForFleet", is: hasID},
		"nobody registers":                 {happens: then(caller, stop), told: "RegistrarMissing", is: hasID},
		"nobody registers any more":        {happens: then(ready, stop), told: "RegistrarMissing, ManifestReady, ours granted, token first"},
		"Fleet took note":                  {happens: then(caller, born, deployed), told: "WaitingForAgent, WaitingForFleet, ours asked"},
		"not where Fleet deploys":          {happens: then(caller, born, deployed, func(s *State) { fleet(s).Status.Namespace = "kube-system"; clear(s.Calling.Registrations) }), told: "WaitingForAgent, RegistrationConflict"},
		"handed out":                       {happens: ready, told: handedOut},
		"called":                           {happens: then(ready, called), told: "Imported, ManifestReady, ours granted, token first"},
		"the server's address":             {happens: then(ready, server("https://b.example.com")), told: handedOut},
		"no address":                       {happens: then(ready, server("")), told: "WaitingForAgent, FleetNotConfigured, ours granted, token first"},
		"the manifest is deleted":          {happens: then(ready, loseManifest), told: handedOut},
		"the credential has lapsed":        {happens: then(ready, loseCredential, server("https://b.example.com")), told: handedOut},
		"both are gone":                    {happens: then(ready, loseCredential, loseManifest), told: handedOut},
		"the record is gone, too":          {happens: then(ready, loseCredential, loseRecord), told: "WaitingForAgent, CredentialLost or WaitingForFleet, ours granted, token first"},
		"rotated":                          {happens: then(ready, annotate(rotate, "1")), told: "WaitingForAgent, WaitingForFleet, ours asked, ours granted, token first"},
		"rotated and granted":              {happens: then(ready, annotate(rotate, "1"), granted("second")), told: "WaitingForAgent, ManifestReady, ours granted, token second"},
		"rotated, then the same":           {happens: then(ready, annotate(rotate, "1"), granted("second"), annotate(rotate, ""), born, annotate(rotate, "1")), told: "WaitingForAgent, ManifestReady, ours granted, token second"},
		"a Secret of somebody's":           {happens: then(caller, stranger, born, deployed), told: "WaitingForAgent, SecretConflict, token mine"},
		"to the manager":                   {happens: then(ready, toManager), told: "Imported, ManifestReady, ours granted, token first", is: byManager},
		"to the manager, who installs one": {happens: then(ready, toManager, born, installed), told: "Imported, theirs granted, token ", is: byManager},
		"to the manager, before its control plane": {
			happens: then(ready, annotate(registration, "manager")), told: "WaitingForControlPlane, ManifestReady, ours granted, token first",
			is: func(s *State) bool { return !byManager(s) },
		},
		"to the manager, who installs one, and back": {
			happens: then(ready, toManager, born, installed, born, annotate(registration, "agent")),
			told:    "Imported, AlreadyRegistered, theirs granted, token ", is: func(s *State) bool { return strings.HasPrefix(fleet(s).Spec.ClientID, "drawn-") },
		},
		"rotated, to the manager, who installs one, and back": {
			happens: then(ready, annotate(rotate, "1"), granted("second"), toManager, born, installed, born, annotate(registration, "agent")),
			told:    "Imported, AlreadyRegistered, theirs granted, token ",
		},
		"and rotated": {
			happens: then(ready, toManager, born, installed, born, annotate(registration, "agent"), born, annotate(rotate, "1"), granted("third")),
			told:    "Imported, ManifestReady, ours granted, token third",
		},
		"to the manager, and back": {
			happens: then(ready, toManager, born, annotate(registration, "agent")),
			told:    handedOut, is: func(s *State) bool { return strings.HasPrefix(fleet(s).Spec.ClientID, "drawn-") },
		},
		"no FleetAddonConfig, nobody has called": {
			happens: then(caller, annotate(registration, ""), agentInitiated("cluster"), born, deployed, granted("first"), noConfig),
			told:    "WaitingForControlPlane, ManifestReady, ours granted, token first", is: func(s *State) bool { return !byManager(s) },
		},
		"no FleetAddonConfig, its agent has called": {
			happens: then(caller, annotate(registration, ""), agentInitiated("cluster"), born, deployed, granted("first"), called, noConfig),
			told:    "Imported, ManifestReady, ours granted, token first", is: func(s *State) bool { return !byManager(s) },
		},
		"never registered twice": {happens: then(ready, born, born, called, born, server("https://b.example.com"), born), told: "Imported, ManifestReady, ours granted, token first"},
		"deselected, Keep":       {happens: then(ready, deselect, server("https://b.example.com"), annotate(rotate, "1")), told: "Deselected, ManifestReady, ours granted, token first"},
		"deselected, Delete":     {happens: then(ready, deselectAndDelete), told: "token "},
		"paused":                 {happens: then(ready, pauseOne, annotate(registration, "manager")), told: "Paused, ManifestReady, ours granted, token first"},
		"deleted and made anew": {
			happens: then(ready, deleteOne, settle, func(s *State) { s.Calling.Bundles = newCalling().Bundles }, anew(false), func(s *State) { caller(s) }),
			told:    "WaitingForAgent, WaitingForFleet", is: hasID,
		},
		"made anew, and its Fleet Cluster stayed": {
			happens: then(withoutOwners, ready, called, deleteOne, settle, anew(false), caller),
			told:    "WaitingForAgent, WaitingForFleet, ours asked, ours granted", is: hasID,
		},
		"made anew, its Fleet Cluster stayed, and granted": {
			happens: then(withoutOwners, ready, called, deleteOne, settle, anew(false), caller, granted("second")),
			told:    "WaitingForAgent, ManifestReady, ours granted, token second",
		},
		"handed over with an agent": {
			happens: then(fleetCluster("one", map[string]string{adopt: "true"}), func(s *State) { fleet(s).UID = "x" }, installed, caller, born, deployed),
			told:    "Imported, AlreadyRegistered, theirs granted", is: func(s *State) bool { return fleet(s).Spec.ClientID == "of-fleet-which-draws-its-own" },
		},
		"handed over with a clientID that is guessed": {
			happens: then(fleetCluster("one", map[string]string{adopt: "true"}), func(s *State) { fleet(s).UID, fleet(s).Spec.ClientID = "x", "edge-1" }, called, caller),
			told:    "WaitingForAgent, WaitingForFleet", is: hasID,
		},
		"by the FleetAddonConfig": {
			happens: then(caller, annotate(registration, "no word"), agentInitiated("cluster")), told: "WaitingForAgent, WaitingForFleet", is: hasID,
		},
		"not by the FleetAddonConfig": {
			happens: then(caller, annotate(registration, ""), agentInitiated("class")), told: "WaitingForControlPlane",
		},
		"a topology waits for what it refers to": {
			happens: then(caller, func(s *State) { s.Clusters[one].Spec.Topology.ClassRef.Name = "small" }), told: "WaitingForControlPlane, WaitingForFleet",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := scene()
			test.happens(&s)
			s = Settle(s)
			if got := told(&s); got != test.told {
				t.Errorf("it comes to\n  %s\nwant\n  %s", got, test.told)
			}
			if test.is != nil && !test.is(&s) {
				t.Errorf("not as it is to be:\n%s", View(s))
			}
			if diff := Diff(View(s), View(Settle(s))); diff != "" {
				t.Errorf("not at rest:\n%s", diff)
			}
		})
	}
}

// stranger makes a Secret that only has the name of a manifest.
func stranger(s *State) {
	key := ManifestOf(one)
	s.Calling.Manifests[key] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: map[string][]byte{"token": []byte("mine")}}
}

func agentInitiated(both string) change {
	return func(s *State) {
		s.configure(addonsv1.ClusterConfig{AgentInitiated: ptr.To(true), AgentInitiatedSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"both": both}}})
	}
}

// TestManifest: what is handed out is one cluster's own credential, and none to register with.
func TestManifest(t *testing.T) {
	s := scene()
	ready(&s)
	text := string(s.Calling.Manifests[ManifestOf(one)].Data["manifest"])
	if strings.Contains(text, fleet(&s).Spec.ClientID) {
		t.Error("the clientID is in the manifest")
	}
	says, err := whatManifestSays([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Namespace <nil>/fleet-addon-agent", "ConfigMap fleet-addon-agent/fleet-agent", "Secret fleet-addon-agent/fleet-agent"} {
		if says[name] == nil {
			t.Errorf("there is no %s in\n%s", name, text)
		}
	}
}

// TestRecognize: what is drawn is told from what was there, and from what is too short.
func TestRecognize(t *testing.T) {
	was := scene()
	caller(&was)
	was.FleetClusters[Key{Namespace: "team", Name: "other"}] = &fleetv1.Cluster{Spec: fleetv1.ClusterSpec{ClientID: strings.Repeat("o", 30)}}
	want := Settle(was)
	for id, is := range map[string]bool{strings.Repeat("n", 26): true, strings.Repeat("o", 30): false, "short": false} {
		seen := want.Copy()
		seen.FleetClusters[one].Spec.ClientID = id
		if got := Diff(View(want), View(Recognize(want, seen))) == ""; got != is {
			t.Errorf("%q is recognized: %t, want %t", id, got, is)
		}
	}
}

// TestFleetAnswers: wishes alone, and a Fleet that answers, come to the end that is reached in steps.
func TestFleetAnswers(t *testing.T) {
	s := scene()
	caller(&s)
	two := s.add("two")
	two.UID, two.Annotations = "uid-of-two", map[string]string{registration: "agent"}
	two.Spec.Topology = clusterv1.Topology{}
	s = FleetAnswers(s, func(fleet *fleetv1.Cluster) string { return "of " + fleet.Name })
	if got, want := told(&s), "Imported, ManifestReady, ours granted, ours granted, token of one, token of two"; got != want {
		t.Errorf("it comes to\n  %s\nwant\n  %s", got, want)
	}
	if diff := Diff(View(s), View(Settle(s))); diff != "" {
		t.Errorf("not at rest:\n%s", diff)
	}
}
