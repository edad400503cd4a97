package store

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
)

// bundlePace is the shortest time between two changes of a Bundle. When many Clusters are added, one write takes many
// targets: each makes the API server and this program read the whole Bundle, and Fleet look at all its targets.
const bundlePace = time.Second

// UntilBundle returns the time until a Bundle may be changed again; zero for now.
func (s *Store) UntilBundle(key plan.Key) time.Duration {
	end, _ := s.paced.Get(key)
	until, _ := end.(time.Time)
	return max(0, until.Sub(s.clock.Now()))
}

// UpdateBundle changes a Bundle as a function does. A change of the spec of a Bundle that the cache has cut is a CutError.
func (s *Store) UpdateBundle(ctx context.Context, have *fleetv1.Bundle, change func(*fleetv1.Bundle)) error {
	want, hold := have.DeepCopy(), sameSpec
	change(want)
	switch isSame := equality.Semantic.DeepEqual(have.Spec, want.Spec); {
	case equality.Semantic.DeepEqual(have, want):
		return nil
	case isSame:
		hold = sameObject // Others cannot keep it from being marked.
	case IsCut(have):
		return &CutError{have}
	}
	err := s.change(ctx, have, want, hold, bundleChanges(have, want))
	if err == nil {
		s.paced.Set(client.ObjectKeyFromObject(have), s.clock.Now().Add(bundlePace), bundlePace)
	}
	return client.IgnoreNotFound(err)
}
