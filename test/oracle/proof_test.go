package oracle

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

var (
	noon       = metav1.NewTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	lib        = Key{Namespace: "lib", Name: "team"}
	crossGroup = Key{Namespace: "team", Name: "small.lib"}
)

// change is something that happens to a state.
type change func(*State)

// then lets one thing happen after another.
func then(changes ...change) change {
	return func(s *State) {
		for _, happen := range changes {
			happen(s)
		}
	}
}

func deselect(s *State) {
	s.configure(addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"import": "yes"}}})
}

func deselectAndDelete(s *State) {
	deselect(s)
	s.Config.Spec.Cluster.OnDeselect = addonsv1.DeselectDelete
}

func withoutOwners(s *State) { s.configure(addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)}) }
func reselect(s *State)      { s.Config = nil }
func settle(s *State)        { *s = Settle(*s) }
func pauseOne(s *State)      { s.Clusters[one].Spec.Paused = ptr.To(true) }
func deleteOne(s *State)     { delete(s.Clusters, one) }
func stopGarbage(s *State)   { s.GarbageStays = true }
func startGarbage(s *State)  { s.GarbageStays = false }

func deleting(s *State) {
	s.Clusters[one].DeletionTimestamp, s.Clusters[one].Finalizers = &noon, []string{"cluster.cluster.x-k8s.io"}
}

// anew makes a Cluster of the name once more, with another UID.
func anew(initialized bool) change {
	return func(s *State) {
		cluster := s.add("one")
		cluster.UID, cluster.CreationTimestamp = "uid-of-one-anew", metav1.NewTime(noon.Add(time.Hour))
		cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(initialized)
	}
}

// classless makes it a Cluster that names no class.
func classless(s *State) { s.Clusters[one].Spec.Topology = clusterv1.Topology{} }

func pinned(name string) change {
	return func(s *State) {
		s.Clusters[one].Annotations = map[string]string{ownedBy: "fleet-addon-config", pinnedName: name}
	}
}

// fleetCluster makes a Fleet Cluster by hand, an hour after noon. Keys of labels are
// told from annotations by having no slash after the domain.
func fleetCluster(name string, keys map[string]string, owners ...metav1.OwnerReference) change {
	return func(s *State) {
		fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, OwnerReferences: owners, CreationTimestamp: metav1.NewTime(noon.Add(time.Hour)),
		}, Spec: fleetv1.ClusterSpec{KubeConfigSecret: "theirs"}}
		for key, value := range keys {
			if strings.HasPrefix(key, domain+"/") {
				fleet.Annotations = set(fleet.Annotations, key, value)
			} else {
				fleet.Labels = set(fleet.Labels, key, value)
			}
		}
		s.FleetClusters[Key{Namespace: "team", Name: name}] = fleet
	}
}

func at(name string, when metav1.Time) change {
	return func(s *State) { s.FleetClusters[Key{Namespace: "team", Name: name}].CreationTimestamp = when }
}

func ownerCluster(name, uid string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: name, UID: types.UID(uid)}
}

func fleet(s *State) *fleetv1.Cluster { return s.FleetClusters[one] }

// forged are the labels that open a class namespace, if somebody believes them.
func forged(more map[string]string) map[string]string {
	keys := map[string]string{managedBy: "muster", classLabel: "small", classNsLabel: "other"}
	maps.Copy(keys, more)
	return keys
}

const classGroups = "group lib/small, group other/small"

