package registrar

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// met is a Cluster as a visit meets it.
type met struct {
	held, byManager, told, rotate bool
	unlooked                      bool
	noFleet, noNamespace, called  bool
	elsewhere                     bool          // Somebody has changed where Fleet deploys.
	edited                        time.Duration // how long ago, if at all, it got another clientID
	kubeconfig, noClientID        bool
	unreachable                   string
	noAgent                       bool
	// registered is what the registration is like: "" for none.
	registered string
	age        time.Duration
	// others are registrations besides: "ours" of earlier, "foreign", "foreign, granted".
	others []string
	// secret is whose the Secret is, kept that it holds this registration's credential.
	secret whose
	kept   bool
	// credential is what Fleet has left: "", "its" "another's" or "elsewhere".
	credential string
}

// deployedIn is where Fleet deploys to Fleet Cluster prod-1 of namespace team.
var deployedIn = stamp.FleetNamespace("team", "prod-1")

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func (m met) visit() *visit {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "cluster", Annotations: map[string]string{}}}
	if m.rotate {
		cluster.Annotations[stamp.RotateAnnotation] = "1"
	}
	if m.told {
		cluster.Status.Conditions = []metav1.Condition{{Type: stamp.ManifestCondition}}
	}
	v := &visit{
		cluster: cluster, held: m.held, byAgent: !m.byManager, unlooked: m.unlooked, now: now, taken: map[step]bool{},
		server: server{URL: "https://fleet.example.com", CA: []byte("ca")}, unreachable: m.unreachable, agent: "kind: Deployment",
	}
	if m.noAgent {
		v.agent = ""
	}
	if m.noFleet {
		return v
	}
	v.fleet = &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod-1", UID: "fleet", Generation: 1}}
	v.fleet.Spec.ClientID, v.fleet.Status.Namespace = "drawn", deployedIn
	if m.noNamespace {
		v.fleet.Status.Namespace = ""
	}
	if m.elsewhere {
		v.fleet.Status.Namespace = "victim"
	}
	if m.called {
		v.fleet.Status.Agent.LastSeen = metav1.NewTime(now)
	}
	if m.kubeconfig {
		v.fleet.Spec.KubeConfigSecret = "prod-kubeconfig"
	}
	if m.noClientID {
		v.fleet.Spec.ClientID = ""
	}
	if m.edited > 0 {
		v.fleet.Generation, v.known = 2, now.Add(-m.edited)
	}
	registration := func(name, clientID string, granted bool, labels map[string]string) {
		v.registrations = append(v.registrations, fleetv1.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "registration", CreationTimestamp: metav1.NewTime(now.Add(-m.age)), Labels: labels},
			Spec:       fleetv1.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "random"},
			Status:     fleetv1.ClusterRegistrationStatus{Granted: granted},
		})
	}
	our := map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
	switch m.registered {
	case "asked":
		registration(v.registrationName(), "drawn", false, our)
	case "granted":
		registration(v.registrationName(), "drawn", true, our)
	case "for another":
		registration(v.registrationName(), "another", true, our)
	case "mistaken":
		registration(v.registrationName(), "drawn", true, our)
		v.registrations[0].Status.ClusterName = "cluster-made-by-fleet"
	}
	for _, other := range m.others {
		switch other {
		case "ours":
			registration("muster-earlier", "drawn", true, our)
		case "ours, later":
			registration("muster-later", "drawn", true, our)
			v.registrations[len(v.registrations)-1].CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
		case "ours, as late":
			registration("muster-as-late", "drawn", true, our)
			v.registrations[len(v.registrations)-1].CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
		case "ours, asked":
			registration("muster-asked", "drawn", false, our)
			v.registrations[len(v.registrations)-1].CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
		case "ours, other clientID":
			registration("muster-earlier", "another", true, our)
		case "foreign":
			registration("request-x", "drawn", false, nil)
		case "foreign, other clientID, asked":
			registration("request-y", "another", false, nil)
		case "foreign, granted":
			registration("request-x", "drawn", true, nil)
		case "foreign, other clientID":
			registration("request-x", "another", true, nil)
		}
	}
	return v
}

