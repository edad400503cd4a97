package proxy

import (
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies/policiestest"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/program"
)

// An outdated release is removed as soon as the chart of the next one is available, and not earlier. An installed
// InstallOnce release is never removed.
func TestRenamed(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	agent, manager := &inputs.Inputs{Chart: plan.Chart{Version: "1.0.0", Agent: true}}, &inputs.Inputs{Chart: plan.Chart{Version: "1.0.0"}}
	missing := &inputs.Inputs{Incomplete: true, Trouble: plan.Trouble{Reason: addonsv1.HelmReleaseProxyCreationFailedReason, Message: "no chart"}}
	for name, test := range map[string]struct {
		in     *inputs.Inputs
		record plan.Record
		once   bool
		stays  bool
		says   string
		policy string // the namespace of a Policy that requires a ServiceAccount
	}{
		"a Policy refuses the next one":  {in: agent, policy: "team", stays: true},
		"a Policy of another namespace":  {in: agent, policy: "other"},
		"agents download the chart":      {in: agent},
		"there is no chart":              {in: missing, stays: true},
		"the repository does not answer": {in: manager, stays: true, says: "stays until the chart is available"},
		"installed once":                 {in: agent, once: true, record: plan.Record{Installed: true}, stays: true},
		"InstallOnce, not installed yet": {in: agent, once: true},
	} {
		t.Run(name, func(t *testing.T) {
			of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "web"}}
			if test.once {
				of.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce
			}
			key := plan.Key{Namespace: "team", Name: "one"}
			have := wantedRelease(of, manager, key, nil)
			have.Name = "web-one"
			have.Annotations[plan.BundleAnnotation], have.Annotations[plan.RecordAnnotation] = plan.BundleName(of, key, 0), test.record.String()
			of.Spec.ReleaseName = "other"
			objects := []client.Object{have}
			if test.policy != "" {
				policy := &fleetv1.Policy{RequireServiceAccount: true}
				policy.Namespace, policy.Name = test.policy, "policy"
				objects = append(objects, policy, policiestest.CRD())
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(have), have); err != nil {
				t.Fatal(err)
			}
			r := &Reconciler{Store: store.New(c, c, "muster", clock.RealClock{}), Inputs: &inputs.Reader{Charts: repository.New(repository.Options{})}, Policies: policiestest.NewReader(c)}
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"}}
			now := &state{clusters: []*clusterv1.Cluster{cluster}, releases: []*addonsv1.HelmReleaseProxy{have.DeepCopy()}}
			_, err := r.putReleases(t.Context(), of, test.in, now)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, want %q", err, test.says)
			}
			got := &addonsv1.HelmReleaseProxy{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(have), got); err != nil {
				t.Fatal(err)
			}
			if stays := got.DeletionTimestamp.IsZero(); stays != test.stays {
				t.Errorf("it stays: %t, want %t", stays, test.stays)
			}
			if got.Spec.ReleaseName != "web" || got.Spec.ClusterRef != (corev1.ObjectReference{APIVersion: have.Spec.ClusterRef.APIVersion, Kind: "Cluster", Namespace: "team", Name: "one"}) {
				t.Errorf("it was changed: %v", got.Spec)
			}
		})
	}
}