// TestWhatIsNoProof plays what tenants write, and what looks like it.
func TestWhatIsNoProof(t *testing.T) {
	isEdited := func(mapping *fleetv1.BundleNamespaceMapping) bool {
		return mapping.BundleSelector.MatchLabels["theirs"] == "x"
	}
	edit := func(s *State) {
		s.Mappings[lib].BundleSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"theirs": "x"}}
	}
	for name, test := range map[string]struct {
		happens      change
		made, reason string
		// is says what else is to be; nil for nothing.
		is func(*State) bool
	}{
		// Point 1.
		"forged: a released Fleet Cluster of nobody": {
			happens: then(deleteOne, fleetCluster("mine", forged(map[string]string{released: "true"}))),
			made:    "cluster team/mine, " + classGroups,
		},
		"forged: a Fleet Cluster of a Cluster of mine": {
			happens: then(classless, fleetCluster("mine", forged(map[string]string{importedFrom: "one"}))),
			made:    "cluster team/mine, " + classGroups, reason: "True Imported",
		},
		"forged: labels on the Fleet Cluster of a selected Cluster": {
			happens: then(classless, settle, func(s *State) { fleet(s).Labels[classLabel], fleet(s).Labels[classNsLabel] = "small", "other" }),
			made:    "cluster team/one, " + classGroups, reason: "True Imported",
			is: func(s *State) bool { return !has(fleet(s).Labels, classLabel) && !has(fleet(s).Labels, classNsLabel) },
		},
		"forged: labels on the Fleet Cluster of a deselected Cluster": {
			happens: then(classless, settle, deselect, settle, func(s *State) { fleet(s).Labels[classLabel], fleet(s).Labels[classNsLabel] = "small", "other" }),
			made:    "cluster team/one, " + classGroups, reason: "True Deselected",
		},
		"forged: adopt makes nobody a user": {
			happens: then(deleteOne, fleetCluster("mine", map[string]string{adopt: "true", released: "true", classLabel: "small", classNsLabel: "other"})),
			made:    "cluster team/mine, " + classGroups,
		},
		"forged: a group of ours that nobody uses goes": {
			happens: then(deleteOne, func(s *State) {
				s.Groups[Key{Namespace: "team", Name: "x"}] = &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "x", Labels: forged(nil)}}
			}),
			made: classGroups,
		},
		// Point 2.
		"forged: a pin on an unselected Cluster claims nothing": {
			happens: then(deselect, pinned("one")), made: classGroups, reason: "False Deselected",
			is: func(s *State) bool { return len(s.Namespaces["team"].Annotations) == 0 },
		},
		"forged: a pin and a Fleet Cluster to it": {
			happens: then(deselect, pinned("mine"), fleetCluster("mine", forged(nil), ownerCluster("one", "uid-of-one"))),
			made:    "cluster team/mine, " + classGroups, reason: "True Deselected",
			is: func(s *State) bool { return len(s.Namespaces["team"].Annotations) == 0 },
		},

		// Makers and keepers.
		"a paused Cluster makes nothing": {
			happens: then(pinned("one"), pauseOne), made: classGroups, reason: "False Paused",
			is: func(s *State) bool { return len(s.Namespaces["team"].Annotations) == 0 },
		},
		"a Cluster that is going makes nothing": {
			happens: then(pinned("one"), deleting), made: classGroups,
		},
		"what is deleted under a deselected Cluster stays away": {
			happens: then(settle, deselect, settle, func(s *State) { delete(s.Groups, crossGroup); delete(s.Mappings, lib) }),
			made:    "cluster team/one, " + classGroups, reason: "True Deselected",
		},
		"deselected, then rebased: nothing is made": {
			happens: then(settle, deselect, settle, func(s *State) { s.Clusters[one].Spec.Topology.ClassRef.Namespace = "other" }),
			made:    all, reason: "True Deselected",
		},
		"a live mapping of a deselected Cluster stays as somebody edited it": {
			happens: then(settle, deselect, settle, edit), made: all, reason: "True Deselected",
			is: func(s *State) bool { return isEdited(s.Mappings[lib]) },
		},
		"a live mapping of a selected Cluster is put back": {
			happens: then(settle, edit), made: all, reason: "True Imported",
			is: func(s *State) bool { return !isEdited(s.Mappings[lib]) },
		},
		"a retired mapping is not revived for a deselected Cluster": {
			happens: then(settle, deselect, settle, func(s *State) { s.Mappings[lib].BundleSelector, s.Mappings[lib].NamespaceSelector = nil, nil }),
			made:    "cluster team/one, group lib/small, group other/small, group team/small.lib", reason: "True Deselected",
		},
		"a retired mapping is revived for a selected Cluster": {
			happens: then(settle, func(s *State) { s.Mappings[lib].BundleSelector, s.Mappings[lib].NamespaceSelector = nil, nil }),
			made:    all, reason: "True Imported", is: func(s *State) bool { return isLive(s.Mappings[lib]) },
		},
		"an edited group of a deselected Cluster stays as it is": {
			happens: then(settle, deselect, settle, func(s *State) { s.Groups[crossGroup].Spec.Selector = nil }),
			made:    all, reason: "True Deselected", is: func(s *State) bool { return s.Groups[crossGroup].Spec.Selector == nil },
		},
		"the Namespace is annotated again for makers only": {
			happens: then(settle, deselect, settle, func(s *State) { s.Namespaces["team"].Annotations = nil }),
			made:    all, reason: "True Deselected", is: func(s *State) bool { return len(s.Namespaces["team"].Annotations) == 0 },
		},
		"groups off: nobody uses anything": {
			happens: then(settle, func(s *State) { s.configure(addonsv1.ClusterConfig{ApplyClassGroup: ptr.To(false)}) }, pauseOne),
			made:    "cluster team/one, " + classGroups, reason: "True Paused",
		},
		"turned off: nothing changes": {
			happens: then(settle, func(s *State) { s.configure(addonsv1.ClusterConfig{Enabled: ptr.To(false)}) }, deleteOne, stopGarbage),
			made:    all,
		},

		// Point 16.
		"the group's name is taken by a class of the own namespace": {
			happens: takeGroup, made: "group lib/small, group other/small, group team/small.lib", reason: "False NameConflict",
			is: func(s *State) bool { return s.Groups[crossGroup].Labels[classNsLabel] == "team" },
		},
		"the group's name is taken later: what is in Fleet is frozen": {
			happens: then(settle, takeGroup, func(s *State) { s.Clusters[one].Labels["both"] = "late" }),
			made:    all, reason: "True NameConflict",
			is: func(s *State) bool {
				return s.Groups[crossGroup].Labels[classNsLabel] == "team" && fleet(s).Labels["both"] == "cluster"
			},
		},

		// Point 20.
		"an invalid FleetAddonConfig changes nothing": {
			happens: then(settle, deleteOne, stopGarbage, invalidate), made: all,
		},
		"an invalid FleetAddonConfig makes nothing": {happens: invalidate, made: ""},

		// Point 21.
		"left by CAAPF: reported and kept as it is": {
			happens: then(settle, leftover), made: all, reason: "True Deselected",
			is: func(s *State) bool {
				return !has(s.Clusters[one].Annotations, pinnedName) && s.Namespaces["team"].Annotations[workspace] == "true"
			},
		},
		"left by CAAPF: Delete deletes it": {
			happens: then(settle, leftover, deselectAndDelete), made: classGroups,
			is: func(s *State) bool { return len(s.Namespaces["team"].Annotations) == 0 },
		},
		"left by CAAPF and owned by nobody": {
			happens: then(settle, leftover, func(s *State) { fleet(s).OwnerReferences = nil }), made: all, reason: "True Deselected",
		},
		"left by CAAPF, selected: pinned to what it has": {
			happens: then(fleetCluster("odd", map[string]string{managedBy: "muster"}, ownerCluster("one", "uid-of-one"))),
			made:    strings.Replace(all, "team/one", "team/odd", 1), reason: "True Imported",
		},
		"somebody else's Fleet Cluster with an owner reference is not reported": {
			happens: then(fleetCluster("odd", nil, ownerCluster("one", "uid-of-one")), deselect),
			made:    "cluster team/odd, " + classGroups,
		},

		// Point 22.
		"keys of ours that nobody wants go": {
			happens: then(settle, func(s *State) {
				fleet(s).Annotations[domain+"/left"], fleet(s).Labels["left."+domain] = "x", "x"
				s.Groups[crossGroup].Annotations = map[string]string{domain + "/left": "x", released: "true"}
				s.Mappings[lib].Labels[classLabel], s.Mappings[lib].Labels["left."+domain] = "x", "x"
			}),
			made: all, reason: "True Imported",
			is: func(s *State) bool {
				return !strings.Contains(View(*s), "left") && !has(s.Groups[crossGroup].Annotations, released) && !has(s.Mappings[lib].Labels, classLabel)
			},
		},
		"keys of ours stay where nothing may be written": {
			happens: then(settle, func(s *State) {
				s.configure(addonsv1.ClusterConfig{PatchResource: ptr.To(false)})
				fleet(s).Annotations[domain+"/left"] = "x"
			}),
			made: all, reason: "True Imported", is: func(s *State) bool { return has(fleet(s).Annotations, domain+"/left") },
		},
		"adopt goes off a group and a mapping once they are ours": {
			happens: then(func(s *State) {
				theirs := metav1.ObjectMeta{Annotations: map[string]string{adopt: "true"}}
				group, mapping := theirs.DeepCopy(), theirs.DeepCopy()
				group.Namespace, group.Name = crossGroup.Namespace, crossGroup.Name
				mapping.Namespace, mapping.Name = lib.Namespace, lib.Name
				s.Groups[crossGroup], s.Mappings[lib] = &fleetv1.ClusterGroup{ObjectMeta: *group}, &fleetv1.BundleNamespaceMapping{ObjectMeta: *mapping}
			}),
			made: all, reason: "True Imported",
			is: func(s *State) bool {
				return !has(s.Groups[crossGroup].Annotations, adopt) && !has(s.Mappings[lib].Annotations, adopt) && isLive(s.Mappings[lib])
			},
		},
	} {
		t.Run(name, func(t *testing.T) { plays(t, test.happens, test.made, test.reason, test.is) })
	}
}

