package random

import (
	"fmt"
	"math/rand/v2"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	registrationKey = domain + "/registration"
	rotateKey       = domain + "/rotate-agent-credential"
	manifestReady   = "FleetAgentManifestReady"
)

// credentialsNamespace is the namespace where Fleet leaves credentials.
const credentialsNamespace = "cattle-fleet-clusters-system"

// agentOperations happen to Clusters whose agents register themselves: requests of users, and actions of Fleet, which
// the run plays. The run knows what Muster has requested from Fleet when Muster is at rest, and each operation ends
// differently if Muster sees it too late.
var agentOperations = []operation{
	{name: "CallUp", weight: 26, draw: func(rng *rand.Rand, step *Step) {
		draws(drawSlot, drawNamespace, drawValue("", "called", "called"))(rng, step)
		step.Class, step.Kind = noClass, "Calls"
	}, do: checkIn, racy: always},
	{name: "Registration", weight: 12, draw: draws(drawSlot, drawValue("agent", "agent", "agent", "manager", "manager", "", "neither")),
		do: func(r *run, step Step) (bool, error) { return r.register(step, step.Value) }, racy: always},
	{name: "Rotate", weight: 5, draw: draws(drawSlot, drawValue("1", "2", "")), do: rotateCredential, racy: always},
	{name: "FleetDeploys", weight: 5, draw: draws(drawSlot, drawKind("Namespace", "Bundle")), do: fleetDeploys, racy: always},
	{name: "FleetGrants", weight: 16, draw: drawSlot, do: fleetGrants, racy: always},
	{name: "FleetBinds", weight: 4, draw: drawValue(string(fixture.Unbound), string(fixture.NeedsToken), string(fixture.OneToken)), do: fleetBinds},
	{name: "FleetInstalls", weight: 5, draw: drawSlot, do: fleetInstalls, racy: always},
	{name: "AgentCalls", weight: 8, draw: drawSlot, do: agentChecksIn, racy: always},
	{name: "FleetSays", weight: 12, draw: draws(drawSlot, drawValue("True", "False")), do: fleetReports},
	{name: "FleetServer", weight: 2, draw: drawValue("https://fleet.example.com", "https://elsewhere.example.com", ""),
		do: func(r *run, step Step) (bool, error) { return true, r.setServer(step.Value) }, racy: always},
	{name: "LoseCredential", weight: 2, draw: drawSlot, do: loseCredential, racy: always},
	{name: "ChangeManifest", weight: 5, draw: draws(drawSlot, drawKind("Delete", "Delete", "Edit", "Forge")), do: changeManifest, racy: always},
}

// flapOperations turn Clusters away from their agents by mistake and back again. Meanwhile, Muster must not cut off
// an agent, register it again or leave it without a manifest. Value says whether Muster comes to rest in between.
var flapOperations = []operation{
	{name: "Flap", weight: 8, draw: draws(drawSlot, drawKind("Annotation", "Flag", "Selector", "Config", "Config"), drawValue("", "at rest")),
		do: flap, racy: always},
}

func flap(r *run, step Step) (bool, error) {
	var mistake, back func() (bool, error)
	var inMind func(*oracle.State, bool) // The same in a model of the state.
	if step.Kind == "Annotation" {
		step = r.agentInitiated(step)
		cluster := r.cluster(step)
		if cluster == nil || cluster.Annotations[registrationKey] != "agent" {
			return false, nil
		}
		inMind = func(s *oracle.State, isBack bool) {
			s.Clusters[client.ObjectKeyFromObject(cluster)].Annotations[registrationKey] = map[bool]string{true: "agent", false: "manager"}[isBack]
		}
		mistake = func() (bool, error) { return r.register(step, "manager") }
		back = func() (bool, error) { return r.register(step, "agent") }
	} else {
		if r.state.Config == nil {
			return false, nil
		}
		before, mistaken := Step{Config: r.state.Config.Spec.DeepCopy()}, Step{Config: r.state.Config.Spec.DeepCopy()}
		cluster, _ := r.config()
		mistaken.Config.Cluster = &cluster
		mistake = func() (bool, error) { return setConfig(r, mistaken) }
		back = func() (bool, error) { return setConfig(r, before) }
		inMind = func(s *oracle.State, isBack bool) {
			s.Config.Spec = *map[bool]Step{true: before, false: mistaken}[isBack].Config.DeepCopy()
		}
		switch step.Kind {
		case "Flag":
			cluster.AgentInitiated = ptr.To(false)
		case "Selector":
			cluster.AgentInitiatedSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"evn": "prod"}}
		default:
			mistake = func() (bool, error) { return deleteConfig(r, step) }
			step.Value = "at rest" // Without a selector, Muster selects other Clusters.
		}
	}
	if step.Value == "" {
		seen := r.state.Copy()
		inMind(&seen, false)
		seen = oracle.Converge(seen)
		if inMind(&seen, true); !areSame(r.state, seen) {
			step.Value = "at rest" // It matters whether Muster has seen the mistake.
		}
	}
	if done, err := mistake(); !done || err != nil {
		return done, err
	}
	if step.Value != "" {
		if err := r.quiet(); err != nil {
			return true, err
		}
	}
	_, err := back()
	return halfDone(err)
}

