package rollouts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// story tells a Judge of a HelmChartProxy with a canary, and of four Clusters, the first of which is the canary.
type story struct {
	*Judge
	at    time.Time
	proxy *addonsv1.HelmChartProxy
	// bundle has a version for all, and lists who may take it over.
	bundle *fleetv1.Bundle
}

func begin(rest addonsv1.RolloutStage) *story {
	s := &story{Judge: NewJudge("team"), at: time.Unix(1e9, 0), proxy: &addonsv1.HelmChartProxy{}, bundle: &fleetv1.Bundle{}}
	s.proxy.Spec.Version = "1"
	s.proxy.Spec.Rollout = &addonsv1.RolloutStrategy{Stages: []addonsv1.RolloutStage{
		{Name: "canary", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{tier: "canary"}}, Soak: &metav1.Duration{Duration: 10 * time.Second}}, rest,
	}}
	s.bundle.Spec.Helm, s.bundle.Spec.HelmOpOptions = &fleetv1.HelmOptions{Version: "1"}, &fleetv1.BundleHelmOptions{}
	s.see("web", s.proxy)
	for i := range 4 {
		name := clusterName(i)
		s.bundle.Spec.Targets = append(s.bundle.Spec.Targets, fleetv1.BundleTarget{ClusterName: name})
		release := &addonsv1.HelmReleaseProxy{}
		release.Spec.ClusterRef.Name = name
		release.Status.Conditions = []metav1.Condition{{Type: addonsv1.HelmReleaseReadyCondition, Status: metav1.ConditionTrue}}
		s.see(name, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{tier: map[bool]string{true: "canary"}[i == 0]}}})
		s.see(name, &fleetv1.Cluster{})
		s.see(name, release)
	}
	s.see("web", s.bundle)
	for i := range 4 {
		s.has(i, "1", true)
	}
	s.see("web", s.bundle) // Now all are installed.
	s.passes(time.Minute)
	s.wants("2")
	return s
}

func (s *story) passes(length time.Duration) { s.at = s.at.Add(length) }

func (s *story) see(name string, object client.Object) {
	object = object.DeepCopyObject().(client.Object)
	object.SetNamespace(s.namespace)
	object.SetName(name)
	s.passes(100 * time.Millisecond)
	s.See(Event{At: s.at, Object: object})
}

func (s *story) wants(version string) {
	s.proxy.Spec.Version = version
	s.proxy.Generation++
	s.see("web", s.proxy)
}

// offers has the Bundle offer a version to some Clusters.
func (s *story) offers(version string, numbers ...int) {
	s.bundle.Spec.Helm.Version = version
	s.bundle.Spec.RolloutStrategy = &fleetv1.RolloutStrategy{}
	for _, number := range numbers {
		s.bundle.Spec.RolloutStrategy.Partitions = append(s.bundle.Spec.RolloutStrategy.Partitions, fleetv1.Partition{ClusterName: clusterName(number)})
	}
	s.see("web", s.bundle)
}

// has has a Cluster deploy a version, which becomes ready or fails.
func (s *story) has(number int, version string, isReady bool) {
	its := &fleetv1.BundleDeployment{}
	its.Labels = map[string]string{fleetv1.ClusterLabel: clusterName(number), fleetv1.ClusterNamespaceLabel: s.namespace}
	its.Spec.DeploymentID, its.Spec.HelmChartOptions, its.Spec.Options.Helm = version, &fleetv1.BundleHelmOptions{}, &fleetv1.HelmOptions{Version: version}
	s.see(clusterName(number), its)
	if its.Status.AppliedDeploymentID, its.Status.Ready = version, isReady; !isReady {
		setDeployed(&its.Status, corev1.ConditionFalse, "no")
	}
	s.see(clusterName(number), its)
}

func (s *story) approves(shown, approved string) {
	s.proxy.Status.Rollout = &addonsv1.RolloutStatus{Approval: shown}
	s.see("web", s.proxy)
	s.proxy.Annotations = map[string]string{addonsv1.RolloutApprovedAnnotation: approved}
	s.see("web", s.proxy)
}

// completes notes the rollout as completed.
func (s *story) completes() {
	s.proxy.Status.ObservedGeneration = s.proxy.Generation
	s.proxy.Status.Conditions = []metav1.Condition{{Type: addonsv1.RolloutCompletedCondition, Status: metav1.ConditionTrue}}
	s.proxy.Status.Rollout = &addonsv1.RolloutStatus{LastCompleted: &addonsv1.CompletedRollout{Time: metav1.NewTime(s.at)}}
	s.see("web", s.proxy)
}

