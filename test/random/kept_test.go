package random

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/test/oracle"
)

// uidsOf returns the UIDs of Fleet's objects.
func uidsOf(s oracle.State) map[string]types.UID {
	uids := map[string]types.UID{}
	for key, object := range s.FleetClusters {
		uids["Fleet Cluster "+key.String()] = object.UID
	}
	for key, object := range s.Groups {
		uids["ClusterGroup "+key.String()] = object.UID
	}
	for key, object := range s.Mappings {
		uids["BundleNamespaceMapping "+key.String()] = object.UID
	}
	for key, object := range s.Calling.Registrations {
		uids["ClusterRegistration "+key.String()] = object.UID
	}
	for key, object := range s.Calling.Manifests {
		uids["manifest "+key.String()] = object.UID
	}
	for of, carrier := range s.Charts.Carriers {
		uids[of.String()+", "+of.Release+": "+carrier.Kind] = carrier.UID
	}
	return uids
}

// noteKept forgets, of the objects of the last quiet point, those that somebody deleted
// since or that nobody wanted for a moment: they may have been made anew.
func (r *run) noteKept() {
	there, wanted := uidsOf(r.state), uidsOf(oracle.Settle(r.state))
	maps.DeleteFunc(r.kept, func(name string, uid types.UID) bool { return there[name] != uid || wanted[name] != uid })
	// Somebody has deleted the Fleet Clusters of all that it was for: with these goes what Fleet
	// made of it, whether it stays or not.
	for of, carrier := range r.state.Charts.Carriers {
		if len(carrier.Targets) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(carrier.Targets)), func(name string) bool {
			return r.state.FleetClusters[oracle.Key{Namespace: of.Namespace, Name: name}] != nil
		}) {
			delete(r.kept, of.String()+", "+of.Release+": "+carrier.Kind)
		}
	}
}

// nothingAnew fails if one of the objects that stay is another than it was at the last
// quiet point: to Fleet that is another cluster, to which it deploys everything again.
func (r *run) nothingAnew() error {
	seen := uidsOf(r.state)
	for _, name := range slices.Sorted(maps.Keys(r.kept)) {
		if seen[name] != r.kept[name] {
			return &oracleError{fmt.Sprintf("%s was made anew, and nothing was the matter with it", name)}
		}
	}
	r.kept = seen
	return nil
}
