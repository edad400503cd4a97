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

// What happens to Clusters whose agents call: what people ask for, and what Fleet does, which
// is played. What Fleet is asked for is known when Muster is at rest, and each of these comes
// out differently if it is seen too late.
var callingOperations = []operation{
	{name: "CallUp", weight: 26, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Namespace, step.Class, step.Kind = rng.IntN(namespaceCount), noClass, "Calls"
		step.Value = oneOf(rng, "", "called", "called")
	}, do: callUp, racy: always},
	{name: "Registration", weight: 12, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Value = oneOf(rng, "agent", "agent", "agent", "manager", "manager", "", "neither")
	}, do: func(r *run, step Step) (bool, error) {
		return r.changeStamped(admin, step, metadata("annotations", registrationKey, step.Value))
	}, racy: always},
	{name: "Rotate", weight: 5, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Value = oneOf(rng, "1", "2", "")
	}, do: rotateCredential, racy: always},
	{name: "FleetDeploys", weight: 5, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Kind = oneOf(rng, "Namespace", "Bundle")
	}, do: fleetDeploys, racy: always},
	{name: "FleetGrants", weight: 16, draw: drawSlot, do: fleetGrants, racy: always},
	{name: "FleetInstalls", weight: 5, draw: drawSlot, do: fleetInstalls, racy: always},
	{name: "AgentCalls", weight: 8, draw: drawSlot, do: agentCalls, racy: always},
	{name: "FleetSays", weight: 12, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Value = oneOf(rng, "True", "False")
	}, do: fleetSays},
	{name: "FleetServer", weight: 2, draw: func(rng *rand.Rand, step *Step) {
		step.Value = oneOf(rng, "https://fleet.example.com", "https://elsewhere.example.com", "")
	}, do: func(r *run, step Step) (bool, error) { return true, r.setServer(step.Value) }, racy: always},
	{name: "LoseCredential", weight: 2, draw: drawSlot, do: loseCredential, racy: always},
	{name: "ChangeManifest", weight: 5, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Kind = oneOf(rng, "Delete", "Delete", "Edit", "Forge")
	}, do: changeManifest, racy: always},
}

// fleetSays plays Fleet, which reports whether the bundles of a cluster are ready.
func fleetSays(r *run, step Step) (bool, error) {
	_, fleet := r.its(step)
	if fleet == nil {
		return false, nil
	}
	before := fleet.DeepCopy()
	fleet.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: corev1.ConditionStatus(step.Value), Message: "said in step " + fmt.Sprint(r.count)}}
	if err := admin.Status().Patch(ctx, fleet, client.MergeFrom(before)); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.remember(fleet)
	return true, nil
}

// its returns a Cluster, and its Fleet Cluster as it was seen last; nil if there is none.
func (r *run) its(step Step) (*clusterv1.Cluster, *fleetv1.Cluster) {
	cluster := r.cluster(step)
	if cluster == nil {
		return nil, nil
	}
	fleet := r.state.FleetClusters[oracle.Key{Namespace: cluster.Namespace, Name: cluster.Annotations[pinKey]}]
	if fleet == nil || !fleet.DeletionTimestamp.IsZero() {
		return cluster, nil
	}
	return cluster, fleet.DeepCopy()
}

// caller is the step, with the first slot from its own on whose agent is to call, if there is
// one: of few Clusters at a time is it.
func (r *run) caller(step Step) Step {
	for i := range slotCount {
		other := step
		other.Cluster = (step.Cluster + i) % slotCount
		if cluster := r.cluster(other); cluster != nil && told(cluster, manifestReady) != "" {
			return other
		}
	}
	return step
}