// plays lets something happen to the scene and says what is to come of it.
func plays(t *testing.T, happens change, want, wantReason string, is func(*State) bool) {
	t.Helper()
	s := scene()
	happens(&s)
	s = Settle(s)
	if got := made(s); got != want {
		t.Errorf("made\n  %s\nwant\n  %s", got, want)
	}
	if _, there := s.Clusters[one]; there || wantReason != "" {
		if got := reason(s); got != wantReason {
			t.Errorf("%s = %q, want %q", importedCondition, got, wantReason)
		}
	}
	if is != nil && !is(&s) {
		t.Errorf("not as it is to be:\n%s", View(s))
	}
	if diff := Diff(View(s), View(Settle(s))); diff != "" {
		t.Errorf("not at rest:\n%s", diff)
	}
}

func takeGroup(s *State) {
	s.Classes[crossGroup] = &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{
		Namespace: crossGroup.Namespace, Name: crossGroup.Name, UID: "class-with-a-dot",
	}}
}

func invalidate(s *State) {
	s.configure(addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"not a key": "x"}}})
}

// leftover is what CAAPF leaves of a Cluster that no selector of ours matches.
func leftover(s *State) {
	deselect(s)
	unpin(s.Clusters[one])
	s.Clusters[one].Status.Conditions = nil
	delete(fleet(s).Labels, managedBy)
	fleet(s).Annotations = nil
	fleet(s).ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "team-one-" + manager}}
}

