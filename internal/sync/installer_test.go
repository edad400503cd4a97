package sync

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/stamp"
)

// FleetAddonConfigs are not Ready before the installer has processed their current generation.
func TestReadyWaitsForInstaller(t *testing.T) {
	install := addonsv1.FleetAddonConfigSpec{Install: &addonsv1.FleetInstall{Version: ptr.To("0.16.0")}}
	both := addonsv1.FleetAddonConfigSpec{Install: install.Install, Config: &addonsv1.FleetConfig{Server: &addonsv1.Server{InferLocal: ptr.To(true)}}}
	reported := func(kind string, status metav1.ConditionStatus, reason string, generation int64) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, ObservedGeneration: generation}
	}
	const now = 7
	for name, test := range map[string]struct {
		spec     addonsv1.FleetAddonConfigSpec
		reported []metav1.Condition
		missing  bool
		want     string // reason of Ready
	}{
		"said nothing":            {spec: install, want: addonsv1.WaitingForInstallerReason},
		"of what was asked once":  {spec: install, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "True", "Installed", now-1)}, want: addonsv1.WaitingForInstallerReason},
		"failed at what was once": {spec: install, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "False", "UpgradeFailed", now-1)}, want: addonsv1.WaitingForInstallerReason},
		"half of it":              {spec: both, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "True", "Installed", now)}, want: addonsv1.WaitingForInstallerReason},
		"half of it has failed":   {spec: both, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "False", "InstallFailed", now)}, want: "InstallFailed"},
		"all of it":               {spec: both, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "True", "Installed", now), reported(addonsv1.FleetConfiguredCondition, "True", "Configured", now)}, want: "Ready"},
		"being upgraded":          {spec: install, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "True", "Upgrading", now)}, want: "Upgrading"},
		"not asked any more":      {spec: install, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "True", "Installed", now), reported(addonsv1.FleetConfiguredCondition, "False", "FleetMissing", now-1)}, want: "Ready"},
		"missing":                 {spec: install, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "False", "UpgradeFailed", now-1)}, missing: true, want: "InstallerMissing"},
		"an empty server":         {spec: addonsv1.FleetAddonConfigSpec{Install: install.Install, Config: &addonsv1.FleetConfig{Server: &addonsv1.Server{Custom: &addonsv1.CustomServer{}}}}, reported: []metav1.Condition{reported(addonsv1.FleetInstalledCondition, "True", "Installed", now)}, want: "Ready"},
	} {
		config := &addonsv1.FleetAddonConfig{Spec: test.spec}
		config.Generation, config.Status.Conditions = now, test.reported
		got := summary(ofInstaller(config, installerAvailable(test.missing)))
		if got.Reason != test.want || (got.Status == metav1.ConditionTrue) != (test.want == "Ready") {
			t.Errorf("%s: %s %s, want %s", name, got.Status, got.Reason, test.want)
		}
	}
}

func TestHelmAvailable(t *testing.T) {
	crd := func(by string) client.Object {
		its := references.CRD()
		its.Name, its.Labels = stamp.HelmCRD, map[string]string{stamp.ManagedByLabel: by}
		its.Annotations = map[string]string{"meta.helm.sh/release-namespace": "muster-system"}
		return its
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: stamp.HelmLease},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Now()))},
	}
	for name, test := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"no CRD":              {objects: []client.Object{lease}},
		"somebody else's":     {objects: []client.Object{crd("somebody"), lease}},
		"of our release":      {objects: []client.Object{crd("Helm"), lease}, want: "Available"},
		"ours, and it runs":   {objects: []client.Object{crd(stamp.ManagedBy), lease}, want: "Available"},
		"ours, and it is out": {objects: []client.Object{crd(stamp.ManagedBy)}, want: "HelmMissing"},
	} {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{coordinationv1.AddToScheme, metav1.AddMetaToScheme} {
			if err := add(scheme); err != nil {
				t.Fatal(err)
			}
		}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.objects...).Build()
		r := &configReconciler{Client: c, helm: newPresence(c, "muster-system", stamp.HelmLease)}
		got, err := r.helmAvailable(t.Context())
		if err != nil || (got == nil) != (test.want == "") || got != nil && got.Reason != test.want {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, test.want)
		}
	}
}