// callUp does all that it takes for a Cluster's agent to call, as far as nothing is in the way.
func callUp(r *run, step Step) (bool, error) {
	var done bool
	var err error
	if cluster := r.cluster(step); cluster == nil {
		done, err = createCluster(r, step)
	} else if done, err = r.changeStamped(admin, step, metadata("annotations", registrationKey, "agent")); done && err == nil && cluster.Spec.Topology.ClassRef.Name != "" {
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
	_, err = callsIts(r, step)
	return true, err
}

// told returns the reason of a condition on a Cluster.
func told(cluster *clusterv1.Cluster, condition string) string {
	if found := meta.FindStatusCondition(cluster.Status.Conditions, condition); found != nil {
		return found.Reason
	}
	return ""
}

// touch changes a label of a Cluster, which the registrar reads: it does not watch Secrets, and
// may otherwise look a minute later.
func (r *run) touch(step Step) error {
	_, err := r.changeStamped(admin, step, metadata("labels", "touched", fmt.Sprint(r.count)))
	return err
}

// rotateCredential asks for another credential of a Cluster that has one.
func rotateCredential(r *run, step Step) (bool, error) {
	step = r.caller(step)
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	if reason := told(cluster, manifestReady); reason != "ManifestReady" && reason != "AlreadyRegistered" {
		return false, nil
	}
	return r.changeStamped(admin, step, metadata("annotations", rotateKey, step.Value))
}

// fleetDeploys plays Fleet, which takes note of a Fleet Cluster: it gives it a namespace, and
// a Bundle with its agent. One that it is to import itself gets a clientID.
func fleetDeploys(r *run, step Step) (bool, error) {
	_, fleet := r.its(step)
	if fleet == nil {
		return false, nil
	}
	if step.Kind == "Bundle" {
		bundle := oracle.Agent(fleet)
		key := client.ObjectKeyFromObject(bundle)
		if r.state.Calling.Bundles[key] != nil {
			return false, nil
		}
		if err := admin.Create(ctx, bundle); err != nil {
			return false, err
		}
		r.state.Calling.Bundles[key] = bundle
		return true, nil
	}
	drawn := fleet.Spec.KubeConfigSecret != "" && fleet.Spec.ClientID == ""
	if drawn {
		if err := patch(fleet, map[string]any{"spec": map[string]any{"clientID": fmt.Sprintf("drawn-by-fleet-%d-%s", r.count, fleet.UID)}}); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		r.remember(fleet)
	}
	if fleet.Status.Namespace != "" {
		return drawn, nil
	}
	if err := fixture.AssignNamespace(ctx, admin, fleet); err != nil {
		return drawn, client.IgnoreNotFound(err)
	}
	r.remember(fleet)
	return true, r.makeFleetNamespace(fleet)
}

// fleetGrants plays Fleet, which grants what waits for it, and lets what it has granted under
// the same clientID go. If it does not know the Fleet Cluster yet, it takes note of it first.
func fleetGrants(r *run, step Step) (bool, error) { return grantIts(r, r.caller(step)) }

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
	_, fleet := r.its(step)
	if fleet == nil {
		return noted, nil
	}
	for _, asked := range r.state.Calling.Registrations {
		if !isOwnedBy(asked, fleet) || asked.Status.Granted || asked.Spec.ClientID != fleet.Spec.ClientID {
			continue
		}
		return true, r.grant(asked.DeepCopy(), fleet)
	}
	return noted, nil
}

func isOwnedBy(object client.Object, owner client.Object) bool {
	owners := object.GetOwnerReferences()
	return len(owners) == 1 && owners[0].UID == owner.GetUID()
}

func (r *run) grant(asked *fleetv1.ClusterRegistration, fleet *fleetv1.Cluster) error {
	key := client.ObjectKeyFromObject(asked)
	for other, earlier := range r.state.Calling.Registrations {
		if other == key || earlier.Namespace != asked.Namespace || earlier.Spec.ClientID != asked.Spec.ClientID {
			continue
		}
		if err := admin.Delete(ctx, earlier.DeepCopy()); client.IgnoreNotFound(err) != nil {
			return err
		}
		delete(r.state.Calling.Registrations, other)
	}
	left := oracle.Credential(asked, fleet, fmt.Sprintf("token-%d", r.count))
	if err := admin.Create(ctx, left); err != nil {
		return err
	}
	r.state.Calling.Credentials[left.Name] = left
	if err := fixture.Grant(ctx, admin, asked, fleet.Name); err != nil {
		return err
	}
	r.state.Calling.Registrations[key] = asked
	return nil
}

