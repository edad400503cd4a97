package oracle

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// viewCalling is what is to be seen of what was registered and of what is handed out. How a
// registration is called, nothing says.
func viewCalling(s State) map[string]map[string]any {
	documents := map[string]map[string]any{}
	for _, asked := range s.Calling.Registrations {
		of := "nobody"
		owners := asked.OwnerReferences
		view := map[string]any{"labels": asked.Labels, "granted": asked.Status.Granted, "clusterLabels": asked.Spec.ClusterLabels}
		if len(owners) == 1 && strings.HasPrefix(owners[0].APIVersion, "fleet.cattle.io/") {
			key := Key{Namespace: asked.Namespace, Name: owners[0].Name}
			of = key.String()
			fleet := s.FleetClusters[key]
			view["its"] = fleet != nil && fleet.UID == owners[0].UID
			view["its clientID"] = fleet != nil && fleet.Spec.ClientID == asked.Spec.ClientID
		}
		if random := asked.Spec.ClientRandom; random != Drawn && len(random) < leastLength {
			view["clientRandom"] = random
		}
		documents["ClusterRegistration of "+of+", "+numbered(documents, "ClusterRegistration of "+of, view)] = view
	}
	for key, secret := range s.Calling.Manifests {
		view := viewManifest(secret)
		view["owners"], view["labels"] = secret.OwnerReferences, secret.Labels
		if uid, there := secret.Annotations[registered]; there {
			view["registered"] = "for one that is gone"
			for _, asked := range s.Calling.Registrations {
				if string(asked.UID) == uid {
					view["registered"] = "for one that is there"
				}
			}
		}
		documents["Secret "+key.String()] = view
	}
	return documents
}

// numbered tells apart what has the same name by what it is.
func numbered(documents map[string]map[string]any, name string, view map[string]any) string {
	what := fmt.Sprintf("granted %v, its clientID %v, labels %v", view["granted"], view["its clientID"], view["labels"])
	for number := 1; ; number++ {
		label := fmt.Sprintf("%s #%d", what, number)
		if documents[name+", "+label] == nil {
			return label
		}
	}
}

// Recognize returns what is seen, with the same placeholder as in what is expected for
// whatever could not be known before: a clientID that was drawn, if it is long enough and
// nobody had it before, and which of several right reasons a condition has.
func Recognize(want, seen State) State {
	seen = seen.Copy()
	for key, fleet := range seen.FleetClusters {
		expected := want.FleetClusters[key]
		id := fleet.Spec.ClientID
		if expected == nil || len(id) < drawnLength || want.Calling.used[id] {
			continue
		}
		if expected.Spec.ClientID != Drawn {
			if len(expected.Spec.ClientID) < leastLength { // For a moment, its agent was to call.
				fleet.Spec.ClientID = expected.Spec.ClientID
			}
			continue
		}
		fleet.Spec.ClientID = Drawn
		for _, asked := range seen.Calling.Registrations {
			if isOwner(asked, fleet.UID) && asked.Spec.ClientID == id {
				asked.Spec.ClientID = Drawn
			}
		}
	}
	for proxy, told := range seen.Charts.Mirrors {
		for cluster, reason := range told {
			if expected := want.Charts.Mirrors[proxy][cluster]; slices.Contains(strings.Split(expected, orElse), reason) {
				told[cluster] = expected
			}
		}
	}
	for key, cluster := range seen.Clusters {
		if expected := want.Clusters[key]; expected != nil {
			for _, name := range []string{importedCondition, manifestCondition} {
				recognizeReason(expected, cluster, name)
			}
		}
	}
	return seen
}

func recognizeReason(want, seen *clusterv1.Cluster, name string) {
	expected, got := meta.FindStatusCondition(want.Status.Conditions, name), meta.FindStatusCondition(seen.Status.Conditions, name)
	if expected != nil && got != nil && slices.Contains(strings.Split(expected.Reason, orElse), got.Reason) {
		got.Reason = expected.Reason
	}
}

// viewConditions are those that Muster writes alone, each in its own words.
func viewConditions(cluster *clusterv1.Cluster) map[string]any {
	view := map[string]any{"spec": cluster.Spec}
	for _, name := range []string{importedCondition, bundlesCondition, manifestCondition} {
		if found := meta.FindStatusCondition(cluster.Status.Conditions, name); found != nil {
			view[name] = fmt.Sprintf("%s, %s", found.Status, found.Reason)
		}
	}
	return view
}
