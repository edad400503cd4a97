package registrar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// met is the situation in which a reconcile finds a Cluster.
type met struct {
	suspended, byManager, rotate    bool
	noFleet, noNamespace, checkedIn bool
	elsewhere                       bool          // status.namespace has been changed
	edited                          time.Duration // how long ago it got another clientID; 0: never
	kubeconfig, noClientID          bool
	shared                          bool // Another Fleet Cluster has its namespace in Fleet.
	unreachable                     string
	noAgent                         bool
	largeAgent                      bool
	longClientID, shortClientID     bool
	// registered is the state of the registration; empty if there is none.
	registered string
	age        time.Duration
	// others are other registrations: earlier "ours", "foreign", "foreign, granted".
	others []string
	// recorded says what the record holds: "its" credential, one whose registration is "gone" or
	// "replaced", or only the rotation that was "followed".
	recorded string
	// reported is the reason of the condition; empty if there is none.
	reported string
	// refused means that the Secret's name is taken.
	refused bool
	// credential is the one that Fleet has made: "", "its", "another's" or "elsewhere".
	credential string
}

// deployedIn is the namespace that Fleet derives for Fleet Cluster prod-1 of namespace team.
var deployedIn = stamp.FleetNamespace("team", "prod-1")

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func (m met) scope() *scope {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "cluster", Annotations: map[string]string{}}}
	if m.reported != "" {
		cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetAgentManifestReadyCondition, Reason: m.reported}}
	}
	if m.rotate {
		cluster.Annotations[stamp.RotateAnnotation] = "1"
	}
	s := &scope{
		cluster: cluster, suspended: m.suspended, byAgent: !m.byManager, now: now, taken: map[step]bool{},
		server: server{URL: "https://fleet.example.com", CA: []byte("ca")}, unreachable: m.unreachable, agent: "kind: Deployment",
	}
	switch m.recorded {
	case "its":
		s.recorded, s.isRegistered = record{token: "kept", registration: "registration", registrationName: "muster-x"}, true
	case "gone":
		s.recorded = record{token: "kept", registration: "gone", rotation: digest("1")}
	case "replaced":
		s.recorded = record{token: "kept", registration: "replaced"}
	case "followed":
		s.recorded = record{rotation: digest("1")}
	}
	if m.largeAgent {
		s.agent = strings.Repeat("x", 128<<10+1)
	}
	if m.noAgent {
		s.agent = ""
	}
	if m.noFleet {
		return s
	}
	s.fleet = &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod-1", UID: "fleet", Generation: 1}}
	s.fleet.Spec.ClientID, s.fleet.Status.Namespace = "drawn-in-advance", deployedIn
	if m.noNamespace {
		s.fleet.Status.Namespace = ""
	}
	if m.shared {
		s.holder = types.NamespacedName{Namespace: "other", Name: "prod"}
	}
	if m.elsewhere {
		s.fleet.Status.Namespace = "victim"
	}
	if m.checkedIn {
		s.fleet.Status.Agent.LastSeen = metav1.NewTime(now)
	}
	if m.kubeconfig {
		s.fleet.Spec.KubeConfigSecret = "prod-kubeconfig"
	}
	if m.longClientID {
		s.fleet.Spec.ClientID = strings.Repeat("x", 254)
	}
	if m.shortClientID {
		s.fleet.Spec.ClientID = "edge-1"
	}
	if m.noClientID {
		s.fleet.Spec.ClientID = ""
	}
	if m.edited > 0 {
		s.fleet.Generation, s.known = 2, now.Add(-m.edited)
	}
	registration := func(name, clientID string, granted bool, labels map[string]string) {
		s.registrations = append(s.registrations, fleetv1.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "registration", CreationTimestamp: metav1.NewTime(now.Add(-m.age)), Labels: labels},
			Spec:       fleetv1.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "random"},
			Status:     fleetv1.ClusterRegistrationStatus{Granted: granted},
		})
	}
	our := map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
	switch m.registered {
	case "asked":
		registration(s.registrationName(), "drawn-in-advance", false, our)
	case "granted":
		registration(s.registrationName(), "drawn-in-advance", true, our)
	case "for another":
		registration(s.registrationName(), "another", true, our)
	case "mistaken":
		registration(s.registrationName(), "drawn-in-advance", true, our)
		s.registrations[0].Status.ClusterName = "cluster-made-by-fleet"
	}
	for _, other := range m.others {
		switch other {
		case "ours":
			registration("muster-earlier", "drawn-in-advance", true, our)
		case "ours, later":
			registration("muster-later", "drawn-in-advance", true, our)
			s.registrations[len(s.registrations)-1].CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
		case "ours, as late":
			registration("muster-as-late", "drawn-in-advance", true, our)
			s.registrations[len(s.registrations)-1].CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
		case "ours, asked":
			registration("muster-asked", "drawn-in-advance", false, our)
			s.registrations[len(s.registrations)-1].CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
		case "ours, other clientID":
			registration("muster-earlier", "another", true, our)
		case "foreign":
			registration("request-x", "drawn-in-advance", false, nil)
		case "foreign, other clientID, asked":
			registration("request-y", "another", false, nil)
		case "foreign, granted":
			registration("request-x", "drawn-in-advance", true, nil)
		case "foreign, other clientID":
			registration("request-x", "another", true, nil)
		}
	}
	return s
}