// canary rolls the canary out, and waits for as long.
func (s *story) canary(soak time.Duration) {
	s.offers("2", 0)
	s.has(0, "2", true)
	s.passes(soak)
}

func TestJudge(t *testing.T) {
	one := ptr.To(intstr.FromInt32(1))
	all := addonsv1.RolloutStage{Name: "rest", Percent: ptr.To[int32](100)}
	slowly, manual := all, all
	slowly.MaxUnavailable, manual.Approval = one, addonsv1.RolloutApprovalManual
	for name, test := range map[string]struct {
		rest addonsv1.RolloutStage
		play func(*story)
		want string
	}{
		"in order":        {all, func(s *story) { s.canary(time.Minute); s.offers("2", 0, 1, 2, 3) }, ""},
		"before the gate": {all, func(s *story) { s.offers("2", 0, 1) }, "c0 of stage \"canary\" is not done"},
		"the canary deploys it, and is not ready": {all, func(s *story) {
			s.offers("2", 0)
			s.has(0, "2", false)
			s.passes(time.Minute)
			s.offers("2", 0, 1)
		}, "c0 of stage \"canary\" is not done"},
		"before the soak time is over": {all, func(s *story) { s.canary(5 * time.Second); s.offers("2", 0, 1) }, "c0 of stage \"canary\" is not done"},
		"deployed, though held":        {all, func(s *story) { s.offers("2", 0); s.has(1, "2", true) }, "c1 of stage \"rest\" gets 2"},
		"what nobody wants":            {all, func(s *story) { s.canary(time.Minute); s.offers("3", 1) }, "nobody wants that"},
		"what nobody wants any more":   {all, func(s *story) { s.canary(time.Minute); s.wants("3"); s.passes(time.Minute); s.offers("2", 1) }, "c0 of stage \"canary\" is not done"},
		"what was wanted until now":    {all, func(s *story) { s.canary(time.Minute); s.wants("3"); s.offers("2", 1) }, ""},
		"one at a time": {slowly, func(s *story) {
			s.canary(time.Minute)
			s.offers("2", 0, 1)
			s.has(1, "2", true)
			s.offers("2", 0, 1, 2)
		}, ""},
		"two at a time": {slowly, func(s *story) { s.canary(time.Minute); s.offers("2", 0, 1); s.offers("2", 0, 1, 2) }, "then 2 are unavailable, and 1 may be"},
		"after one has failed": {all, func(s *story) {
			s.canary(time.Minute)
			s.offers("2", 1)
			s.has(1, "2", false)
			s.passes(time.Minute)
			s.offers("2", 1, 2)
		}, "the change fails on 1 Clusters"},
		"completed": {all, func(s *story) {
			s.canary(time.Minute)
			s.offers("2", 0, 1, 2, 3)
			for i := range 4 {
				s.has(i, "2", true)
			}
			s.completes()
		}, ""},
		"completed before one has it": {all, func(s *story) {
			s.canary(time.Minute)
			s.offers("2", 0, 1, 2, 3)
			for i := range 3 {
				s.has(i, "2", true)
			}
			s.completes()
		}, "completed, and c3 is to have 2"},
		"completed at once": {all, func(s *story) { s.completes(); s.canary(time.Minute); s.offers("2", 0, 1) }, "completed, and c0 is to have 2"},
		"back to what was completed": {all, func(s *story) {
			s.wants("1")
			s.completes()
			s.wants("2")
			s.canary(time.Minute)
			s.offers("2", 0, 1)
			s.has(1, "2", true)
			s.wants("1")
			s.passes(time.Minute)
			s.offers("1", 1)
		}, ""},
		"without approval":         {manual, func(s *story) { s.canary(time.Minute); s.offers("2", 0, 1) }, "nobody has approved that"},
		"approved":                 {manual, func(s *story) { s.canary(time.Minute); s.approves("x", "x"); s.offers("2", 0, 1) }, ""},
		"approved by another hash": {manual, func(s *story) { s.canary(time.Minute); s.approves("x", "y"); s.offers("2", 0, 1) }, "nobody has approved that"},
		"approved before it was wanted": {manual, func(s *story) {
			s.passes(time.Minute)
			s.approves("x", "x")
			s.wants("3")
			s.offers("3", 0)
			s.has(0, "3", true)
			s.passes(time.Minute)
			s.offers("3", 0, 1)
		}, "nobody has approved that"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(test.rest)
			test.play(s)
			switch text := fmt.Sprint(s.violations); {
			case test.want == "" && len(s.violations) > 0, !strings.Contains(text, test.want):
				t.Errorf("it says %s, not %q\n%s", text, test.want, s.Told())
			}
			if s.moves == 0 {
				t.Error("nothing was judged")
			}
		})
	}
}
