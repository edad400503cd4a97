package release

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// staged makes the release part of a rollout that has granted a change.
func staged(granted string) func(*scope) {
	return func(s *scope) {
		s.proxy.Spec.Rollout, s.inputs.Chart.Version = &addonsv1.RolloutStrategy{}, "1.0.0"
		metav1.SetMetaDataAnnotation(&s.release.ObjectMeta, plan.GrantedAnnotation, granted)
	}
}

// installed returns a world with a release that is installed with the values "a: old", and its record.
func installed(t *testing.T, renders *renderer) (*world, plan.Record) {
	t.Helper()
	renders.gives = "a: old"
	w := newWorld(t, renders)
	record := w.write(t, plan.Record{FleetCluster: "one"}, "a: {{ .Cluster.metadata.name }}", staged("")).record
	record.Installed = true
	renders.gives = "a: new"
	return w, record
}

func label(s *scope) { s.cluster.Labels = map[string]string{"tier": "web"} }

func both(changes ...func(*scope)) func(*scope) {
	return func(s *scope) {
		for _, change := range changes {
			change(s)
		}
	}
}

const template = "a: {{ .Cluster.metadata.name }}"

// A release takes a change over when the rollout grants exactly that change. Until then it keeps its values, and notes the
// change, also after a restart, and renders only once.
func TestHeldUntilGranted(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	held := w.write(t, record, template, both(staged("another"), label))
	pending := held.record.Rollout.Pending
	if pending == "" || held.record.Revision != record.Revision || held.record.Digest != record.Digest || held.trouble.Reason != addonsv1.HelmReleaseProxySpecsUpdatingReason {
		t.Fatalf("the record was %v, and is %v: %v", record, held.record, held.trouble)
	}
	count := renders.count
	if again := w.write(t, held.record, template, both(staged(""), label)); again.record.Rollout.Pending != pending || renders.count != count {
		t.Errorf("held again: %v, rendered %d times", again.record.Rollout, renders.count-count)
	}
	w.rendered.Clear() // A restart.
	if again := w.write(t, held.record, template, both(staged("another"), label)); again.record.Rollout.Pending != pending {
		t.Errorf("after a restart: %v", again.record.Rollout)
	}
	moved := w.write(t, held.record, template, both(staged(pending), label))
	if its := moved.record; its.Rollout.Pending != "" || its.Rollout.Ready != nil || its.Digest == record.Digest || its.Revision == record.Revision || moved.trouble != (plan.Trouble{}) {
		t.Errorf("granted: %v", its)
	}
	if back := w.write(t, held.record, template, both(staged(""), func(s *scope) { renders.gives = "a: old" })); back.record.Rollout.Pending != "" || back.record.Revision != record.Revision {
		t.Errorf("changed back: %v", back.record)
	}
}

// Another chart with the same values is a change, too, and the values get another name: it shows whether Fleet has taken
// the change over.
func TestAnotherContentIsAChange(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	renders.gives = "a: old"
	chart := func(s *scope) { s.inputs.Chart.Version = "2.0.0" }
	held := w.write(t, record, template, both(staged(""), chart))
	if held.record.Rollout.Pending == "" || held.record.Revision != record.Revision {
		t.Fatalf("held: %v", held.record)
	}
	moved := w.write(t, held.record, template, both(staged(held.record.Rollout.Pending), chart))
	if its := moved.record; its.Revision == record.Revision || its.Digest != record.Digest || its.Rollout.Content != moved.content() {
		t.Errorf("granted: %v", its)
	}
}

// A template that gives something else each time does not wait for ever.
func TestUnsteadyTemplatesMove(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	renders.unsteady = true
	held := w.write(t, record, template, both(staged(""), label))
	moved := w.write(t, held.record, template, both(staged(held.record.Rollout.Pending), label))
	if moved.record.Rollout.Pending != "" || moved.record.Revision == record.Revision {
		t.Errorf("granted: %v", moved.record)
	}
}

// A release whose values somebody has deleted while it waits gets the change: nobody can render the earlier values.
func TestLostValues(t *testing.T) {
	w, record := installed(t, &renderer{})
	if err := w.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace("team")); err != nil {
		t.Fatal(err)
	}
	moved := w.write(t, record, template, both(staged(""), label))
	if moved.record.Rollout.Pending != "" || moved.record.Digest == record.Digest {
		t.Errorf("the record was %v, and is %v", record, moved.record)
	}
}

// A release that is not installed, and one without a rollout, wait for nothing.
func TestNothingToWaitFor(t *testing.T) {
	w, record := installed(t, &renderer{})
	record.Installed = false
	if s := w.write(t, record, template, both(staged(""), label)); s.record.Digest == record.Digest {
		t.Error("a release that is not installed waits")
	}
	record.Installed = true
	if s := w.write(t, record, template, label); s.record.Digest == record.Digest || s.record.Rollout != nil {
		t.Errorf("a release without a rollout waits: %v", s.record)
	}
}
