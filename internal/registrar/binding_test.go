package registrar

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

// bound is a Cluster under a Fleet that binds clientIDs to tokens. The real reconciler runs on a clock of the test's.
type bound struct {
	*testing.T
	binding fixture.Binding
	api     client.WithWatch
	r       *reconciler
	clock   time.Time
	count   int
	// hasAgent means that an agent in the cluster has had a credential. From then on, one must work at any time.
	hasAgent bool
}

func newBound(t *testing.T, binding fixture.Binding) *bound {
	t.Helper()
	b := &bound{T: t, binding: binding, clock: now}
	byAgent := map[string]string{stamp.RegistrationAnnotation: string(stamp.ByAgent), stamp.ClusterNameAnnotation: "prod", stamp.OwnedByAnnotation: "fleet-addon-config"}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "cluster", Annotations: byAgent}}
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "prod", UID: "fleet", Generation: 1, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "prod", UID: "cluster"}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: fleetv1.SchemeGroupVersion.String(), FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{}`)}}},
	}}
	fleet.Spec.ClientID = "drawn-at-random-in-advance"
	fleet.Status.Namespace = stamp.FleetNamespace("team", "prod")
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: defaultFleetNamespace, Name: fleetConfigName}, Data: map[string]string{
		"config": `{"apiServerURL":"https://fleet.example.com"}`,
	}}
	objects := []client.Object{cluster, fleet, config, oracle.Agent(fleet), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}}
	b.api = fakeBuilder(t).WithObjects(objects...).WithStatusSubresource(cluster, fleet, &fleetv1.ClusterRegistration{}).
		WithIndex(&fleetv1.ClusterRegistration{}, byFleetCluster, ownersOf).WithIndex(&fleetv1.ClusterRegistration{}, byClientID, clientIDOf).
		WithIndex(&clusterv1.Cluster{}, byUID, func(object client.Object) []string { return []string{string(object.GetUID())} }).
		WithReturnManagedFields().
		WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			b.count++
			object.SetUID(types.UID(fmt.Sprint("uid-", b.count)))
			object.SetCreationTimestamp(metav1.NewTime(b.clock))
			return c.Create(ctx, object, options...)
		}}).Build()
	b.r = &reconciler{
		Client: b.api, live: b.api, settings: settings.NewReader(b.api), recorder: events.NewFakeRecorder(100),
		Options: Options{FleetNamespace: defaultFleetNamespace, RegistrationNamespace: defaultRegistrationNamespace},
		now:     func() time.Time { return b.clock },
	}
	return b
}

func (b *bound) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// settle lets the registrar and Fleet work in turn, and expects that an agent always has a credential that works.
func (b *bound) settle() {
	b.Helper()
	for range 4 {
		_, err := b.r.Reconcile(b.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "prod"}})
		b.must(err)
		b.hasCredential()
		fleet := b.fleet()
		for _, asked := range b.registrations() {
			if !asked.Status.Granted {
				_, err := b.binding.Answer(b.Context(), b.api, &asked, fleet, "token of "+asked.Name)
				b.must(err)
			}
		}
	}
}

// hasCredential expects that Fleet accepts the issued credential, or that the agent that Fleet has installed has one.
func (b *bound) hasCredential() {
	b.Helper()
	var secret corev1.Secret
	b.must(client.IgnoreNotFound(b.api.Get(b.Context(), client.ObjectKey{Namespace: "team", Name: stamp.ManifestSecret("prod")}, &secret)))
	works := false
	for _, registration := range b.registrations() {
		issued := string(secret.Data[tokenKey]) == "token of "+registration.Name
		works = works || registration.Status.Granted && (issued || !isOurs(registration))
	}
	if b.hasAgent = b.hasAgent || works; !works && b.hasAgent {
		b.Fatalf("the agent is left without a credential: registrations %+v, issued %q", b.registrations(), secret.Data[tokenKey])
	}
}

// after lets time pass, and expects the condition afterwards: a reason, and texts that its message has.
func (b *bound) after(what string, passed time.Duration, reason string, texts ...string) {
	b.Helper()
	b.settle()
	b.clock = b.clock.Add(passed)
	b.settle()
	condition := meta.FindStatusCondition(b.cluster().Status.Conditions, addonsv1.FleetAgentManifestReadyCondition)
	if condition == nil {
		condition = &metav1.Condition{}
	}
	if condition.Reason != reason {
		b.Errorf("%s: got %q (%s), want %q", what, condition.Reason, condition.Message, reason)
	}
	for _, text := range texts {
		if !strings.Contains(condition.Message, text) {
			b.Errorf("%s: the message lacks %q: %s", what, text, condition.Message)
		}
	}
}

func (b *bound) cluster() *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	b.must(b.api.Get(b.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, cluster))
	return cluster
}

func (b *bound) fleet() *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{}
	b.must(b.api.Get(b.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, fleet))
	return fleet
}

func (b *bound) registrations() []fleetv1.ClusterRegistration {
	var all fleetv1.ClusterRegistrationList
	b.must(b.api.List(b.Context(), &all))
	return all.Items
}

func (b *bound) annotate(key, value string) {
	cluster := b.cluster()
	cluster.Annotations[key] = value
	b.must(b.api.Update(b.Context(), cluster))
}

// turn changes who registers the Cluster, and plays the syncer. To the manager, Fleet installs an agent, which
// registers itself. Fleet may refuse a registration before it gives it an owner.
func (b *bound) turn(to stamp.Registration, owned bool) {
	b.annotate(stamp.RegistrationAnnotation, string(to))
	fleet := b.fleet()
	fleet.Spec.KubeConfigSecret = map[stamp.Registration]string{stamp.ByManager: "prod-kubeconfig"}[to]
	b.must(b.api.Update(b.Context(), fleet))
	if to == stamp.ByManager {
		asked := fixture.RegistersItself(fmt.Sprintf("request-%d", b.count), fleet.Spec.ClientID, fleet)
		if !owned {
			asked.OwnerReferences = nil
		}
		b.must(b.api.Create(b.Context(), asked))
	}
}

// checkIn plays an agent that reports.
func (b *bound) checkIn() { b.must(fixture.Call(b.Context(), b.api, b.fleet(), b.clock)) }

// A rotation cuts off the agent that has the earlier credential: an event says so, once.
func TestRotationTells(t *testing.T) {
	for name, test := range map[string]struct {
		story func(*bound)
		want  int
	}{
		"no agent": {func(b *bound) {
			b.after("first", 0, addonsv1.ManifestReadyReason)
			b.annotate(stamp.RotateAnnotation, "1")
		}, 0},
		"no rotation": {func(b *bound) { b.checkIn() }, 0},
		"both": {func(b *bound) {
			b.after("first", 0, addonsv1.ManifestReadyReason)
			b.checkIn()
			b.annotate(stamp.RotateAnnotation, "1")
		}, 1},
	} {
		b := newBound(t, fixture.Unbound)
		test.story(b)
		b.after(name, time.Hour, addonsv1.ManifestReadyReason)
		told := 0
		for recorder := b.r.recorder.(*events.FakeRecorder); len(recorder.Events) > 0; {
			if strings.HasPrefix(<-recorder.Events, "Warning CredentialRotated ") {
				told++
			}
		}
		if told != test.want {
			t.Errorf("%s: %d events, not %d", name, told, test.want)
		}
	}
}

const needsManager = "let the manager register the Cluster: annotation " + stamp.RegistrationAnnotation + ": manager"

// A version of Fleet that binds clientIDs to tokens may refuse registrations that earlier ones granted. Under each reading of its release
// notes, a condition says why, and what to set, and no agent is ever without a credential.
func TestTokenBinding(t *testing.T) {
	for _, owned := range []bool{true, false} {
		keepsAgent := "to keep the agent that has it, set the annotation " + stamp.RegistrationAnnotation + ": agent"
		for name, story := range map[string]func(*bound){
			"unbound": func(b *bound) {
				b.after("first", 0, addonsv1.ManifestReadyReason)
				b.annotate(stamp.RotateAnnotation, "1")
				b.after("rotated", 0, addonsv1.ManifestReadyReason)
				b.turn(stamp.ByManager, owned)
				b.after("to the manager", credentialTimeout, "")
			},
			"first registration, needs token": func(b *bound) {
				b.binding = fixture.NeedsToken
				b.after("at once", 0, addonsv1.WaitingForFleetReason)
				b.after("later", credentialTimeout, addonsv1.RegistrationNotGrantedReason, fleetv1.RegistrationTokenLabel, needsManager)
				b.turn(stamp.ByManager, owned) // As the message says.
				b.after("to the manager", 0, "")
				b.checkIn()
				b.turn(stamp.ByAgent, owned)
				b.after("back", credentialTimeout, addonsv1.AlreadyRegisteredReason)
				b.annotate(stamp.RotateAnnotation, "1")
				b.after("rotated", credentialTimeout, addonsv1.RegistrationNotGrantedReason, needsManager)
			},
			"upgraded, then needs token": func(b *bound) {
				b.after("first", 0, addonsv1.ManifestReadyReason)
				b.binding = fixture.NeedsToken
				b.after("upgraded", time.Hour, addonsv1.ManifestReadyReason)
				b.annotate(stamp.RotateAnnotation, "1")
				b.after("rotated", credentialTimeout, addonsv1.RegistrationNotGrantedReason, "the credential issued before stays valid", needsManager)
				b.annotate(stamp.RotateAnnotation, "")
				b.after("not asked for any more", 0, addonsv1.ManifestReadyReason)
				b.turn(stamp.ByManager, owned)
				b.after("to the manager", credentialTimeout, "")
				b.checkIn()
				b.turn(stamp.ByAgent, owned)
				b.after("back", credentialTimeout, addonsv1.AlreadyRegisteredReason)
			},
			"by the agent, one token": func(b *bound) {
				b.binding = fixture.OneToken
				b.after("first", 0, addonsv1.ManifestReadyReason)
				b.annotate(stamp.RotateAnnotation, "1")
				b.after("rotated", 0, addonsv1.ManifestReadyReason)
				b.turn(stamp.ByManager, owned)
				b.after("to the manager, at once", 0, addonsv1.ManifestReadyReason)
				b.after("to the manager", credentialTimeout, addonsv1.RegistrationNotGrantedReason, "token", "stays valid", keepsAgent)
				b.turn(stamp.ByAgent, owned) // As the message says.
				b.after("back", time.Hour, addonsv1.ManifestReadyReason)
			},
			"by the manager, one token": func(b *bound) {
				b.binding = fixture.OneToken
				b.turn(stamp.ByManager, owned)
				b.after("first", credentialTimeout, "")
				b.checkIn()
				b.turn(stamp.ByAgent, owned)
				b.after("to the agent", credentialTimeout, addonsv1.AlreadyRegisteredReason)
				b.annotate(stamp.RotateAnnotation, "1")
				b.after("rotated", credentialTimeout, addonsv1.RegistrationNotGrantedReason, "registered under another token", needsManager)
				b.turn(stamp.ByManager, owned)
				b.after("back", credentialTimeout, "")
			},
		} {
			t.Run(fmt.Sprintf("%s/owned %t", name, owned), func(t *testing.T) {
				b := newBound(t, fixture.Unbound)
				story(b)
				if !b.hasAgent {
					t.Error("no agent ever had a credential")
				}
			})
		}
	}
}
