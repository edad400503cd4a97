package oracle

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// viewAgentInitiated describes registrations and manifests. The name of a registration does not matter.
func viewAgentInitiated(s State) map[string]map[string]any {
	views, registrations := map[string]map[string]any{}, map[string][]string{}
	for _, asked := range s.AgentInitiated.Registrations {
		of := "nobody"
		view := map[string]any{"labels": asked.Labels, "granted": asked.Status.Granted, "clusterLabels": asked.Spec.ClusterLabels}
		if owners := asked.OwnerReferences; len(owners) == 1 && strings.HasPrefix(owners[0].APIVersion, "fleet.cattle.io/") {
			key := Key{Namespace: asked.Namespace, Name: owners[0].Name}
			of = key.String()
			fleet := s.FleetClusters[key]
			view["its"] = fleet != nil && fleet.UID == owners[0].UID
			view["its clientID"] = fleet != nil && fleet.Spec.ClientID == asked.Spec.ClientID
		}
		if random := asked.Spec.ClientRandom; random != Drawn && len(random) < leastLength {
			view["clientRandom"] = random
		}
		registrations[of] = append(registrations[of], asYAML(view))
	}
	for of, all := range registrations {
		slices.Sort(all)
		views["ClusterRegistrations of "+of] = map[string]any{"all": all}
	}
	for key, secret := range s.AgentInitiated.Manifests {
		view := viewManifest(secret)
		view["owners"], view["labels"] = secret.OwnerReferences, secret.Labels
		if uid, there := secret.Annotations[registered]; there {
			view["registered"] = map[bool]string{true: "for one that is there", false: "for one that is gone"}[s.isRegistered(types.UID(uid))]
		}
		views["Secret "+key.String()] = view
	}
	return views
}

// Recognize returns the seen state with the placeholders of the expected one for everything that
// the model cannot predict: new clientIDs, if they are long enough and were not used before, and
// which of several valid reasons a condition has.
func Recognize(want, seen State) State {
	seen = seen.Copy()
	for key, fleet := range seen.FleetClusters {
		expected := want.FleetClusters[key]
		id := fleet.Spec.ClientID
		if expected == nil || len(id) < drawnLength || want.AgentInitiated.used[id] {
			continue
		}
		if expected.Spec.ClientID != Drawn {
			if len(expected.Spec.ClientID) < leastLength { // Its agent was to register itself for a moment.
				fleet.Spec.ClientID = expected.Spec.ClientID
			}
			continue
		}
		fleet.Spec.ClientID = Drawn
		for _, asked := range seen.AgentInitiated.Registrations {
			if isOwner(asked, fleet.UID) && asked.Spec.ClientID == id {
				asked.Spec.ClientID = Drawn
			}
		}
	}
	for proxy, reported := range seen.Helm.ReleaseProxies {
		for cluster, reason := range reported {
			if expected := want.Helm.ReleaseProxies[proxy][cluster]; slices.Contains(strings.Split(expected, orElse), reason) {
				reported[cluster] = expected
			}
		}
	}
	for key, cluster := range seen.Clusters {
		if want.Clusters[key] == nil {
			continue
		}
		for _, name := range ourConditions {
			expected, got := meta.FindStatusCondition(want.Clusters[key].Status.Conditions, name), meta.FindStatusCondition(cluster.Status.Conditions, name)
			if expected != nil && got != nil && slices.Contains(strings.Split(expected.Reason, orElse), got.Reason) {
				got.Reason = expected.Reason
			}
		}
	}
	return seen
}

// ourConditions are the conditions that Muster writes.
var ourConditions = []string{importedCondition, bundlesCondition, manifestCondition}

// viewConditions describes a Cluster's spec and the conditions that Muster writes.
func viewConditions(cluster *clusterv1.Cluster) map[string]any {
	view := map[string]any{"spec": cluster.Spec}
	for _, name := range ourConditions {
		if found := meta.FindStatusCondition(cluster.Status.Conditions, name); found != nil {
			view[name] = fmt.Sprintf("%s, %s", found.Status, found.Reason)
		}
	}
	return view
}