// TestWhose plays whose a Fleet Cluster is.
func TestWhose(t *testing.T) {
	isAnew := func(generation int64) func(*State) bool {
		return func(s *State) bool {
			cluster := fleet(s)
			return cluster.Spec.RedeployAgentGeneration == generation && cluster.Annotations[importedFrom] == "one" &&
				!has(cluster.Annotations, adopt) && !has(cluster.Annotations, released) &&
				(isOwner(cluster, "uid-of-one-anew") != (cluster.Annotations[importedUID] == "uid-of-one-anew"))
		}
	}
	untouched := func(s *State) bool {
		return fleet(s).Spec.RedeployAgentGeneration == 0 && !isOwner(fleet(s), "uid-of-one-anew") && fleet(s).Annotations[importedUID] != "uid-of-one-anew"
	}
	isAdopted := func(s *State) bool {
		return !has(fleet(s).Annotations, adopt) && fleet(s).Annotations[importedFrom] == "one" && isOwner(fleet(s), "uid-of-one") &&
			fleet(s).Spec.RedeployAgentGeneration == 0
	}
	nothingImported := "group lib/small, group other/small, group team/small.lib, mapping lib/team"
	two := func(s *State) { s.add("two").UID = "uid-of-two" }
	for name, test := range map[string]struct {
		happens      change
		made, reason string
		is           func(*State) bool
	}{
		"without owner references the UID is noted": {
			happens: withoutOwners, made: all, reason: "True Imported",
			is: func(s *State) bool {
				return fleet(s).Annotations[importedUID] == "uid-of-one" && len(fleet(s).OwnerReferences) == 0
			},
		},
		"with an owner reference it is not": {
			happens: then(withoutOwners, settle, reselect), made: all, reason: "True Imported",
			is: func(s *State) bool { return !has(fleet(s).Annotations, importedUID) && isOwner(fleet(s), "uid-of-one") },
		},
		"released: the UID is noted": {
			happens: then(settle, pauseOne), made: all, reason: "True Paused",
			is: func(s *State) bool {
				return fleet(s).Annotations[importedUID] == "uid-of-one" && fleet(s).Annotations[released] == "true"
			},
		},
		"unpaused: the release is undone": {
			happens: then(settle, pauseOne, settle, func(s *State) { s.Clusters[one].Spec.Paused = nil }), made: all, reason: "True Imported",
			is: func(s *State) bool {
				return !has(fleet(s).Annotations, importedUID) && !has(fleet(s).Annotations, released) && isOwner(fleet(s), "uid-of-one")
			},
		},

		// Point 9.
		"a dead namesake's, the garbage collector stopped: it goes first": {
			happens: then(settle, stopGarbage, deleteOne, anew(true)), made: all, reason: "False FleetClusterDeleting", is: untouched,
		},
		"a dead namesake's, the garbage collector runs again": {
			happens: then(settle, stopGarbage, deleteOne, anew(true), settle, startGarbage), made: all, reason: "True Imported", is: isAnew(0),
		},
		"a dead namesake's, collected: the control plane is waited for": {
			happens: then(settle, deleteOne, anew(false)), made: nothingImported, reason: "False WaitingForControlPlane",
		},
		"a dead namesake's without owner waits for the control plane": {
			happens: then(withoutOwners, settle, deleteOne, anew(false)), made: all, reason: "False WaitingForControlPlane", is: untouched,
		},
		"a dead namesake's without owner is handed over, its agent anew": {
			happens: then(withoutOwners, settle, deleteOne, anew(true)), made: all, reason: "True Imported", is: isAnew(1),
		},
		"a dead namesake's without owner, never to be modified: whose it is is written": {
			happens: then(withoutOwners, settle, deleteOne, anew(true), func(s *State) { s.Config.Spec.Cluster.PatchResource = ptr.To(false) }),
			made:    all, reason: "True Imported", is: isAnew(1),
		},
		"moved away and made anew": {
			happens: then(settle, pauseOne, settle, deleteOne, anew(true)), made: all, reason: "True Imported", is: isAnew(1),
		},
		"a dead namesake's class is kept by nobody": {
			happens: then(withoutOwners, settle, deleteOne, anew(false), classless), made: "cluster team/one, " + classGroups, reason: "False WaitingForControlPlane",
		},
		"a dead namesake's with references that lead nowhere": {
			happens: then(withoutOwners, settle, deleteOne, anew(true), func(s *State) {
				s.Clusters[one].Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "g", Kind: "K", Name: "n"}
			}),
			made: all, reason: "False TemplateValuesUnresolved", is: untouched,
		},
		"of unknown origin and older: handed over, its agent anew": {
			happens: then(fleetCluster("one", map[string]string{managedBy: "muster", importedFrom: "one"}), at("one", noon), anew(true)),
			made:    all, reason: "True Imported", is: isAnew(1),
		},
		"of unknown origin and older: waits for the control plane": {
			happens: then(fleetCluster("one", map[string]string{managedBy: "muster"}), at("one", noon), anew(false)),
			made:    all, reason: "False WaitingForControlPlane", is: untouched,
		},
		"of unknown origin and no older: the Cluster's": {
			happens: then(anew(true), fleetCluster("one", map[string]string{managedBy: "muster"})), made: all, reason: "True Imported", is: isAnew(0),
		},
		"of unknown origin under the pinned name: the Cluster's": {
			happens: then(fleetCluster("odd", map[string]string{managedBy: "muster"}), pinned("odd")),
			made:    strings.Replace(all, "team/one", "team/odd", 1), reason: "True Imported",
		},
		"of unknown origin and from another Cluster": {
			happens: fleetCluster("one", map[string]string{managedBy: "muster", importedFrom: "two"}), made: all, reason: "False NameConflict",
		},
		"a living Cluster's": {
			happens: then(two, fleetCluster("one", map[string]string{managedBy: "muster", importedFrom: "one", importedUID: "uid-of-two"})),
			made:    all, reason: "False NameConflict", // It is Cluster two's, which is pinned to it.
			is: func(s *State) bool {
				return s.Clusters[Key{Namespace: "team", Name: "two"}].Annotations[pinnedName] == "one"
			},
		},

		// Point 5.
		"adopted": {
			happens: fleetCluster("one", map[string]string{adopt: "true"}), made: all, reason: "True Imported", is: isAdopted,
		},
		"adopted, never to be modified: whose it is is written": {
			happens: then(fleetCluster("one", map[string]string{adopt: "true"}), func(s *State) { s.configure(addonsv1.ClusterConfig{PatchResource: ptr.To(false)}) }),
			made:    all, reason: "True Imported", is: isAdopted,
		},
		"adopted while another Cluster owns it": {
			happens: then(two, pinned("mine"), fleetCluster("mine", map[string]string{adopt: "true"}, ownerCluster("two", "uid-of-two"))),
			made:    strings.Replace(all, "team/one", "team/mine", 1), reason: "False NameConflict",
			is: func(s *State) bool {
				mine := s.FleetClusters[Key{Namespace: "team", Name: "mine"}]
				return isOwner(mine, "uid-of-two") && !has(mine.Annotations, adopt)
			},
		},
		"adopted after its owner is gone": {
			happens: then(fleetCluster("one", map[string]string{adopt: "true"}, ownerCluster("two", "uid-of-two")), stopGarbage),
			made:    all, reason: "True Imported", is: isAdopted,
		},

		// Points 10 and 18.
		"an altered pin is not taken for the truth": {
			happens: then(settle, pinned("forged")), made: all, reason: "True Imported",
			is: func(s *State) bool { return s.Clusters[one].Annotations[pinnedName] == "one" },
		},
		"an altered pin and a Fleet Cluster of somebody to it": {
			happens: then(settle, pinned("forged"), fleetCluster("forged", nil)), made: "cluster team/forged, " + all, reason: "True Imported",
			is: func(s *State) bool { return s.Clusters[one].Annotations[pinnedName] == "one" },
		},
		"a dropped pin, the name not the expected one": {
			happens: then(pinned("odd"), settle, pinned("")), made: strings.Replace(all, "team/one", "team/odd", 1), reason: "True Imported",
			is: func(s *State) bool { return s.Clusters[one].Annotations[pinnedName] == "odd" },
		},
		"a dropped pin, no UID known": {
			happens: then(fleetCluster("odd", map[string]string{managedBy: "muster", importedFrom: "one"})),
			made:    strings.Replace(all, "team/one", "team/odd", 1), reason: "True Imported",
		},
		"a pin, no UID known of another": {
			happens: then(fleetCluster("odd", map[string]string{managedBy: "muster", importedFrom: "one"}), pinned("one")),
			made:    "cluster team/odd, " + all, reason: "True Imported",
		},
		"a pin, no UID known of another, paused: it is not the Cluster's": {
			happens: then(fleetCluster("one", map[string]string{managedBy: "muster"}), pinned("odd"), pauseOne),
			made:    "cluster team/one, " + classGroups, reason: "False Paused",
		},
		"a pin without a Fleet Cluster stays": {
			happens: pinned("kept"), made: strings.Replace(all, "team/one", "team/kept", 1), reason: "True Imported",
		},
		"a forged word of who claimed it is put right": {
			happens: then(settle, func(s *State) { s.Clusters[one].Annotations[ownedBy] = "forged" }), made: all, reason: "True Imported",
			is: func(s *State) bool { return s.Clusters[one].Annotations[ownedBy] == "fleet-addon-config" },
		},
		"several: the one that is pinned": {
			happens: then(several, pinned("b")), made: "cluster team/a, cluster team/b, " + all, reason: "True Imported", is: isPinned("b"),
		},
		"several: the one of the expected name": {
			happens: then(several, pinned("forged")), made: "cluster team/a, cluster team/b, " + all, reason: "True Imported", is: isPinned("one"),
		},
		"several: the oldest": {
			happens: then(several, func(s *State) { delete(s.FleetClusters, one) }),
			made:    "cluster team/a, " + strings.Replace(all, "team/one", "team/b", 1), reason: "True Imported", is: isPinned("b"),
		},
		"several, withdrawn: none stays": {
			happens: then(several, settle, deselectAndDelete), made: classGroups,
		},
		"an altered pin of a paused Cluster: released all the same": {
			happens: then(settle, pinned("forged"), pauseOne), made: all, reason: "True Paused",
			is: func(s *State) bool {
				return len(fleet(s).OwnerReferences) == 0 && s.Clusters[one].Annotations[pinnedName] == "forged"
			},
		},
		"an altered pin of a deselected Cluster, Delete": {
			happens: then(settle, pinned("forged"), deselectAndDelete), made: classGroups,
		},
	} {
		t.Run(name, func(t *testing.T) { plays(t, test.happens, test.made, test.reason, test.is) })
	}
}

