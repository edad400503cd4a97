package sync

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// edit changes the scene's Cluster, but not its status.
func (s *scene) edit(t *testing.T, change func(*clusterv1.Cluster)) {
	t.Helper()
	cluster := &clusterv1.Cluster{}
	if err := s.direct.Get(t.Context(), s.key, cluster); err != nil {
		t.Fatal(err)
	}
	if cluster.Labels == nil {
		cluster.Labels = map[string]string{}
	}
	change(cluster)
	if err := s.direct.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
}

func tooManyLabels() map[string]string {
	labels := map[string]string{}
	for i := range desired.MaxCopiedKeys {
		labels[fmt.Sprint("l", i)] = ""
	}
	return labels
}

// Above the bound, what is copied to a Fleet Cluster of Rancher's stays there, with Muster as its manager, and class, end
// and return of the attachment go on.
func TestAttachedAboveTheBound(t *testing.T) {
	s := newRancherScene(t)
	s.edit(t, func(cluster *clusterv1.Cluster) { cluster.Labels["env"] = "prod" })
	s.reconcile(t)
	before := s.fleetOf(t)
	if before.Labels["env"] != "prod" || before.Spec.TemplateValues == nil {
		t.Fatalf("it is not attached: %v", before)
	}
	s.edit(t, func(cluster *clusterv1.Cluster) {
		maps.Copy(cluster.Labels, tooManyLabels())
		cluster.Labels["env"], cluster.Spec.Topology.ClassRef.Name = "test", "other"
	})
	s.reconcile(t)
	state, message, _ := s.imported(t)
	if state != "True TooMuchMetadata" || !strings.Contains(message, "it has 513 labels and ") {
		t.Errorf("%s: %s", state, message)
	}
	after := s.fleetOf(t)
	if after.Labels["env"] != "prod" || len(after.Labels) != len(before.Labels) || !reflect.DeepEqual(before.Spec.TemplateValues, after.Spec.TemplateValues) {
		t.Errorf("a copy has changed: %v", after)
	}
	if after.Labels[stamp.ClassNameLabel] != "other" || after.Labels["cluster-api.cattle.io/clusterclass-name"] != "other" {
		t.Errorf("the class has not changed: %v", after.Labels)
	}
	if _, writes := s.reconcile(t); len(writes) > 0 {
		t.Errorf("written again: %q", writes)
	}
	// Muster still owns the copies: it can take them off.
	s.edit(t, func(cluster *clusterv1.Cluster) {
		maps.DeleteFunc(cluster.Labels, func(key, _ string) bool { return strings.HasPrefix(key, "l") || key == "env" })
	})
	s.reconcile(t)
	if _, found := s.fleetOf(t).Labels["env"]; found {
		t.Error("with less to copy, a label that is gone stays")
	}
	s.edit(t, func(cluster *clusterv1.Cluster) { maps.Copy(cluster.Labels, tooManyLabels()); cluster.Labels["x"] = "" })
	s.reconcile(t)
	cluster := &clusterv1.Cluster{ObjectMeta: s.fleetOf(t).ObjectMeta}
	cluster.Namespace, cluster.Name = s.key.Namespace, s.key.Name
	s.edit(t, func(cluster *clusterv1.Cluster) { cluster.Finalizers = nil })
	s.delete(t, cluster)
	s.reconcile(t)
	if left := s.fleetOf(t); rancher.IsAttached(left) || left.Spec.TemplateValues != nil || len(left.Labels) != 1 {
		t.Errorf("it is not detached: %v", left)
	}
}

// What is not attached yet waits.
func TestNotAttachedAboveTheBound(t *testing.T) {
	s := newRancherScene(t)
	s.edit(t, func(cluster *clusterv1.Cluster) { maps.Copy(cluster.Labels, tooManyLabels()); cluster.Labels["x"] = "" })
	_, writes := s.reconcile(t)
	if state, message, _ := s.imported(t); state != "False TooMuchMetadata" || rancher.IsAttached(s.fleetOf(t)) {
		t.Errorf("%s: %s; written %q", state, message, writes)
	}
}

// A Fleet Cluster that is too large is not sent again and again, and the condition says what makes it so.
func TestTooLargeIsSentOnce(t *testing.T) {
	for name, newScene := range map[string]func(*testing.T) *scene{
		"own":       func(t *testing.T) *scene { return newScene(t, "standard", "classes", nil) },
		"Rancher's": func(t *testing.T) *scene { return newRancherScene(t) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			sent := 0
			s.refuse = func(object client.Object) error {
				_, isFleets := object.(*fleetv1.Cluster)
				if key := client.ObjectKeyFromObject(object); isFleets || key == s.key && object.GetObjectKind().GroupVersionKind().Group == fleetv1.SchemeGroupVersion.Group {
					sent++
					return apierrors.NewRequestEntityTooLargeError("limit is 3145728")
				}
				return nil
			}
			for i := range 4 {
				if i == 3 { // Other content is tried.
					s.edit(t, func(cluster *clusterv1.Cluster) { cluster.Labels["new"] = "x" })
				}
				result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key})
				if err != nil || result.RequeueAfter != kube.TooLargeInterval {
					t.Fatalf("%v, %v", result, err)
				}
				if want := map[bool]int{false: 1, true: 2}[i == 3]; sent != want {
					t.Errorf("round %d: sent %d times, want %d", i, sent, want)
				}
			}
			state, message, _ := s.imported(t)
			if !strings.HasSuffix(state, " Failed") || !strings.Contains(message, "the biggest part of its template values is /C") ||
				!strings.Contains(message, "spec.cluster.templateValues.exclude") || !strings.Contains(message, "limit is 3145728") {
				t.Errorf("%s: %s", state, message)
			}
		})
	}
}