// found applies the effects of a step.
func (m met) found(s *scope, next step) {
	switch next {
	case register:
		m.registered = "asked"
		s.registrations = m.scope().registrations
	case dryRun, issue:
		if m.refused {
			s.refused = new(waiting(addonsv1.SecretConflictReason, "taken", 0))
		}
	case collect:
		switch m.credential {
		case "its":
			s.credential = &credential{"fresh", deployedIn, "team", "prod-1"}
		case "elsewhere":
			s.credential = &credential{"stolen", "victim", "team", "prod-1"}
		case "another's":
			s.credential = &credential{"stolen", "cluster-other-prod-1", "other", "prod-1"}
		}
	case note:
		s.recorded = s.record()
	case withdraw:
		s.recorded = record{rotation: s.recorded.rotation}
	}
}

func (m met) play(t *testing.T) (steps []step, result outcome, s *scope) {
	t.Helper()
	s = m.scope()
	for {
		next, result := s.next()
		if next == rest {
			return steps, result, s
		}
		if s.taken[next] {
			t.Fatalf("%+v: the step %q comes twice: %v", m, next, steps)
		}
		m.found(s, next)
		s.taken[next] = true
		steps = append(steps, next)
	}
}

func TestSteps(t *testing.T) {
	granted := met{registered: "granted"}
	with := func(change func(*met)) met {
		m := granted
		change(&m)
		return m
	}
	for name, test := range map[string]struct {
		met    met
		steps  []step
		reason string
		token  string // issued
		keeps  bool   // what was reported before
	}{
		"held":                                       {met: with(func(m *met) { m.suspended = true })},
		"no Fleet Cluster yet":                       {met: met{noFleet: true}, reason: "WaitingForFleet"},
		"it is not prepared for an agent yet":        {met: met{kubeconfig: true}, reason: "WaitingForFleet"},
		"it has no clientID yet":                     {met: met{noClientID: true}, reason: "WaitingForFleet"},
		"it has no namespace yet":                    {met: met{noNamespace: true}, reason: "WaitingForFleet"},
		"Fleet has no URL":                           {met: met{unreachable: "no URL"}, reason: "FleetNotConfigured"},
		"new":                                        {met: met{}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"its clientID is newer":                      {met: met{edited: time.Second}, reason: "WaitingForFleet"},
		"its clientID has settled":                   {met: met{edited: time.Minute}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"asked":                                      {met: met{registered: "asked"}, reason: "WaitingForFleet"},
		"asked, and not granted":                     {met: met{registered: "asked", age: credentialTimeout}, reason: "RegistrationNotGranted"},
		"rotated, and not granted":                   {met: met{rotate: true, registered: "asked", age: credentialTimeout, others: []string{"ours"}, recorded: "its"}, reason: "RegistrationNotGranted"},
		"the name is taken":                          {met: met{registered: "for another"}, reason: "RegistrationConflict"},
		"Fleet assigned it to another":               {met: met{registered: "mistaken", credential: "its"}, reason: "RegistrationConflict"},
		"no Bundle yet":                              {met: with(func(m *met) { m.noAgent = true }), reason: "WaitingForFleet"},
		"granted, no credential yet":                 {met: granted, steps: []step{collect}, reason: "WaitingForFleet"},
		"granted":                                    {met: with(func(m *met) { m.credential = "its" }), steps: []step{collect, note, issue}, reason: "ManifestReady", token: "fresh"},
		"the credential belongs to another":          {met: with(func(m *met) { m.credential = "another's" }), steps: []step{collect}, reason: "WaitingForFleet"},
		"its account is elsewhere":                   {met: with(func(m *met) { m.credential = "elsewhere" }), steps: []step{collect}, reason: "WaitingForFleet"},
		"its account would be elsewhere":             {met: met{elsewhere: true}, reason: "RegistrationConflict"},
		"its namespace is another's":                 {met: met{shared: true}, reason: "RegistrationConflict"},
		"rotated, to be elsewhere":                   {met: with(func(m *met) { m.elsewhere, m.rotate, m.others = true, true, []string{"ours"} }), reason: "RegistrationConflict"},
		"issued":                                     {met: with(func(m *met) { m.recorded, m.age = "its", time.Hour }), steps: []step{issue}, reason: "ManifestReady", token: "kept"},
		"its clientID is too long":                   {met: met{longClientID: true}, reason: "RegistrationConflict"},
		"its agent is too large":                     {met: met{largeAgent: true}, reason: "WaitingForFleet"},
		"no Bundle yet, nor registered":              {met: met{noAgent: true}, reason: "WaitingForFleet"},
		"someone else's Secret exists":               {met: met{refused: true}, steps: []step{dryRun}, reason: "SecretConflict"},
		"a clientID that can be guessed":             {met: met{shortClientID: true}, reason: "RegistrationConflict"},
		"someone else's Secret came later":           {met: with(func(m *met) { m.recorded, m.refused = "its", true }), steps: []step{issue}, reason: "SecretConflict", token: "kept"},
		"the record is lost, early":                  {met: with(func(m *met) { m.credential, m.age = "its", 20*time.Minute }), steps: []step{collect, note, issue}, reason: "ManifestReady", token: "fresh"},
		"the record is lost":                         {met: with(func(m *met) { m.age = time.Hour }), steps: []step{collect}, reason: "CredentialLost"},
		"the record is of another":                   {met: with(func(m *met) { m.recorded, m.age = "replaced", time.Hour }), steps: []step{collect}, reason: "CredentialLost"},
		"rotated, and the annotation removed":        {met: met{others: []string{"ours, later"}, recorded: "its"}, steps: []step{issue}, reason: "ManifestReady", token: "kept"},
		"one is granted after all":                   {met: with(func(m *met) { m.credential, m.others, m.recorded = "its", []string{"ours, later"}, "replaced" }), steps: []step{collect, note, issue, revoke}, reason: "ManifestReady", token: "fresh"},
		"rotation requested, then withdrawn":         {met: with(func(m *met) { m.recorded, m.others = "its", []string{"ours, asked"} }), steps: []step{issue, revoke}, reason: "ManifestReady", token: "kept"},
		"taken over from an agent":                   {met: met{others: []string{"ours, other clientID"}}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"rotated":                                    {met: met{rotate: true, others: []string{"ours"}, recorded: "its"}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"rotated, granted":                           {met: with(func(m *met) { m.rotate, m.credential, m.others, m.recorded = true, "its", []string{"ours"}, "replaced" }), steps: []step{collect, note, issue, revoke}, reason: "ManifestReady", token: "fresh"},
		"rotated, followed":                          {met: met{rotate: true, others: []string{"ours, later"}, recorded: "followed", credential: "its"}, steps: []step{collect, note, issue}, reason: "ManifestReady", token: "fresh"},
		"taken over, granted":                        {met: with(func(m *met) { m.credential, m.others = "its", []string{"foreign, other clientID"} }), steps: []step{collect, note, issue, revoke}, reason: "ManifestReady", token: "fresh"},
		"taken over, before it is":                   {met: met{others: []string{"foreign, other clientID"}}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"another agent registers meanwhile":          {met: with(func(m *met) { m.credential, m.others = "its", []string{"foreign", "foreign, other clientID, asked"} }), steps: []step{collect, note, issue}, reason: "ManifestReady", token: "fresh"},
		"by the manager, checked in":                 {met: met{checkedIn: true, others: []string{"foreign, granted"}}, reason: "AlreadyRegistered"},
		"by the manager, after ours":                 {met: met{checkedIn: true, recorded: "gone", others: []string{"foreign, granted"}}, steps: []step{withdraw}, reason: "AlreadyRegistered"},
		"by the manager, rotated":                    {met: met{checkedIn: true, rotate: true, others: []string{"foreign, granted"}}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"by the manager, rotated before":             {met: met{checkedIn: true, rotate: true, recorded: "followed", others: []string{"foreign, granted"}}, reason: "AlreadyRegistered"},
		"by the manager, never checked in":           {met: met{age: firstCheckInTimeout, others: []string{"foreign, granted"}}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"by the manager, just granted":               {met: met{others: []string{"foreign, granted"}}, reason: "WaitingForFleet"},
		"Fleet has deleted ours for its":             {met: met{checkedIn: true, recorded: "gone", age: time.Hour, others: []string{"foreign"}}, reason: "WaitingForFleet"},
		"by the manager, in progress, rotated":       {met: met{rotate: true, others: []string{"foreign"}}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"of another clientID":                        {met: met{checkedIn: true, others: []string{"foreign, other clientID"}}, steps: []step{dryRun, register}, reason: "WaitingForFleet"},
		"never ours":                                 {met: met{byManager: true}},
		"changed to the manager, import in progress": {met: met{byManager: true, recorded: "its", others: []string{"ours"}}, keeps: true},
		"its refused registration is deleted":        {met: met{byManager: true, recorded: "its", others: []string{"ours"}, reported: addonsv1.RegistrationNotGrantedReason}, reason: "WaitingForFleet"},
		"the agent of Fleet is refused":              {met: met{byManager: true, recorded: "its", others: []string{"foreign"}, age: credentialTimeout, reported: addonsv1.RegistrationNotGrantedReason}, reason: "RegistrationNotGranted"},
		"changed back, not seen yet":                 {met: with(func(m *met) { m.kubeconfig, m.recorded = true, "its" }), keeps: true},
		"changed to the manager, imported":           {met: met{byManager: true, recorded: "gone", others: []string{"foreign, granted"}}, steps: []step{withdraw}},
		"changed to the manager, pin lost":           {met: met{byManager: true, recorded: "its", noFleet: true}, keeps: true},
		"removed from Fleet":                         {met: met{byManager: true, recorded: "gone", noFleet: true}, steps: []step{withdraw}},
	} {
		t.Run(name, func(t *testing.T) {
			steps, result, s := test.met.play(t)
			if diff := cmp.Diff(test.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if result.reason != test.reason || result.unchanged != (test.met.suspended || test.keeps) || (result.status == metav1.ConditionTrue) != (test.reason == addonsv1.ManifestReadyReason) {
				t.Errorf("got %+v, want reason %q", result, test.reason)
			}
			if !slices.Contains(steps, issue) {
				return
			}
			if secret, err := manifestSecret(s); err != nil || string(secret.Data[tokenKey]) != test.token {
				t.Errorf("issued %v, %v, want %q", secret, err, test.token)
			}
		})
	}
}

// TestRegistrationName: the name is stable, and changes only with the Fleet Cluster, the clientID or
// a rotation.
func TestRegistrationName(t *testing.T) {
	base := met{}.scope().registrationName()
	if again := (met{checkedIn: true, registered: "granted"}).scope().registrationName(); again != base {
		t.Errorf("%q and then %q", base, again)
	}
	for name, change := range map[string]func(*scope){
		"Fleet Cluster": func(s *scope) { s.fleet.UID = "another" },
		"clientID":      func(s *scope) { s.fleet.Spec.ClientID = "another" },
		"rotation":      func(s *scope) { s.cluster.Annotations[stamp.RotateAnnotation] = "1" },
		"both":          func(s *scope) { s.fleet.UID, s.fleet.Spec.ClientID = "fleetd", "rawn" },
	} {
		s := met{}.scope()
		if change(s); s.registrationName() == base {
			t.Errorf("%s: the name is the same", name)
		}
	}
}

// TestCurrent: the registration that Fleet granted last counts, unless a rotation is requested.
func TestCurrent(t *testing.T) {
	for name, test := range map[string]struct {
		met  met
		want string
	}{
		"none":                             {met: met{}},
		"granted last":                     {met: met{registered: "granted", others: []string{"ours, later"}}, want: "muster-later"},
		"granted last, in other order":     {met: met{others: []string{"ours, later", "ours"}}, want: "muster-later"},
		"rotation requested later":         {met: met{others: []string{"ours", "ours, asked"}}, want: "muster-earlier"},
		"rotation requested, none granted": {met: met{others: []string{"ours, asked"}}, want: "muster-asked"},
		"another's":                        {met: met{others: []string{"foreign, granted", "ours, other clientID"}}},
		"rotated":                          {met: met{rotate: true, others: []string{"ours, later"}}},
		"rotated, followed":                {met: met{rotate: true, recorded: "followed", others: []string{"ours, later"}}, want: "muster-later"},
		"of two from one second, fixed":    {met: met{others: []string{"ours, later", "ours, as late"}}, want: "muster-later"},
	} {
		got := ""
		if current := test.met.scope().current(); current != nil {
			got = current.Name
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestSightings(t *testing.T) {
	var s observedClientIDs
	key, fleet := types.NamespacedName{Namespace: "team", Name: "prod"}, met{}.scope().fleet
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	expect := func(what string, seconds, want int) {
		t.Helper()
		if got := s.since(key, fleet, at(seconds)); !got.Equal(at(want)) {
			t.Errorf("%s: since %v, want %v", what, got, at(want))
		}
	}
	expect("first", 1, 1)
	expect("again", 2, 1)
	fleet.Spec.ClientID = "another"
	expect("another clientID", 3, 3)
	expect("that again", 4, 3)
	fleet.UID = "another"
	expect("another Fleet Cluster", 5, 5)
	s.Delete(key)
	expect("forgotten", 6, 6)
}

// TestRefusals: only the API server and our own policy can say that the Secret's name is taken.
func TestRefusals(t *testing.T) {
	resource := schema.GroupResource{Resource: "secrets"}
	policy, err := os.ReadFile("../../manifests/registrar/policy_secrets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{refusesOthers, refusesEarlierClusters} {
		if !strings.Contains(string(policy), "message: "+words) {
			t.Errorf("the policy does not say %q", words)
		}
	}
	forbidden := func(why string) error { return apierrors.NewForbidden(resource, "edge-fleet-agent", errors.New(why)) }
	invalid := func(path string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "edge-fleet-agent", field.ErrorList{field.Invalid(field.NewPath(path), "x", "field is immutable")})
	}
	for name, test := range map[string]struct {
		err   error
		after time.Duration
		age   time.Duration
	}{
		"none":                          {},
		"another owner's":               {forbidden("denied request: " + refusesEarlierClusters), pollInterval, 59 * time.Second},
		"another owner's, kept":         {forbidden("denied request: " + refusesEarlierClusters), checkInterval, time.Minute},
		"nobody's":                      {forbidden("denied request: " + refusesOthers + " that one Cluster owns"), checkInterval, 0},
		"of another type":               {invalid("type"), checkInterval, 0},
		"someone has made it immutable": {err: invalid("data")},
		"a quota":                       {err: forbidden("exceeded quota: none")},
		"a role":                        {err: forbidden(`cannot update resource "secrets"`)},
		"someone else's policy":         {err: forbidden("denied request: no Secrets on Fridays")},
		"no answer":                     {err: errors.New("connection refused")},
	} {
		s := met{}.scope()
		s.cluster.CreationTimestamp = metav1.NewTime(now.Add(-test.age))
		got := s.refusal(test.err)
		if (got != nil) != (test.after > 0) || got != nil && (got.after != test.after || got.reason != addonsv1.SecretConflictReason) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// TestManyRegistrations: a tenant can give a Fleet Cluster any number of registrations. The work of a
// reconcile grows with their number, not with its square, and it deletes only a few.
func TestManyRegistrations(t *testing.T) {
	s := met{registered: "granted", recorded: "its"}.scope()
	const many = 20_000 // A reconcile that compared each with each would compare 400 million.
	for i := range many {
		s.registrations = append(s.registrations, fleetv1.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint(i), Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}},
		})
	}
	if got := len(s.replaced()); got != many {
		t.Errorf("%d are replaced", got)
	}
	deleted := 0
	r := &reconciler{Client: interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			deleted++
			return nil
		},
	})}
	if err := r.revoke(t.Context(), s); err != nil || deleted != mostRevoked {
		t.Errorf("%d are deleted in one reconcile: %v", deleted, err)
	}
}

// TestClocksDisagree rotates a credential whose registration got its timestamp from an API server
// with a fast clock: the registrar issues the new credential, and revokes the old one.
func TestClocksDisagree(t *testing.T) {
	s := met{rotate: true, registered: "granted", age: time.Minute, credential: "its"}.scope()
	s.registrations[0].UID = "new"
	s.registrations = append(s.registrations, fleetv1.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Name: "muster-first", UID: "old", CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}},
		Spec:       s.registrations[0].Spec, Status: s.registrations[0].Status,
	})
	s.recorded = record{token: "old", registration: "old", registrationName: "muster-first"}
	var taken []step
	for next, result := s.next(); ; next, result = s.next() {
		if next == rest {
			if result.reason != addonsv1.ManifestReadyReason {
				t.Errorf("it ends with %+v", result)
			}
			break
		}
		if s.taken[next] {
			t.Fatalf("%s is taken twice, after %s", next, taken)
		}
		met{credential: "its"}.found(s, next)
		taken, s.taken[next] = append(taken, next), true
	}
	if want := []step{collect, note, issue, revoke}; !slices.Equal(taken, want) {
		t.Errorf("%s, not %s", taken, want)
	}
	if s.recorded.token != "fresh" || len(s.replaced()) != 1 || s.replaced()[0].UID != "old" {
		t.Errorf("kept %+v, replaced %+v", s.recorded, s.replaced())
	}
}

// TestPolls: where events will come, the registrar polls often only at first.
func TestPolls(t *testing.T) {
	for name, m := range map[string]met{
		"ours":                       {registered: "asked", age: time.Hour},
		"somebody's":                 {others: []string{"foreign"}, age: time.Hour},
		"of the name that is needed": {registered: "for another"},
	} {
		if _, result, _ := m.play(t); result.after != checkInterval {
			t.Errorf("%s: reconciled again after %s, message %s", name, result.after, result.message)
		}
	}
}
