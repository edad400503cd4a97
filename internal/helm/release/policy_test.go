package release

import (
	"testing"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// A release that a Policy refuses says so, and keeps its values and its record. An InstallOnce release that is installed is
// not concerned.
func TestPolicyRefuses(t *testing.T) {
	refused := plan.Trouble{Reason: addonsv1.PolicyRefusesReason, Message: "set it"}
	for name, test := range map[string]struct {
		strategy string
		trouble  plan.Trouble // of the inputs
		want     string
		isTaken  bool
	}{
		"refused":               {trouble: refused, want: addonsv1.PolicyRefusesReason},
		"another has it, too":   {trouble: refused, want: addonsv1.PolicyRefusesReason, isTaken: true},
		"installed once":        {strategy: addonsv1.ReconcileStrategyInstallOnce, trouble: refused},
		"some other trouble":    {trouble: plan.Trouble{Reason: addonsv1.HelmReleaseProxyCreationFailedReason, Message: "no chart"}},
		"nothing is the matter": {},
	} {
		t.Run(name, func(t *testing.T) {
			renders := &renderer{gives: "who: me"}
			w := newWorld(t, renders)
			s := scopeOf(t, "who: me")
			s.proxy.Spec.ReconcileStrategy, s.inputs.Trouble, s.inputs.Incomplete = test.strategy, test.trouble, test.trouble != (plan.Trouble{})
			s.record.Installed = true
			if err := w.Create(t.Context(), s.cluster.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			if _, err := w.find(t.Context(), s); err != nil || s.trouble.Reason != test.want {
				t.Errorf("it says %v, want %q (%v)", s.trouble, test.want, err)
			}
			if test.isTaken {
				s.trouble = plan.Trouble{Reason: addonsv1.ReleaseTakenReason, Message: "another has it"}
				if s.refuse(); s.trouble.Reason != test.want {
					t.Errorf("it says %v", s.trouble)
				}
			}
			before := s.record
			if err := w.writeValues(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if wrote := renders.count > 0 || s.record.String() != before.String(); wrote != (test.trouble == (plan.Trouble{})) {
				t.Errorf("it was written: %t", wrote)
			}
			if status := plan.ReleaseConditions(s.trouble, plan.Release{Ready: true, Reason: addonsv1.ReadyReason}); test.want != "" && (status[0].Status != "False" || status[0].Reason != test.want || status[2].Status != "True") {
				t.Errorf("the conditions are %v", status)
			}
		})
	}
}
