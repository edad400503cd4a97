package registrar

import (
	"context"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/muster-fleet/muster/internal/program"
)

// The caches of Fleet Clusters and of ClusterRegistrations lag independently. Fleet makes a Fleet
// Cluster of its own for a registration whose clientID it does not know.
func TestRegisterLooksPastTheCache(t *testing.T) {
	for name, test := range map[string]struct {
		live func(*fleetv1.Cluster) // nil: it is gone
		made int
	}{
		"as cached":        {live: func(*fleetv1.Cluster) {}, made: 1},
		"gone":             {},
		"made anew":        {live: func(f *fleetv1.Cluster) { f.UID = "another" }},
		"other clientID":   {live: func(f *fleetv1.Cluster) { f.Spec.ClientID = "another" }},
		"is being deleted": {live: func(f *fleetv1.Cluster) { f.DeletionTimestamp, f.Finalizers = ptr.To(metav1.Now()), []string{"fleet"} }},
	} {
		t.Run(name, func(t *testing.T) {
			v := met{}.visit()
			builder := fakeBuilder(t)
			if test.live != nil {
				live := v.fleet.DeepCopy()
				test.live(live)
				builder = builder.WithObjects(live)
			}
			api := builder.Build()
			err := (&reconciler{Client: api, live: api}).register(t.Context(), v)
			if apierrors.IsConflict(err) != (test.made == 0) {
				t.Errorf("got error %v", err)
			}
			var made fleetv1.ClusterRegistrationList
			if err := api.List(context.Background(), &made); err != nil || len(made.Items) != test.made {
				t.Errorf("%d ClusterRegistrations were made (%v), want %d", len(made.Items), err, test.made)
			}
		})
	}
}

// The cache shows records only, so a Secret of another type that has a record's name is in no
// cache. Without its name in the error, a Conflict would be retried for ever, unseen.
func TestRecordsNameIsTaken(t *testing.T) {
	v := met{registered: "granted", credential: "its"}.visit()
	r := &reconciler{Options: Options{RegistrationNamespace: "registrations"}}
	key := r.recordKey(client.ObjectKeyFromObject(v.cluster))
	for kind, isTold := range map[corev1.SecretType]bool{corev1.SecretTypeOpaque: true, recordType: false} {
		api := fakeBuilder(t).WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: kind}).Build()
		r.Client, r.live = api, api
		if err := r.save(t.Context(), v, record{}); err == nil || apierrors.IsAlreadyExists(err) == isTold {
			t.Errorf("%s: got error %v", kind, err)
		}
	}
}

func fakeBuilder(t *testing.T) *fake.ClientBuilder {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme)
}
