package release

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

func soaking(s *scope) {
	s.proxy.Spec.Rollout = &addonsv1.RolloutStrategy{Stages: []addonsv1.RolloutStage{{Name: "canary", Soak: &metav1.Duration{Duration: 4 * time.Hour}}}}
}

// C: chart 2 was labelled onto the held BundleDeployment; then chart 1 is wanted again.
func TestReviewRevert(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	renders.gives = "a: old"
	record.Rollout.Ready = ptr.To(metav1.NewTime(w.clock.Now().Add(-time.Hour)))
	held := w.write(t, record, template, both(staged(""), soaking, func(s *scope) { s.inputs.Chart.Version = "2.0.0" }))
	if held.record.Rollout.Pending == "" {
		t.Fatal("not held")
	}
	newContent := held.content()
	for name, bundleLabel := range map[string]func(*scope){
		"before the Bundle is written": func(s *scope) { s.bundle.Labels[plan.ContentLabel] = newContent },
		"after, before Fleet":          func(*scope) {},
	} {
		back := w.write(t, held.record, template, both(staged(""), soaking, bundleLabel))
		if back.record.Rollout.Pending != "" {
			t.Error("still pending")
		}
		back.deployment = w.deploymentOf(back, fleetv1.DownstreamResource{Kind: "ConfigMap", Name: back.key(back.record).Name})
		back.deployment.Labels[plan.ContentLabel] = newContent
		back.deployment.Status.Ready, back.deployment.Status.NonModified = true, true
		observed := w.observe(back)
		t.Logf("%s: healthy %v deployed %v failed %v %q; rollout %s", name, observed.Healthy, observed.Deployed, observed.Failed, observed.Message, plan.JSON(back.record.Rollout))
		if back.record.Rollout.Regression != nil {
			t.Errorf("%s: counts as a regression", name)
		}
	}
}

// A: another Bundle, values in a Secret.
func TestReviewAnotherBundle(t *testing.T) {
	renders := &renderer{gives: "a: old"}
	w := newWorld(t, renders)
	record := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), secretOf("a: secret"))).record
	record.Installed = true
	if err := w.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace("team")); err != nil {
		t.Fatal(err)
	}
	renders.gives = "a: new" // Or the key of digests is another one.
	for range 3 {
		s := w.write(t, record, template, both(staged(""), secretOf("a: secret"), func(s *scope) { s.bundle.UID = "another" }))
		record = s.record
		w.clock.Step(checkInterval)
	}
	if record.Bundle != "another" {
		t.Errorf("held, its values are in no Bundle, so it is no target: %s", record)
	}
}

// D: the BundleDeployment is gone.
func TestReviewNoDeployment(t *testing.T) {
	w, record := installed(t, &renderer{})
	s := w.write(t, record, template, both(staged(""), label, func(s *scope) { s.deployment = nil; s.bundle.Labels[plan.ContentLabel] = "another" }))
	if s.record.Rollout.Pending != "" {
		t.Errorf("held without a BundleDeployment: %s", s.record)
	}
}

// B: Knows before the record is in the cache.
func TestReviewKnows(t *testing.T) {
	w, record := installed(t, &renderer{})
	s := w.write(t, record, template, both(staged(""), label))
	if s.record.Rollout.Pending == "" {
		t.Fatal("not held")
	}
	stale := s.release.DeepCopy() // As the cache has it: the patch of the record is under way.
	metav1.SetMetaDataAnnotation(&stale.ObjectMeta, plan.RecordAnnotation, record.String())
	if w.Knows(t.Context(), s.proxy, s.inputs, stale, s.cluster) {
		t.Error("known, while the record has no pending change")
	}
}

// E: unsteady template, values in a Secret, staged.
func TestReviewUnsteady(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b", unsteady: true})
	secret := func(s *scope) {
		s.inputs.Secret, s.inputs.Layers = true, []plan.Layer{{Key: "00.yaml", Data: []byte("a: secret")}}
	}
	first := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), secret))
	first.record.Installed = true
	w.clock.Step(checkInterval)
	second := w.write(t, first.record, template, both(staged(""), secret))
	if second.record.Rollout.Pending != "" {
		t.Errorf("a rollout without a change: %s", second.record)
	}
}

// F: the write of the record that clears Pending after a change back meets a conflict.
func TestReviewConflict(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	held := w.write(t, record, template, both(staged(""), label))
	pending := held.record.Rollout.Pending
	renders.gives = "a: old"
	generation := func(s *scope) { s.inputs.Values = "2" }
	w.write(t, held.record, template, both(staged(""), generation)) // Its record is lost by a conflict.
	again := w.write(t, held.record, template, both(staged(""), generation))
	granted := w.write(t, again.record, template, both(staged(pending), generation))
	if granted.record.Rollout.Pending != "" {
		t.Errorf("waits for ever, also once it is granted: %s", granted.record)
	}
}
