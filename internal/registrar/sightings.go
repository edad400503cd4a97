package registrar

import (
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// looked are the Clusters whose Secret was looked for since the program started. Where
// nothing says that there is one it is looked for once: a watch of Secrets would take the
// right to read all of them.
type looked struct {
	mu  sync.Mutex
	uid map[types.NamespacedName]types.UID
}

func (l *looked) at(cluster *clusterv1.Cluster) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uid[client.ObjectKeyFromObject(cluster)] == cluster.UID
}

func (l *looked) note(cluster *clusterv1.Cluster) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.uid == nil {
		l.uid = map[types.NamespacedName]types.UID{}
	}
	l.uid[client.ObjectKeyFromObject(cluster)] = cluster.UID
}

func (l *looked) forget(cluster types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.uid, cluster)
}