// register sets which side registers a Cluster.
func (r *run) register(step Step, by string) (bool, error) {
	return r.changeStamped(admin, step, metadata("annotations", registrationKey, by))
}

// fleetReports plays Fleet, which reports whether the bundles of a cluster are ready.
func fleetReports(r *run, step Step) (bool, error) {
	fleet := r.its(step)
	if fleet == nil {
		return false, nil
	}
	before := fleet.DeepCopy()
	fleet.Status.Summary.DesiredReady = 2
	fleet.Status.Conditions = []genericcondition.GenericCondition{{
		Type: "Ready", Status: corev1.ConditionStatus(step.Value), Message: "said in step " + fmt.Sprint(r.count),
	}}
	return r.changed(fleet, admin.Status().Patch(ctx, fleet, client.MergeFrom(before)))
}

// its returns the last known Fleet Cluster of a step's Cluster, or nil if there is none.
func (r *run) its(step Step) *fleetv1.Cluster {
	cluster := r.cluster(step)
	if cluster == nil {
		return nil
	}
	fleet := r.state.FleetClusters[oracle.Key{Namespace: cluster.Namespace, Name: cluster.Annotations[pinKey]}]
	if fleet == nil || !fleet.DeletionTimestamp.IsZero() {
		return nil
	}
	return fleet.DeepCopy()
}

// agentInitiated moves a step to the next Cluster whose agent must register itself, if there is one. There are only a
// few at any time.
func (r *run) agentInitiated(step Step) Step {
	step.Cluster = firstSlot(step.Cluster, slotCount, func(slot int) bool {
		cluster := r.cluster(Step{Cluster: slot})
		return cluster != nil && reason(cluster, manifestReady) != ""
	})
	return step
}

// firstSlot returns the first slot, counted from the given one, that matches. If none does, it
// returns the given slot.
func firstSlot(from, count int, is func(int) bool) int {
	for i := range count {
		if slot := (from + i) % count; is(slot) {
			return slot
		}
	}
	return from
}

// checkIn takes every step that a Cluster's agent needs before it checks in, unless something prevents one.
func checkIn(r *run, step Step) (bool, error) {
	var done bool
	var err error
	if cluster := r.cluster(step); cluster == nil {
		done, err = createCluster(r, step)
	} else if done, err = r.register(step, "agent"); done && err == nil && cluster.Spec.Topology.ClassRef.Name != "" {
		if err := r.between(); err != nil {
			return true, err
		}
		_, err = initialize(r, Step{Cluster: step.Cluster})
	}
	if !done || err != nil {
		return done, err
	}
	if err := r.quiet(); err != nil {
		return true, err
	}
	if _, err := grantIts(r, step); err != nil || step.Value == "" {
		return true, err
	}
	if err := r.quiet(); err != nil {
		return true, err
	}
	_, err = checksInIts(r, step)
	return true, err
}

// reason returns the reason of a condition on a Cluster.
func reason(cluster *clusterv1.Cluster, condition string) string {
	if found := meta.FindStatusCondition(cluster.Status.Conditions, condition); found != nil {
		return found.Reason
	}
	return ""
}

// touch changes a label of a Cluster to wake the registrar, which does not watch Secrets and might otherwise react a
// minute later.
func (r *run) touch(step Step) error {
	_, err := r.changeStamped(admin, step, metadata("labels", "touched", fmt.Sprint(r.count)))
	return err
}