// several are three Fleet Clusters of one Cluster; b is older than a.
func several(s *State) {
	for _, name := range []string{"a", "b", "one"} {
		fleetCluster(name, map[string]string{managedBy: "muster"}, ownerCluster("one", "uid-of-one"))(s)
	}
	at("b", noon)(s)
}

func isPinned(name string) func(*State) bool {
	return func(s *State) bool { return s.Clusters[one].Annotations[pinnedName] == name }
}

// TestGarbageStays plays what becomes of a class's group and of a mapping when nobody
// collects garbage: they are Muster's to delete.
func TestGarbageStays(t *testing.T) {
	s := Settle(scene())
	stopGarbage(&s)
	deleteOne(&s)
	delete(s.Classes, Key{Namespace: "lib", Name: "small"})
	s = Settle(s)
	if got, want := made(s), "cluster team/one, group other/small"; got != want {
		t.Errorf("made\n  %s\nwant\n  %s", got, want)
	}
	startGarbage(&s)
	if got, want := made(Settle(s)), "group other/small"; got != want {
		t.Errorf("made\n  %s\nwant\n  %s", got, want)
	}
}

// TestAdmittedForgesNoPin: what a Cluster brings along when it is created claims nothing.
func TestAdmittedForgesNoPin(t *testing.T) {
	s := scene()
	deselect(&s)
	pinned("forged")(&s)
	admitted := Admitted(s, s.Clusters[one])
	if has(admitted.Annotations, pinnedName) || has(admitted.Annotations, ownedBy) {
		t.Errorf("an unselected Cluster is created with the pin %v", admitted.Annotations)
	}
	reselect(&s)
	s.Clusters[one].Annotations[ownedBy] = "forged"
	admitted = Admitted(s, s.Clusters[one])
	if admitted.Annotations[pinnedName] != "forged" || admitted.Annotations[ownedBy] != "fleet-addon-config" {
		t.Errorf("a selected Cluster is created with the pin %v", admitted.Annotations)
	}
}

