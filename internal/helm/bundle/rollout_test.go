package bundle

import (
	"errors"
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// A Bundle gets a new chart when the rollout allows the first of its releases to have it, in one write with the
// partitions that hold the others, and after the BundleDeployment that keeps their Content.
func TestHeldReleases(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.Rollout, of.Spec.Version = &addonsv1.RolloutStrategy{}, "1.0.0"
	name := plan.BundleName(of, key, 0)
	bundleKey := plan.Key{Namespace: "team", Name: name}
	content := func(version string) string {
		return plan.NewBundle(of, "team", name, plan.Chart{Version: version, Agent: true}, "").Labels[plan.ContentLabel]
	}
	record := func(cluster string, content string) plan.Record {
		return plan.Record{FleetCluster: cluster, Digest: "x", Keys: []string{"values.yaml"}, Installed: true, Rollout: &plan.Rollout{Content: content}}
	}
	have := plan.NewBundle(of, "team", name, plan.Chart{Version: "1.0.0", Agent: true}, "")
	have.Generation = 1
	objects := []client.Object{have}
	for _, cluster := range []string{"one", "two"} {
		have.Spec.Targets = append(have.Spec.Targets, fleetv1.BundleTarget{Name: cluster, ClusterName: cluster})
		deployment := &fleetv1.BundleDeployment{}
		deployment.Namespace, deployment.Name = stamp.FleetNamespace("team", cluster), name
		deployment.Labels = map[string]string{fleetv1.ContentNameLabel: "s-old"}
		deployment.Spec.DeploymentID = "s-old:options"
		objects = append(objects, deployment)
	}
	r := reconciler(t, objects...)
	r.Inputs = &inputs.Reader{Now: func() time.Time { return time.Time{}.Add(time.Hour) }}
	of.Spec.Version = "2.0.0"
	in := &inputs.Inputs{Chart: plan.Chart{Version: "2.0.0", Agent: true}, Digest: "2.0.0"}
	one, two := releaseOf(of, key, name, record("one", content("1.0.0"))), releaseOf(of, plan.Key{Namespace: "team", Name: "two"}, name, record("two", content("1.0.0")))
	// put writes the Bundle, and returns its chart's version, the Clusters in partitions, and the Contents that are kept.
	put := func() (version string, listed, kept []string) {
		t.Helper()
		its := &fleetv1.Bundle{}
		if err := r.Get(t.Context(), bundleKey, its); err != nil {
			t.Fatal(err)
		}
		err := r.put(t.Context(), &scope{bundleKey, its, of, in, []*addonsv1.HelmReleaseProxy{one, two}, 0}, its.Spec.Targets)
		if err != nil && !errors.Is(err, errUnseen) {
			t.Error(err)
		}
		var all fleetv1.BundleDeploymentList
		if err := r.List(t.Context(), &all, client.InNamespace("team")); err != nil {
			t.Fatal(err)
		}
		if err := r.Get(t.Context(), bundleKey, its); err != nil {
			t.Fatal(err)
		}
		if its.Spec.RolloutStrategy != nil {
			for _, partition := range its.Spec.RolloutStrategy.Partitions {
				listed = append(listed, partition.ClusterName)
			}
		}
		for _, keeper := range all.Items {
			if !keeper.Spec.Paused || keeper.Spec.DeploymentID != "" || len(keeper.OwnerReferences) != 1 {
				t.Errorf("it deploys something, or stays: %v", keeper)
			}
			kept = append(kept, keeper.Labels[fleetv1.ContentNameLabel])
		}
		return its.Spec.Helm.Version, listed, kept
	}
	expect := func(wantVersion string, wantListed, wantKept []string) {
		t.Helper()
		if version, listed, kept := put(); version != wantVersion || !slices.Equal(listed, wantListed) || !slices.Equal(kept, wantKept) {
			t.Errorf("chart %s, partitions %v, kept %v; want %s, %v, %v", version, listed, kept, wantVersion, wantListed, wantKept)
		}
	}
	report := func() {
		for _, its := range []*addonsv1.HelmReleaseProxy{one, two} {
			r.Inputs.Saw(its, in)
		}
	}
	report()
	expect("1.0.0", nil, nil) // No Cluster may be updated.
	in.Digest = "others"
	one = releaseOf(of, key, name, record("one", content("2.0.0")))
	expect("1.0.0", nil, nil) // The other release has not reported its content, for however long.
	report()
	expect("2.0.0", []string{"one"}, []string{"s-old"})
	taken := func(cluster, deploymentID string) { // Fleet labels each BundleDeployment with the newest Content.
		deployment := &fleetv1.BundleDeployment{}
		if err := r.Get(t.Context(), plan.Key{Namespace: stamp.FleetNamespace("team", cluster), Name: name}, deployment); err != nil {
			t.Fatal(err)
		}
		deployment.Labels[fleetv1.ContentNameLabel], deployment.Spec.DeploymentID = "s-new", deploymentID
		if err := r.Update(t.Context(), deployment); err != nil {
			t.Fatal(err)
		}
	}
	taken("one", "s-new:options")
	taken("two", "s-old:options")
	expect("2.0.0", []string{"one"}, []string{"s-old"})
	joined := plan.Record{FleetCluster: "two", Digest: "x", Keys: []string{"values.yaml"}, Rollout: &plan.Rollout{Content: content("1.0.0")}}
	two = releaseOf(of, plan.Key{Namespace: "team", Name: "two"}, name, joined)
	expect("2.0.0", nil, []string{"s-old"}) // One that is not installed is not held; its BundleDeployment still names the Content.
	taken("two", "s-new:options")
	expect("2.0.0", nil, nil)
}

// If no Cluster may move, a partition that lists none holds all.
func TestNobodyMoves(t *testing.T) {
	targets := []fleetv1.BundleTarget{{ClusterName: "one"}}
	all := plan.StrategyFor(targets, func(string) bool { return true })
	if all == nil || len(all.Partitions) != 1 || all.Partitions[0].ClusterName == "one" {
		t.Errorf("all held: %v", all)
	}
	if none := plan.StrategyFor(targets, func(string) bool { return false }); !equality.Semantic.DeepEqual(none, (*fleetv1.RolloutStrategy)(nil)) {
		t.Errorf("none held: %v", none)
	}
}

// A forged HelmReleaseProxy for the same Fleet Cluster does not set it free.
func TestForgedReleaseFreesNobody(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.Rollout = &addonsv1.RolloutStrategy{}
	own := releaseOf(of, key, "b", plan.Record{FleetCluster: "one", Installed: true, Rollout: &plan.Rollout{Content: "old"}})
	forged := releaseOf(of, key, "b", plan.Record{FleetCluster: "one"})
	s := &scope{of: of, releases: []*addonsv1.HelmReleaseProxy{own, forged}}
	if got := s.strategy([]fleetv1.BundleTarget{{ClusterName: "one"}}, "new"); got == nil {
		t.Error("a forged HelmReleaseProxy sets the Cluster free")
	}
}
