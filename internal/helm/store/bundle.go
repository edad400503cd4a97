package store

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
)

// pace is the shortest time between two changes of a Bundle. When many Clusters are added, one write takes many
// targets: each makes the API server and this program read the whole Bundle, and Fleet look at all its targets. It is also
// the shortest time after a status of a HelmChartProxy in which only what people see changes.
const pace = time.Second

// paced is the key of an object that was written less than pace ago.
type paced struct {
	kind string
	plan.Key
}

func bundlePace(key plan.Key) paced { return paced{"Bundle", key} }
func statusPace(key plan.Key) paced { return paced{"HelmChartProxy", key} }
func releasePace(release *addonsv1.HelmReleaseProxy) paced {
	return paced{"HelmReleaseProxy", client.ObjectKeyFromObject(release)}
}

// UntilBundle returns the time until a Bundle may be changed again; zero for now.
func (s *Store) UntilBundle(key plan.Key) time.Duration { return s.until(bundlePace(key)) }

// UntilDisplay returns the time until the display of a HelmChartProxy may be written again; zero for now.
func (s *Store) UntilDisplay(key plan.Key) time.Duration { return s.until(statusPace(key)) }

func (s *Store) until(key paced) time.Duration {
	end, _ := s.paced.Get(key)
	until, _ := end.(time.Time)
	return max(0, until.Sub(s.clock.Now()))
}

// Wrote notes the version of a HelmReleaseProxy that was just written.
func (s *Store) Wrote(object client.Object) {
	if release, is := object.(*addonsv1.HelmReleaseProxy); is {
		s.paced.Set(releasePace(release), release.ResourceVersion, kube.Lag)
	}
}

// IsPast reports whether a HelmReleaseProxy is as it was before this program wrote it last. The event of that write follows.
func (s *Store) IsPast(release *addonsv1.HelmReleaseProxy) bool {
	version, found := s.paced.Get(releasePace(release))
	return found && kube.IsOlder(release, version.(string))
}

func (s *Store) wrote(key paced) { s.paced.Set(key, s.clock.Now().Add(pace), pace) }

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
		s.wrote(bundlePace(client.ObjectKeyFromObject(have)))
	}
	return client.IgnoreNotFound(err)
}