// TestCopies: what is excluded is not to be read from a copy of it either.
func TestCopies(t *testing.T) {
	s := scene()
	s.configure(addonsv1.ClusterConfig{TemplateValues: &addonsv1.TemplateValuesConfig{Exclude: &[]string{"/Variables/secret", "/Variables/deep/secret"}}})
	cluster := s.Clusters[one]
	cluster.Annotations = map[string]string{}
	for _, copied := range []string{
		"kubectl.kubernetes.io/last-applied-configuration", "cluster.x-k8s.io/conversion-data", "objectset.rio.cattle.io/applied", "kapp.k14s.io/original",
	} {
		cluster.Annotations[copied] = "hunter2"
	}
	variables := func() []clusterv1.ClusterVariable {
		list := []clusterv1.ClusterVariable{{Name: "open"}, {Name: "secret"}, {Name: "deep"}}
		list[0].Value.Raw, list[1].Value.Raw, list[2].Value.Raw = []byte(`"seen"`), []byte(`"hunter2"`), []byte(`{"secret":"hunter2","rest":"seen"}`)
		return list
	}
	topology := &cluster.Spec.Topology
	topology.Variables, topology.ControlPlane.Variables.Overrides = variables(), variables()
	topology.Workers.MachineDeployments = []clusterv1.MachineDeploymentTopology{{Name: "md"}}
	topology.Workers.MachineDeployments[0].Variables.Overrides = variables()
	values, _ := s.templateValues(settingsOf(s.Config), cluster)
	text := View(State{FleetClusters: map[Key]*fleetv1.Cluster{one: {Spec: fleetv1.ClusterSpec{TemplateValues: &fleetv1.GenericMap{Data: values}}}}})
	if strings.Contains(text, "hunter2") || strings.Count(text, "seen") != 8 {
		t.Errorf("the values are\n%s", text)
	}
	if !slices.Contains(sortedKeys(values), "Variables") {
		t.Error("there are no variables")
	}
}
