package random

import (
	"cmp"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/rancher/player"
)

// downstream is a CAPI Cluster with all that Turtles and Rancher have made for it. The scene writes all of these
// objects but Muster's Fleet Cluster.
type downstream struct {
	*player.Downstream
	namespace, name string
	facts

	// since is when Muster was last forbidden to import the Cluster; zero while it may.
	since time.Time
	// mayImport means that Muster might have imported it since it was last at rest.
	mayImport bool
	// fleetKey is the key of Rancher's Fleet Cluster.
	fleetKey types.NamespacedName
	// wants are Rancher's states of its Fleet Cluster since Muster was last at rest; the last one may still be on its
	// way.
	wants []*fleetv1.Cluster
	// fleetSince is when Rancher's Fleet Cluster appeared.
	fleetSince time.Time
}

// facts are what decides about a Cluster.
type facts struct {
	// cluster is nil while there is none of this name.
	cluster *clusterv1.Cluster
	// mark is Turtles' label on the Cluster, namespaceMark the one on its Namespace.
	mark, namespaceMark string
	// hasFinalizer means that Turtles' finalizer is on the Cluster, isDone that Turtles will not import it again.
	hasFinalizer, isDone bool
	// isManaged means that there is a management Cluster. The next ones are about that.
	isManaged, isDeleting, isExternal, isReady bool
	// fleet is Rancher's Fleet Cluster, own is Muster's, as last seen; nil if there is none.
	fleet, own *fleetv1.Cluster
	// isAttached means that Muster's data is on Rancher's Fleet Cluster.
	isAttached bool
}

// way is what Muster may do with a Cluster that it has no Fleet Cluster for.
type way string

const (
	imports  way = "import it"
	attaches way = "attach it"
	waits    way = "wait"
)

// isMarked reports whether Turtles is to import the Cluster.
func (f facts) isMarked() bool { return cmp.Or(f.mark, f.namespaceMark) == "true" }

// isRanchers reports whether the management Cluster counts.
func (f facts) isRanchers() bool { return f.isManaged && (f.isMarked() || f.hasFinalizer) }

// way is what docs/rancher.md promises.
func (f facts) way() way {
	switch {
	case f.isRanchers() && f.isExternal && f.fleet == nil:
		return imports
	case f.isRanchers() && !f.isExternal && !f.isDeleting && f.fleet != nil:
		return attaches
	case f.isRanchers(), f.isMarked() && !f.isDone, f.isAttached:
		return waits
	default:
		return imports
	}
}

// reports are status and reason that FleetImported comes to.
func (f facts) reports() string {
	switch way := f.way(); {
	case f.own != nil && f.fleet != nil && f.isRanchers():
		return "True DoubleImport"
	case f.own != nil || way == imports:
		return "True Imported"
	case way == attaches:
		return "True Attached"
	default:
		return "False WaitingForRancher"
	}
}

func (f facts) String() string {
	uid := func(fleet *fleetv1.Cluster) string {
		if fleet == nil {
			return "none"
		}
		return client.ObjectKeyFromObject(fleet).String()
	}
	return fmt.Sprintf("Cluster %t, label %q, on the Namespace %q, finalizer %t, done %t, management Cluster %t (deleting %t, external %t, ready %t), Fleet Cluster of Rancher %s (attached %t), of Muster %s",
		f.cluster != nil, f.mark, f.namespaceMark, f.hasFinalizer, f.isDone, f.isManaged, f.isDeleting, f.isExternal, f.isReady, uid(f.fleet), f.isAttached, uid(f.own))
}

// review notes whether Muster may import the Cluster, after something has changed.
func (d *downstream) review() {
	switch {
	case d.way() == imports:
		d.since, d.mayImport = time.Time{}, true
	case d.since.IsZero():
		d.since = time.Now()
	}
}
