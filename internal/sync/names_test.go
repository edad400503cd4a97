package sync

import (
	"errors"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

func TestYieldsTo(t *testing.T) {
	cluster := func(name string, pinned bool, reason string) *clusterv1.Cluster {
		result := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		if pinned {
			result.Annotations = map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: name}
		}
		if reason != "" {
			result.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionFalse, Reason: reason}}
		}
		return result
	}
	deleted := cluster("other", true, addonsv1.WaitingForControlPlaneReason)
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	for name, test := range map[string]struct {
		self, other *clusterv1.Cluster
		deselected  bool
		want        bool
	}{
		"not pinned, and the other is accepted":           {self: cluster("me", false, ""), other: cluster("other", true, addonsv1.WaitingForControlPlaneReason), want: true},
		"not pinned, and the other is new":                {self: cluster("me", false, ""), other: cluster("other", true, ""), want: true},
		"not pinned, and the other is paused":             {self: cluster("me", false, ""), other: cluster("other", true, addonsv1.PausedReason), want: true},
		"not pinned, with a forged status":                {self: cluster("me", false, addonsv1.ImportedReason), other: cluster("other", true, ""), want: true},
		"not pinned, and the other's pin is forged":       {self: cluster("me", false, ""), other: cluster("other", true, ""), deselected: true},
		"not pinned, and the other is being deleted":      {self: cluster("me", false, ""), other: deleted},
		"a forged pin, and the other is accepted":         {self: cluster("me", true, ""), other: cluster("other", true, addonsv1.WaitingForControlPlaneReason), want: true},
		"a forged pin, and the other waits for its agent": {self: cluster("me", true, addonsv1.NameConflictReason), other: cluster("other", true, addonsv1.WaitingForAgentReason), want: true},
		"a forged pin while deselected":                   {self: cluster("me", true, addonsv1.DeselectedReason), other: cluster("other", true, addonsv1.TemplateValuesUnresolvedReason), want: true},
		"a forged pin while paused":                       {self: cluster("me", true, addonsv1.PausedReason), other: cluster("other", true, addonsv1.RegistrarMissingReason), want: true},
		"a forged pin after a failure":                    {self: cluster("me", true, addonsv1.FailedReason), other: cluster("other", true, addonsv1.FleetClusterDeletingReason), want: true},
		"accepted, and the other's pin is forged":         {self: cluster("me", true, addonsv1.WaitingForControlPlaneReason), other: cluster("other", true, "")},
		"both are new":      {self: cluster("me", true, ""), other: cluster("other", true, "")},
		"both are accepted": {self: cluster("me", true, addonsv1.WaitingForControlPlaneReason), other: cluster("other", true, addonsv1.WaitingForControlPlaneReason)},
		"a new pin, and the other yields to somebody itself": {self: cluster("me", true, ""), other: cluster("other", true, addonsv1.NameConflictReason)},
		"itself": {self: cluster("me", false, ""), other: cluster("me", true, addonsv1.WaitingForControlPlaneReason)},
	} {
		if got := yieldsTo(test.self, test.other, !test.deselected); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The syncer reconciles two Clusters at once: the cache does not show the first one's Fleet Cluster
// yet when the second one looks for rivals.
func TestRivalThatIsNotInTheCacheYet(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	const first, second = "production-eu-west-1-payments-cluster-0001", "a-production-eu-west-1-payments-cluster-00013967"
	cache := fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&fleetv1.Cluster{}, "muster.fleetNamespace", func(client.Object) []string { return nil }).
		WithIndex(&clusterv1.Cluster{}, "muster.fleetNamespace", func(client.Object) []string { return nil }).Build()
	store := kube.NewStore(cache, scheme)
	made := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: first, UID: "1", ResourceVersion: "1"}}
	if err := store.Created(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	l := &scopeReader{Reader: cache, store: store}
	for name, isBehind := range map[string]bool{second: true, "a-production-eu-west-1-payments-cluster-00024711": false} {
		s := &scope{cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}}
		if rival, err := l.namespaceOwner(t.Context(), s, name); errors.Is(err, kube.ErrBehind) != isBehind || err != nil && !isBehind || rival.Name != "" {
			t.Errorf("the rival of %s is %q (%v)", name, rival.Name, err)
		}
	}
}