// rotateCredential requests a new credential for a Cluster that has one.
func rotateCredential(r *run, step Step) (bool, error) {
	step = r.agentInitiated(step)
	cluster := r.cluster(step)
	if cluster == nil || reason(cluster, manifestReady) != "ManifestReady" && reason(cluster, manifestReady) != "AlreadyRegistered" {
		return false, nil
	}
	return r.changeStamped(admin, step, metadata("annotations", rotateKey, step.Value))
}

// fleetDeploys plays Fleet, which sees a new Fleet Cluster: it gives it a namespace, and a Bundle with its agent. A
// Fleet Cluster that Fleet must import gets a clientID.
func fleetDeploys(r *run, step Step) (bool, error) {
	fleet := r.its(step)
	if fleet == nil {
		return false, nil
	}
	if step.Kind == "Bundle" {
		bundle := oracle.Agent(fleet)
		if r.state.AgentInitiated.Bundles[client.ObjectKeyFromObject(bundle)] != nil {
			return false, nil
		}
		return true, r.create(admin, bundle)
	}
	drawn := fleet.Spec.KubeConfigSecret != "" && fleet.Spec.ClientID == ""
	if drawn {
		id := fmt.Sprintf("drawn-by-fleet-%d-%s", r.count, fleet.UID)
		if done, err := r.change(admin, fleet, map[string]any{"spec": map[string]any{"clientID": id}}); !done {
			return false, err
		}
	}
	if fleet.Status.Namespace != "" {
		return drawn, nil
	}
	// The stack makes the Namespace.
	done, err := r.changed(fleet, fixture.AssignNamespace(ctx, admin, fleet))
	return drawn || done, err
}

// fleetGrants plays Fleet, which grants pending registrations, and deletes those that it granted earlier under the
// same clientID. If Fleet does not know the Fleet Cluster yet, it processes that first.
func fleetGrants(r *run, step Step) (bool, error) { return grantIts(r, r.agentInitiated(step)) }

func grantIts(r *run, step Step) (bool, error) {
	noted := false
	for _, kind := range []string{"Namespace", "Bundle"} {
		done, err := fleetDeploys(r, Step{Cluster: step.Cluster, Kind: kind})
		if err != nil {
			return noted, err
		}
		noted = noted || done
	}
	if noted {
		if err := r.quiet(); err != nil {
			return true, err
		}
	}
	fleet := r.its(step)
	if fleet == nil {
		return noted, nil
	}
	for _, asked := range r.state.AgentInitiated.Registrations {
		if !isOwnedBy(asked, fleet) || asked.Status.Granted || asked.Spec.ClientID != fleet.Spec.ClientID {
			continue
		}
		if r.refuses(asked) {
			return noted, nil
		}
		return true, r.grant(asked.DeepCopy(), fleet)
	}
	return noted, nil
}

func isOwnedBy(object client.Object, owner client.Object) bool {
	owners := object.GetOwnerReferences()
	return len(owners) == 1 && owners[0].UID == owner.GetUID()
}

// fleetBinds plays an upgrade of Fleet to a version that refuses other registrations, or a downgrade.
func fleetBinds(r *run, step Step) (bool, error) {
	done := r.binding != fixture.Binding(step.Value)
	r.binding = fixture.Binding(step.Value)
	return done, nil
}

// refuses reports whether Fleet does not grant a registration.
func (r *run) refuses(asked *fleetv1.ClusterRegistration) bool {
	var others []fleetv1.ClusterRegistration
	for _, other := range r.state.AgentInitiated.Registrations {
		if other.Namespace == asked.Namespace {
			others = append(others, *other)
		}
	}
	return r.binding.Refuses(asked, others)
}

func (r *run) grant(asked *fleetv1.ClusterRegistration, fleet *fleetv1.Cluster) error {
	for key, earlier := range r.state.AgentInitiated.Registrations {
		if key == client.ObjectKeyFromObject(asked) || earlier.Namespace != asked.Namespace || earlier.Spec.ClientID != asked.Spec.ClientID {
			continue
		}
		if _, err := r.remove(admin, earlier.DeepCopy()); err != nil {
			return err
		}
		r.note(earlier, false)
	}
	if err := r.create(admin, oracle.Credential(asked, fleet, fmt.Sprintf("token-%d", r.count))); err != nil {
		return err
	}
	if err := fixture.Grant(ctx, admin, asked, fleet.Name); err != nil {
		return err
	}
	r.note(asked, true)
	return nil
}

