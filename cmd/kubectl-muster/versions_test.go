package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// TestVersionsOfManagedNodes shows the same for a Cluster of EKS, whose nodes report a version that Cluster API takes for an
// older one, so that the Cluster looks as if it were upgraded for ever.
func TestVersionsOfManagedNodes(t *testing.T) {
	show := func(change func(*clusterv1.Cluster)) string {
		w := newWorld()
		cluster, _ := w.cluster("team-a", "prod", standard)
		change(cluster)
		file := filepath.Join(t.TempDir(), "world.yaml")
		if err := os.WriteFile(file, recorded(t, w.objects), 0o600); err != nil {
			t.Fatal(err)
		}
		return must(t, "tree", "-f", file, "-o", "json") + must(t, "check", "-f", file)
	}
	plain := show(func(*clusterv1.Cluster) {})
	upgrading := show(func(cluster *clusterv1.Cluster) {
		cluster.Spec.Topology.Version = "v1.31.4"
		cluster.Status.ControlPlane = &clusterv1.ClusterControlPlaneStatus{
			Versions:    []clusterv1.StatusVersion{{Version: "v1.31.4-eks-2d98532", Replicas: 3}},
			UpgradePlan: []clusterv1.StatusUpgradePlanVersion{{Version: "v1.31.4"}},
		}
		cluster.Status.Workers = &clusterv1.WorkersStatus{Versions: []clusterv1.StatusVersion{{Version: "v1.31.4-gke.1014001"}}}
		for _, kind := range []string{clusterv1.ClusterRollingOutCondition, "Upgrading"} {
			cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: ago(0)})
		}
		cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{Type: clusterv1.ClusterTopologyReconciledCondition, Status: metav1.ConditionFalse, Reason: "ClusterUpgrading", LastTransitionTime: ago(0)})
	})
	if upgrading != plain {
		t.Errorf("it shows\n%s\ninstead of\n%s", upgrading, plain)
	}
}

// TestCheckNamesKnownDefects checks with the version of Fleet in its Deployment, and in the status of the FleetAddonConfig.
func TestCheckNamesKnownDefects(t *testing.T) {
	var a archive
	for _, test := range []struct{ name, image, reported string }{
		{"in the Deployment", "rancher/fleet:v0.16.1", ""},
		{"in the status", "", "0.16.1"},
		{"older branch", "rancher/fleet:v0.15.8", "0.15.8"},
		{"the Deployment is newer", "rancher/fleet:v0.16.3", "0.16.1"},
		{"no version", "rancher/fleet:head", ""},
		{"unknown", "", ""},
	} {
		w := newWorld()
		w.cluster("team-a", "fine", standard)
		w.config.Status.InstalledVersion = test.reported
		if test.image != "" {
			controller := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-system", Name: "fleet-controller"}}
			controller.Spec.Template.Spec.Containers = []corev1.Container{{Name: controller.Name, Image: test.image}}
			w.add(controller)
		}
		out, code := checked(t, w)
		if code != 0 {
			t.Errorf("%s: exit code %d", test.name, code)
		}
		if isNamed := strings.Contains(out, "known defect"); isNamed != (strings.Contains(test.image+test.reported, "0.16.1") && !strings.Contains(test.image, "0.16.3") || strings.Contains(test.image, "0.15.8")) {
			t.Errorf("%s: %s", test.name, out)
		}
		a.add(test.name, out)
	}
	a.golden(t, "check-defects")
}
