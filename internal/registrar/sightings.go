package registrar

import (
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
)

// sightings remember since when the cache has shown the clientID of a Cluster's Fleet Cluster.
type sightings struct {
	mu   sync.Mutex
	last map[types.NamespacedName]sighting
}

type sighting struct {
	fleet    types.UID
	clientID string
	since    time.Time
}

// since returns when the clientID that a Cluster's Fleet Cluster has now was first looked at.
func (s *sightings) since(cluster types.NamespacedName, fleet *fleetv1.Cluster, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.last[cluster]
	if last.fleet != fleet.UID || last.clientID != fleet.Spec.ClientID {
		last = sighting{fleet.UID, fleet.Spec.ClientID, now}
		if s.last == nil {
			s.last = map[types.NamespacedName]sighting{}
		}
		s.last[cluster] = last
	}
	return last.since
}

// forget drops a Cluster that is gone.
func (s *sightings) forget(cluster types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, cluster)
}
