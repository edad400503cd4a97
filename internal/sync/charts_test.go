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

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

func TestChartsAvailable(t *testing.T) {
	crd := func(by string) client.Object {
		its := sources.CRD()
		its.Name, its.Labels = stamp.ChartsCRD, map[string]string{stamp.ManagedByLabel: by}
		return its
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: stamp.ChartsLease},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Now()))},
	}
	for name, test := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"no CRD":              {objects: []client.Object{lease}},
		"somebody else's":     {objects: []client.Object{crd("somebody"), lease}},
		"ours, and it runs":   {objects: []client.Object{crd(stamp.ManagedBy), lease}, want: "Available"},
		"ours, and it is out": {objects: []client.Object{crd(stamp.ManagedBy)}, want: "ChartsMissing"},
	} {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{coordinationv1.AddToScheme, metav1.AddMetaToScheme} {
			if err := add(scheme); err != nil {
				t.Fatal(err)
			}
		}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.objects...).Build()
		r := &configReconciler{Client: c, charts: newPresence(c, "muster-system", stamp.ChartsLease)}
		got, err := r.chartsAvailable(t.Context())
		if err != nil || (got == nil) != (test.want == "") || got != nil && got.Reason != test.want {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, test.want)
		}
	}
}
