package store

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
)

// pacer knows what was written just before, and who waits.
type pacer struct {
	// paced maps the key of each object that was written less than pace ago to the end of that time, and that of each
	// HelmReleaseProxy to the version that was written last, for kube.Lag.
	paced *cache.Expiring
	// mu is held by Wrote.
	mu sync.Mutex
	// waits are the delays before those look again who wait, without an event, for another reconcile to finish. That may
	// take long: a policy may refuse its write.
	waits *flowcontrol.Backoff
	clock clock.Clock
}

func newPacer(clock clock.Clock) pacer {
	waits := flowcontrol.NewBackOff(BehindInterval, kube.LongestWait)
	waits.Clock = clock
	return pacer{paced: cache.NewExpiringWithClock(clock), waits: waits, clock: clock}
}

// BehindInterval is the delay before the next reconcile if the cache is behind a recent write.
const BehindInterval = time.Second

// UntilLook returns the delay before the next look of who waits for another reconcile. It grows with each look, and not with
// events that come in between.
func (p *pacer) UntilLook(id string) time.Duration {
	if p.MayLook(id) {
		p.waits.Next(id, p.clock.Now())
	}
	return p.waits.Get(id)
}

// MayLook reports whether the delay of the last UntilLook is over.
func (p *pacer) MayLook(id string) bool { return !p.waits.IsInBackOffSinceUpdate(id, p.clock.Now()) }

// ForgetLook lets the delays begin anew.
func (p *pacer) ForgetLook(id string) { p.waits.Reset(id) }

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
func (p *pacer) UntilBundle(key plan.Key) time.Duration { return p.until(bundlePace(key)) }

// UntilDisplay returns the time until the display of a HelmChartProxy may be written again; zero for now.
func (p *pacer) UntilDisplay(key plan.Key) time.Duration { return p.until(statusPace(key)) }

func (p *pacer) until(key paced) time.Duration {
	end, _ := p.paced.Get(key)
	until, _ := end.(time.Time)
	return max(0, until.Sub(p.clock.Now()))
}

// Wrote notes the version of a HelmReleaseProxy that was just written.
func (p *pacer) Wrote(object client.Object) {
	release, is := object.(*addonsv1.HelmReleaseProxy)
	if !is {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.IsPast(release) { // The answers of two writes may come in another order.
		p.paced.Set(releasePace(release), release.ResourceVersion, kube.Lag)
	}
}

// IsPast reports whether a HelmReleaseProxy is as it was before this program wrote it last. The event of that write follows.
func (p *pacer) IsPast(release *addonsv1.HelmReleaseProxy) bool {
	version, found := p.paced.Get(releasePace(release))
	return found && kube.IsOlder(release, version.(string))
}

func (p *pacer) wrote(key paced) { p.paced.Set(key, p.clock.Now().Add(pace), pace) }