// found plays what the steps find and make.
func (m met) found(v *visit, next step) {
	switch next {
	case register:
		m.registered = "asked"
		v.registrations = m.visit().registrations
	case inspect:
		if v.whose = m.secret; m.secret == nobodys || m.secret == somebodys {
			return
		}
		v.secret = &corev1.Secret{Type: stamp.ManifestSecretType}
		v.secret.OwnerReferences = []metav1.OwnerReference{desired.Owner(v.cluster)}
		if m.kept {
			v.secret.Annotations = map[string]string{registeredAnnotation: "registration"}
			v.secret.Data = map[string][]byte{tokenKey: []byte("kept")}
		}
	case collect:
		switch m.credential {
		case "its":
			v.credential = &credential{"fresh", deployedIn, "team", "prod-1"}
		case "elsewhere":
			v.credential = &credential{"stolen", "victim", "team", "prod-1"}
		case "another's":
			v.credential = &credential{"stolen", "cluster-other-prod-1", "other", "prod-1"}
		}
	case handOut:
		v.secret, _ = manifestSecret(v)
		v.whose = ours
	case withdraw:
		v.secret, v.whose = nil, nobodys
	}
}

func (m met) play(t *testing.T) (steps []step, result verdict, v *visit) {
	t.Helper()
	v = m.visit()
	for {
		next, result := v.next()
		if next == rest {
			return steps, result, v
		}
		if v.taken[next] {
			t.Fatalf("%+v: the step %q comes twice: %v", m, next, steps)
		}
		m.found(v, next)
		v.taken[next] = true
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
		token  string // handed out
	}{
		"held":                           {met: with(func(m *met) { m.held = true; m.told = true })},
		"no Fleet Cluster yet":           {met: met{noFleet: true}, reason: "WaitingForFleet"},
		"it is not for an agent yet":     {met: met{kubeconfig: true}, reason: "WaitingForFleet"},
		"it has no clientID yet":         {met: met{noClientID: true}, reason: "WaitingForFleet"},
		"it has no namespace yet":        {met: met{noNamespace: true}, reason: "WaitingForFleet"},
		"Fleet has no URL":               {met: met{unreachable: "no URL"}, reason: "FleetNotConfigured"},
		"new":                            {met: met{}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"its clientID is newer":          {met: met{edited: time.Second}, reason: "WaitingForFleet"},
		"its clientID has settled":       {met: met{edited: time.Minute}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"asked":                          {met: met{registered: "asked"}, reason: "WaitingForFleet"},
		"the name is taken":              {met: met{registered: "for another"}, reason: "RegistrationConflict"},
		"Fleet took it for another's":    {met: met{registered: "mistaken", credential: "its"}, reason: "RegistrationConflict"},
		"no Bundle yet":                  {met: with(func(m *met) { m.noAgent = true }), reason: "WaitingForFleet"},
		"granted, no credential yet":     {met: granted, steps: []step{inspect, collect}, reason: "WaitingForFleet"},
		"granted":                        {met: with(func(m *met) { m.credential = "its" }), steps: []step{inspect, collect, handOut}, reason: "ManifestReady", token: "fresh"},
		"the credential is another's":    {met: with(func(m *met) { m.credential = "another's" }), steps: []step{inspect, collect}, reason: "WaitingForFleet"},
		"its account is elsewhere":       {met: with(func(m *met) { m.credential = "elsewhere" }), steps: []step{inspect, collect}, reason: "WaitingForFleet"},
		"its account would be elsewhere": {met: met{elsewhere: true}, reason: "RegistrationConflict"},
		"rotated, to be elsewhere":       {met: with(func(m *met) { m.elsewhere, m.rotate, m.others, m.secret = true, true, []string{"ours"}, ours }), reason: "RegistrationConflict"},
		"handed out":                     {met: with(func(m *met) { m.secret, m.kept, m.age = ours, true, time.Hour }), steps: []step{inspect, handOut}, reason: "ManifestReady", token: "kept"},
		"no Bundle yet, nor registered":  {met: met{noAgent: true}, reason: "WaitingForFleet"},
		"a namesake's Secret is there":   {met: met{secret: predecessors}, steps: []step{inspect}, reason: "SecretConflict"},
		"somebody's Secret is there":     {met: met{secret: somebodys}, steps: []step{inspect}, reason: "SecretConflict"},
		"its Secret is there already":    {met: met{secret: ours, kept: true}, steps: []step{inspect, register}, reason: "WaitingForFleet"},
		"the Secret is lost, early":      {met: with(func(m *met) { m.credential, m.age = "its", 20*time.Minute }), steps: []step{inspect, collect, handOut}, reason: "ManifestReady", token: "fresh"},
		"the Secret is lost":             {met: with(func(m *met) { m.age = time.Hour }), steps: []step{inspect, collect}, reason: "CredentialLost"},
		"the Secret is of another":       {met: with(func(m *met) { m.secret, m.age = ours, time.Hour }), steps: []step{inspect, collect}, reason: "CredentialLost"},
		"the Secret is a namesake's":     {met: with(func(m *met) { m.secret, m.kept = predecessors, true }), steps: []step{inspect}, reason: "SecretConflict"},
		"the Secret is somebody else's":  {met: with(func(m *met) { m.secret = somebodys }), steps: []step{inspect}, reason: "SecretConflict"},
		"rotated, and not any more":      {met: met{others: []string{"ours, later"}, secret: ours, kept: true}, steps: []step{inspect, handOut}, reason: "ManifestReady", token: "kept"},
		"one is granted after all":       {met: with(func(m *met) { m.credential, m.others = "its", []string{"ours, later"} }), steps: []step{inspect, collect, handOut, revoke}, reason: "ManifestReady", token: "fresh"},
		"asked for, and not any more":    {met: with(func(m *met) { m.secret, m.kept, m.others = ours, true, []string{"ours, asked"} }), steps: []step{inspect, handOut, revoke}, reason: "ManifestReady", token: "kept"},
		"taken over from an agent":       {met: met{others: []string{"ours, other clientID"}}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"rotated":                        {met: met{rotate: true, others: []string{"ours"}}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"rotated, granted":               {met: with(func(m *met) { m.rotate, m.credential, m.others, m.secret = true, "its", []string{"ours"}, ours }), steps: []step{inspect, collect, handOut, revoke}, reason: "ManifestReady", token: "fresh"},
		"taken over, granted":            {met: with(func(m *met) { m.credential, m.others = "its", []string{"foreign, other clientID"} }), steps: []step{inspect, collect, handOut, revoke}, reason: "ManifestReady", token: "fresh"},
		"taken over, before it is":       {met: met{others: []string{"foreign, other clientID"}}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"another agent asks meanwhile":   {met: with(func(m *met) { m.credential, m.others = "its", []string{"foreign", "foreign, other clientID, asked"} }), steps: []step{inspect, collect, handOut}, reason: "ManifestReady", token: "fresh"},
		"the manager's, called":          {met: met{called: true, others: []string{"foreign, granted"}}, reason: "AlreadyRegistered"},
		"the manager's, rotated":         {met: met{called: true, rotate: true, others: []string{"foreign, granted"}}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"the manager's, never called":    {met: met{others: []string{"foreign, granted"}}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"of another clientID":            {met: met{called: true, others: []string{"foreign, other clientID"}}, steps: []step{inspect, rehearse, register}, reason: "WaitingForFleet"},
		"never ours":                     {met: met{byManager: true}},
		"turned over, import under way":  {met: met{byManager: true, told: true, secret: ours, others: []string{"ours"}}, steps: []step{inspect, withdraw}},
		"turned over, imported":          {met: met{byManager: true, told: true, others: []string{"ours", "foreign, granted"}}, steps: []step{inspect, revoke}},
		"turned over, imported later":    {met: met{byManager: true, others: []string{"ours", "foreign, granted"}}, steps: []step{revoke}},
		"moved here":                     {met: met{byManager: true, unlooked: true, secret: ours}, steps: []step{inspect, withdraw}},
		"moved here, without a Secret":   {met: met{byManager: true, unlooked: true}, steps: []step{inspect}},
		"moved here, Secret is another":  {met: met{byManager: true, unlooked: true, secret: somebodys}, steps: []step{inspect}},
		"held where it was moved to":     {met: met{byManager: true, held: true, unlooked: true, secret: ours}},
		"turned over, Secret is another": {met: met{byManager: true, told: true, secret: somebodys}, steps: []step{inspect}},
		"taken out of Fleet":             {met: met{byManager: true, told: true, noFleet: true, secret: ours}, steps: []step{inspect, withdraw}},
	} {
		t.Run(name, func(t *testing.T) {
			steps, result, v := test.met.play(t)
			if diff := cmp.Diff(test.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if result.reason != test.reason || result.keep != test.met.held || (result.status == metav1.ConditionTrue) != (test.reason == reasonReady) {
				t.Errorf("got %+v, want reason %q", result, test.reason)
			}
			if slices.Contains(steps, handOut) && string(v.secret.Data[tokenKey]) != test.token {
				t.Errorf("handed out %q, want %q", v.secret.Data[tokenKey], test.token)
			}
		})
	}
}

// TestRegistrationName: what was registered is found again, and only a new Fleet Cluster,
// clientID or wish makes another.
func TestRegistrationName(t *testing.T) {
	base := met{}.visit().registrationName()
	if again := (met{called: true, registered: "granted"}).visit().registrationName(); again != base {
		t.Errorf("%q and then %q", base, again)
	}
	for name, change := range map[string]func(*visit){
		"Fleet Cluster": func(v *visit) { v.fleet.UID = "another" },
		"clientID":      func(v *visit) { v.fleet.Spec.ClientID = "another" },
		"rotation":      func(v *visit) { v.cluster.Annotations[stamp.RotateAnnotation] = "1" },
		"both":          func(v *visit) { v.fleet.UID, v.fleet.Spec.ClientID = "fleetd", "rawn" },
	} {
		v := met{}.visit()
		if change(v); v.registrationName() == base {
			t.Errorf("%s: the name is the same", name)
		}
	}
}

// TestCurrent: what Fleet has granted last is how a cluster is registered, unless somebody
// asks for another credential.
func TestCurrent(t *testing.T) {
	for name, test := range map[string]struct {
		met  met
		want string
	}{
		"none":                          {met: met{}},
		"granted last":                  {met: met{registered: "granted", others: []string{"ours, later"}}, want: "muster-later"},
		"granted last, in other order":  {met: met{others: []string{"ours, later", "ours"}}, want: "muster-later"},
		"asked for later":               {met: met{others: []string{"ours", "ours, asked"}}, want: "muster-earlier"},
		"asked for, none granted":       {met: met{others: []string{"ours, asked"}}, want: "muster-asked"},
		"another's":                     {met: met{others: []string{"foreign, granted", "ours, other clientID"}}},
		"rotated":                       {met: met{rotate: true, others: []string{"ours, later"}}},
		"of two from one second, fixed": {met: met{others: []string{"ours, later", "ours, as late"}}, want: "muster-later"},
	} {
		got := ""
		if current := test.met.visit().current(); current != nil {
			got = current.Name
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestSightings(t *testing.T) {
	var s sightings
	key, fleet := types.NamespacedName{Namespace: "team", Name: "prod"}, met{}.visit().fleet
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
	s.forget(key)
	expect("forgotten", 6, 6)
}

func TestWhoseIs(t *testing.T) {
	cluster := met{}.visit().cluster
	owner := desired.Owner(cluster)
	other := owner
	other.UID = "earlier"
	secret := func(kind corev1.SecretType, owners ...metav1.OwnerReference) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owners, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}}, Type: kind}
	}
	for name, test := range map[string]struct {
		secret *corev1.Secret
		want   whose
	}{
		"none":                    {nil, nobodys},
		"ours":                    {secret(stamp.ManifestSecretType, owner), ours},
		"of another type":         {secret(corev1.SecretTypeOpaque, owner), somebodys},
		"without an owner":        {secret(stamp.ManifestSecretType), somebodys},
		"with two":                {secret(stamp.ManifestSecretType, owner, other), somebodys},
		"of another kind's":       {secret(stamp.ManifestSecretType, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", UID: cluster.UID}), somebodys},
		"of an earlier Cluster's": {secret(stamp.ManifestSecretType, other), predecessors},
	} {
		if got := whoseIs(test.secret, cluster); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