// fleetInstalls plays Fleet, which has installed an agent through the kubeconfig: it registers
// itself, and calls.
func fleetInstalls(r *run, step Step) (bool, error) {
	if _, err := fleetDeploys(r, Step{Cluster: step.Cluster, Kind: "Namespace"}); err != nil {
		return false, err
	}
	_, fleet := r.its(step)
	if fleet == nil || fleet.Spec.KubeConfigSecret == "" || fleet.Spec.ClientID == "" || fleet.Status.Namespace == "" {
		return false, nil
	}
	asked := fixture.RegistersItself(fmt.Sprintf("request-%d", r.count), fleet.Spec.ClientID, fleet)
	asked.Spec.ClientRandom = asked.Name + fleet.Namespace
	if err := admin.Create(ctx, asked); err != nil {
		return false, err
	}
	if err := r.grant(asked, fleet); err != nil {
		return true, err
	}
	return true, r.call(fleet)
}

// agentCalls plays an agent that has a credential.
func agentCalls(r *run, step Step) (bool, error) { return callsIts(r, r.caller(step)) }

func callsIts(r *run, step Step) (bool, error) {
	_, fleet := r.its(step)
	if fleet == nil {
		return false, nil
	}
	for _, asked := range r.state.Calling.Registrations {
		// Fleet alone does not hand a credential out.
		if isOwnedBy(asked, fleet) && asked.Status.Granted && (asked.Labels[managedByLabel] == "" || r.isHandedOut(asked)) {
			return true, r.call(fleet)
		}
	}
	return false, nil
}

func (r *run) isHandedOut(asked *fleetv1.ClusterRegistration) bool {
	for _, secret := range r.state.Calling.Manifests {
		if secret.Annotations[domain+"/registered"] == string(asked.UID) {
			return true
		}
	}
	return false
}

// call has an agent report. Times are in whole seconds: what follows is in a later one.
func (r *run) call(fleet *fleetv1.Cluster) error {
	at := time.Now().Truncate(time.Second)
	if last := fleet.Status.Agent.LastSeen.Time; !at.After(last) {
		at = last.Add(time.Second)
	}
	if err := fixture.Call(ctx, admin, fleet, at); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.remember(fleet)
	r.state.Calling.Called[fleet.UID] = true
	time.Sleep(time.Until(at.Add(time.Second)))
	return nil
}

func (r *run) setServer(url string) error {
	r.state.Calling.Server = url
	return env.Apply(ctx, fixture.FleetSettings(url))
}

// loseCredential plays Fleet, which keeps a credential for 40 minutes.
func loseCredential(r *run, step Step) (bool, error) {
	_, fleet := r.its(r.caller(step))
	if fleet == nil {
		return false, nil
	}
	done := false
	for _, asked := range r.state.Calling.Registrations {
		left := r.state.Calling.Credentials[oracle.CredentialName(asked)]
		if left == nil || !isOwnedBy(asked, fleet) {
			continue
		}
		if err := admin.Delete(ctx, left.DeepCopy()); client.IgnoreNotFound(err) != nil {
			return done, err
		}
		delete(r.state.Calling.Credentials, left.Name)
		done = true
	}
	return done, nil
}

// changeManifest has somebody delete a manifest, write into it, or take its name, and give that
// back again.
func changeManifest(r *run, step Step) (bool, error) {
	if step.Kind != "Forge" {
		step = r.caller(step)
	}
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	key := oracle.ManifestOf(client.ObjectKeyFromObject(cluster))
	secret := r.state.Calling.Manifests[key].DeepCopy()
	switch {
	case step.Kind == "Forge" && secret == nil:
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: map[string][]byte{"manifest": []byte("theirs")}}
		if err := admin.Create(ctx, secret); err != nil {
			return false, err
		}
		r.state.Calling.Manifests[key] = secret
	case secret == nil || step.Kind == "Forge":
		return false, nil
	case step.Kind == "Delete":
		if err := admin.Delete(ctx, secret); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		delete(r.state.Calling.Manifests, key)
	default:
		if err := patch(secret, map[string]any{"stringData": map[string]any{"manifest": "theirs"}}); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		r.state.Calling.Manifests[key] = secret
	}
	return true, r.touch(step)
}
