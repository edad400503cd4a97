package random

import (
	"fmt"
	"math/rand/v2"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

// collided is the slot of the victim: a Cluster with a long name in namespace lib. The tenant creates Clusters and
// Fleet Clusters for which Fleet derives the victim's namespace.
const collided = slotCount - 1

var collidingOperations = []operation{
	// The Cluster goes again in the same step: if neither were in Fleet, either could come first.
	{name: "TenantCollide", weight: 10, draw: func(rng *rand.Rand, step *Step) { step.Cluster = rng.IntN(collided) },
		do: tenantCollide, racy: always},
	{name: "CreateCollided", weight: 8, do: createCollided},
}

// collidedKey returns the key of the victim's Fleet Cluster.
func (r *run) collidedKey() oracle.Key {
	return oracle.Key{Namespace: r.namespace(lib), Name: slotName(collided)}
}

// collidingName returns a name in the tenant's namespace for which Fleet derives the victim's namespace. About one
// name in a million does.
func (r *run) collidingName() string {
	wanted := oracle.FleetNamespace(r.collidedKey())
	for i := 0; r.colliding == ""; i++ {
		key := oracle.Key{Namespace: r.namespace(theirs), Name: fmt.Sprintf("n%d-%s-%d", lib, slotName(collided), i)}
		if oracle.FleetNamespace(key) == wanted {
			r.colliding = key.Name
		}
	}
	return r.colliding
}

// mine returns the name of a Fleet Cluster that the tenant makes by hand.
func (r *run) mine(slot int) string {
	if slot == collided {
		return r.collidingName()
	}
	return fmt.Sprint("mine-", slot)
}

// createCollided makes the Cluster that the tenant attacks, ready for import.
func createCollided(r *run, _ Step) (bool, error) {
	step := Step{Cluster: collided, Namespace: lib, Class: noClass}
	if done, err := createCluster(r, step); !done || err != nil {
		return done, err
	}
	return initialize(r, step)
}

// tenantCollide plays the tenant, who creates a Cluster whose Fleet namespace already belongs to another.
func tenantCollide(r *run, step Step) (bool, error) {
	if !r.isUp(syncerProcess) {
		if err := r.quiet(); err != nil {
			return false, err
		}
	}
	step.Namespace, step.Class, step.Kind = theirs, noClass, "Colliding"
	if r.cluster(step) != nil || r.state.FleetClusters[r.collidedKey()] == nil {
		return false, nil
	}
	done, err := r.createCluster(r.tenant, step)
	if apierrors.IsForbidden(err) && r.isUp(webhookProcess) {
		refused := fixture.Cluster(r.namespace(theirs), r.collidingName(), "", "")
		refused.Annotations = map[string]string{pinKey: refused.Name}
		if !oracle.IsTaken(r.state, refused) {
			return true, &oracleError{"nobody else has its namespace in Fleet, and yet: " + err.Error()}
		}
		return true, nil
	}
	if !done || err != nil {
		return done, err
	}
	if _, err := initialize(r, Step{Cluster: step.Cluster}); err != nil {
		return true, err
	}
	if err := r.quiet(); err != nil {
		return true, err
	}
	return deleteCluster(r, step)
}
