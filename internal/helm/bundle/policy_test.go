package bundle

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies/policiestest"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// While a Policy refuses the ServiceAccount, a Bundle is not created, and an existing one stays as it is, but for a target that
// goes. When the last one goes, so does the Bundle: Fleet would not uninstall the release otherwise.
func TestPolicyRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		policy, had, serviceAccount string // of the Policy's namespace, the Bundle and the HelmChartProxy
		isNew, isDeleted, isBeside  bool
		lives                       bool
		version                     string
		targets                     int
	}{
		"a new one":                         {policy: "team", isNew: true},
		"a new one, allowed":                {policy: "team", serviceAccount: "deployer", isNew: true, lives: true},
		"a change":                          {policy: "team", lives: true, version: "1.0.0", targets: 1},
		"a change, allowed":                 {policy: "team", serviceAccount: "deployer", lives: true, version: "2.0.0", targets: 1},
		"a Policy of another namespace":     {policy: "other", lives: true, version: "2.0.0", targets: 1},
		"no longer the one that is allowed": {policy: "team", had: "deployer", serviceAccount: "other", lives: true, version: "1.0.0", targets: 1},
		"one of two is deselected":          {policy: "team", isDeleted: true, isBeside: true, lives: true, version: "1.0.0", targets: 1},
		"the last is deselected":            {policy: "team", isDeleted: true},
		"the last of one that is allowed":   {policy: "team", had: "deployer", serviceAccount: "other", isDeleted: true, lives: true, version: "1.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
			of.Spec.ServiceAccount = test.had
			cluster, fleet := selected()
			have := plan.NewBundle(of, "team", plan.BundleName(of, key, 0), plan.Chart{Version: "1.0.0", Agent: true}, "")
			have.Finalizers = []string{"fleet"}
			release := releaseOf(of, key, have.Name, plan.Record{FleetCluster: "one", Installed: true})
			target, _ := plan.TargetOf(of, release, plan.RecordOf(release))
			have.Spec.Targets = []fleetv1.BundleTarget{target}
			of.Spec.ServiceAccount = test.serviceAccount
			policy := &fleetv1.Policy{RequireServiceAccount: true, AllowedServiceAccounts: []string{"deployer"}}
			policy.Namespace, policy.Name = test.policy, "policy"
			objects := []client.Object{cluster, fleet, policy, policiestest.CRD()}
			if !test.isNew {
				objects = append(objects, have)
			}
			r := reconciler(t, objects...)
			r.Inputs = &inputs.Reader{Now: func() time.Time { return time.Time{}.Add(time.Hour) }} // All releases have had their time.
			s := &scope{key: client.ObjectKeyFromObject(have), of: of, releases: []*addonsv1.HelmReleaseProxy{release}}
			s.in = &inputs.Inputs{Chart: plan.Chart{Version: "2.0.0", Agent: true}}
			s.in.Selector, _ = plan.NewSelector(of)
			if test.isDeleted {
				release.DeletionTimestamp = ptr.To(metav1.Now())
			}
			var err error
			if s.have, err = r.Bundle(t.Context(), s.key); err != nil {
				t.Fatal(err)
			}
			if test.isBeside {
				beside := release.DeepCopy()
				beside.DeletionTimestamp, s.releases = nil, append(s.releases, beside)
				s.releases[0], s.releases[1] = s.releases[1], s.releases[0]
				s.releases[1].Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "two", Installed: true}.String()
			}
			if _, err := r.carryOut(t.Context(), s, 0); err != nil {
				t.Fatal(err)
			}
			got := &fleetv1.Bundle{}
			switch err := r.Get(t.Context(), s.key, got); {
			case apierrors.IsNotFound(err) || err == nil && !got.DeletionTimestamp.IsZero():
				if test.lives {
					t.Error("there is no Bundle")
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			version := ""
			if got.Spec.Helm != nil {
				version = got.Spec.Helm.Version
			}
			if !test.lives || !test.isNew && version != test.version || len(got.Spec.Targets) != test.targets {
				t.Errorf("there is a Bundle with chart %s and %d targets", version, len(got.Spec.Targets))
			}
			if want := map[bool]string{true: test.serviceAccount, false: test.had}[test.isNew || version == "2.0.0"]; got.Spec.ServiceAccount != want {
				t.Errorf("its ServiceAccount is %q, want %q", got.Spec.ServiceAccount, want)
			}
		})
	}
}

// Fleet does not look by itself at a Bundle that it has refused.
func TestRefusalEnds(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	cluster, fleet := selected()
	have := plan.NewBundle(of, "team", plan.BundleName(of, key, 0), plan.Chart{Version: "2.0.0", Agent: true}, "")
	release := releaseOf(of, key, have.Name, plan.Record{FleetCluster: "one", Installed: true})
	target, _ := plan.TargetOf(of, release, plan.RecordOf(release))
	have.Spec.Targets = []fleetv1.BundleTarget{target}
	have.Status.Conditions = []genericcondition.GenericCondition{{
		Type: "Ready", Status: "False", Reason: "Error", Message: "serviceAccount is required by Policy but is not set on the Bundle",
	}}
	policy := &fleetv1.Policy{RequireServiceAccount: true}
	policy.Namespace, policy.Name = "team", "policy"
	r := trimming(reconciler(t, cluster, fleet, policy, policiestest.CRD(), have))
	now := clocktesting.NewFakeClock(time.Now())
	r.Store = store.New(r.Client, r.Live, "muster", now)
	look := func() (value string, again bool) {
		s := &scope{key: client.ObjectKeyFromObject(have), of: of, releases: []*addonsv1.HelmReleaseProxy{release}}
		in := &inputs.Inputs{Chart: plan.Chart{Version: "2.0.0", Agent: true}}
		in.Selector, _ = plan.NewSelector(of)
		s.in = in
		var err error
		if s.have, err = r.Bundle(t.Context(), s.key); err != nil {
			t.Fatal(err)
		}
		after, err := r.carryOut(t.Context(), s, 0)
		if err != nil {
			t.Fatal(err)
		}
		live := &fleetv1.Bundle{}
		if err := r.Live.Get(t.Context(), s.key, live); err != nil {
			t.Fatal(err)
		}
		return live.Annotations[desired.RetargetAnnotation], after > 0
	}
	if value, again := look(); value != "" || again {
		t.Errorf("refused: Fleet is made to look (%q), again %t", value, again)
	}
	if err := r.Live.(client.Client).Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	first, again := look()
	if first == "" || !again {
		t.Errorf("no longer refused: Fleet is made to look (%q), again %t", first, again)
	}
	if value, again := look(); value != first || !again {
		t.Errorf("at once: Fleet is made to look (%q), again %t", value, again)
	}
	now.Step(store.BehindInterval)
	if value, again := look(); value == first || !again {
		t.Errorf("Fleet may have seen the Policy still: it is made to look (%q), again %t", value, again)
	}
	live := have.DeepCopy()
	if err := r.Live.Get(t.Context(), client.ObjectKeyFromObject(have), live); err != nil {
		t.Fatal(err)
	}
	live.Status.Conditions[0].Status, live.Status.Conditions[0].Message = "True", ""
	if err := r.Live.(client.Client).Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	now.Step(10 * time.Minute)
	last := live.Annotations[desired.RetargetAnnotation]
	if value, again := look(); value != last || again {
		t.Errorf("Fleet has taken it: it is made to look (%q), again %t", value, again)
	}
}
