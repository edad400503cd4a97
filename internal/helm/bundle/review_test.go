package bundle

import (
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

func TestReviewForged(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.Rollout = &addonsv1.RolloutStrategy{}
	own := releaseOf(of, key, "b", plan.Record{FleetCluster: "one", Installed: true, Rollout: &plan.Rollout{Content: "old"}})
	forged := releaseOf(of, key, "b", plan.Record{FleetCluster: "one"})
	s := &scope{of: of, releases: []*addonsv1.HelmReleaseProxy{own, forged}}
	if got := s.strategy([]fleetv1.BundleTarget{{ClusterName: "one"}}, "new"); got == nil {
		t.Error("a forged HelmReleaseProxy sets the Cluster free")
	}
}