// fleetInstalls plays Fleet, which has installed an agent through the kubeconfig; the agent registers itself, and
// checks in. If Fleet refuses it, it gives up.
func fleetInstalls(r *run, step Step) (bool, error) {
	if _, err := fleetDeploys(r, Step{Cluster: step.Cluster, Kind: "Namespace"}); err != nil {
		return false, err
	}
	fleet := r.its(step)
	if fleet == nil || fleet.Spec.KubeConfigSecret == "" || fleet.Spec.ClientID == "" || fleet.Status.Namespace == "" {
		return false, nil
	}
	asked := fixture.RegistersItself(fmt.Sprintf("request-%d", r.count), fleet.Spec.ClientID, fleet)
	asked.Spec.ClientRandom = asked.Name + fleet.Namespace
	if err := r.create(admin, asked); err != nil {
		return false, err
	}
	if r.refuses(asked) {
		return r.remove(admin, asked)
	}
	if err := r.grant(asked, fleet); err != nil {
		return true, err
	}
	return true, r.call(fleet)
}

// agentChecksIn plays an agent that has a credential.
func agentChecksIn(r *run, step Step) (bool, error) { return checksInIts(r, r.agentInitiated(step)) }

func checksInIts(r *run, step Step) (bool, error) {
	fleet := r.its(step)
	if fleet == nil {
		return false, nil
	}
	for _, asked := range r.state.AgentInitiated.Registrations {
		// Fleet alone hands out no credential.
		if isOwnedBy(asked, fleet) && asked.Status.Granted && (asked.Labels[managedByLabel] == "" || r.isHandedOut(asked)) {
			return true, r.call(fleet)
		}
	}
	return false, nil
}

func (r *run) isHandedOut(asked *fleetv1.ClusterRegistration) bool {
	for _, secret := range r.state.AgentInitiated.Manifests {
		if secret.Annotations[domain+"/registered"] == string(asked.UID) {
			return true
		}
	}
	return false
}

// call makes an agent report. Times are in whole seconds, so whatever follows happens in a later second.
func (r *run) call(fleet *fleetv1.Cluster) error {
	at := time.Now().Truncate(time.Second)
	if last := fleet.Status.Agent.LastSeen.Time; !at.After(last) {
		at = last.Add(time.Second)
	}
	if done, err := r.changed(fleet, fixture.Call(ctx, admin, fleet, at)); !done {
		return err
	}
	r.state.AgentInitiated.CheckedIn[fleet.UID] = true
	time.Sleep(time.Until(at.Add(time.Second)))
	return nil
}

func (r *run) setServer(url string) error {
	r.state.AgentInitiated.Server = url
	return env.Apply(ctx, fixture.FleetSettings(url))
}

// loseCredential plays Fleet, which keeps a credential for 40 minutes.
func loseCredential(r *run, step Step) (bool, error) {
	fleet := r.its(r.agentInitiated(step))
	if fleet == nil {
		return false, nil
	}
	done := false
	for _, asked := range r.state.AgentInitiated.Registrations {
		left := r.state.AgentInitiated.Credentials[oracle.CredentialName(asked)]
		if left == nil || !isOwnedBy(asked, fleet) {
			continue
		}
		if _, err := r.remove(admin, left.DeepCopy()); err != nil {
			return done, err
		}
		done = true
	}
	return done, nil
}

// changeManifest plays a user who deletes a manifest, writes into it, or takes its name, and gives the name back.
func changeManifest(r *run, step Step) (bool, error) {
	if step.Kind != "Forge" {
		step = r.agentInitiated(step)
	}
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	secret := pick(r.state.AgentInitiated.Manifests, oracle.ManifestOf(client.ObjectKeyFromObject(cluster)), &corev1.Secret{
		Data: map[string][]byte{"manifest": []byte("theirs")},
	})
	if isThere(secret) == (step.Kind == "Forge") {
		return false, nil
	}
	done := true
	var err error
	switch step.Kind {
	case "Forge":
		err = r.create(admin, secret)
	case "Delete":
		done, err = r.remove(admin, secret)
	default:
		done, err = r.change(admin, secret, map[string]any{"stringData": map[string]any{"manifest": "theirs"}})
	}
	if !done || err != nil {
		return false, err
	}
	return true, r.touch(step)
}
