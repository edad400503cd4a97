package charts

import (
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
)

// settling remembers for which Clusters values were changed that Fleet has not noticed yet: until it
// has, what it says of their releases is of the values before. It counts what it notices, and no
// generation of ours tells; so what it does not notice for long is taken for noticed.
type settling struct {
	mu  sync.Mutex
	all map[plan.Key]map[deploymentKey]changedValues
}

type changedValues struct {
	counted int64
	until   time.Time
}

func newSettling() *settling { return &settling{all: map[plan.Key]map[deploymentKey]changedValues{}} }

// note notes whose values an object holds, which has just been changed.
func (s *settling) note(v *visit, object client.ObjectKey, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, isShared := plan.NumberOf(object.Name, plan.SharedName(v.key, object.Namespace))
	ofOne := plan.ValuesName(v.key, object.Namespace, "")
	for _, cluster := range v.clusters {
		its := deploymentKey{cluster.Namespace, cluster.fleet}
		_, isOwn := plan.NumberOf(object.Name, ofOne+its.fleetCluster)
		deployment := v.deployments[its]
		if object.Namespace != its.namespace || !isShared && !isOwn || deployment == nil || v.isFrozen(cluster) {
			continue
		}
		if names := readBy(deployment); len(names) > 0 && !slices.Contains(names, object.Name) {
			continue
		}
		if s.all[v.key] == nil {
			s.all[v.key] = map[deploymentKey]changedValues{}
		}
		s.all[v.key][its] = changedValues{deployment.Spec.DownstreamResourcesGeneration, now.Add(pollInterval)}
	}
}

// hold has no release called ready that is of the values before.
func (s *settling) hold(v *visit, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for its, changed := range s.all[v.key] {
		deployment := v.deployments[its]
		if deployment == nil || deployment.Spec.DownstreamResourcesGeneration != changed.counted || !now.Before(changed.until) {
			delete(s.all[v.key], its)
			continue
		}
		for _, cluster := range v.clusters {
			if cluster.Namespace == its.namespace && cluster.fleet == its.fleetCluster && cluster.outcome.Release.Ready {
				cluster.outcome.Release = cluster.outcome.Release.Behind()
				v.again = sooner(v.again, changed.until.Sub(now))
			}
		}
	}
	if len(s.all[v.key]) == 0 {
		delete(s.all, v.key)
	}
}

func (s *settling) forget(proxy plan.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, proxy)
}
