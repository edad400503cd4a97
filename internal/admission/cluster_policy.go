package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// nameTaken returns why a new Cluster cannot have its name in Fleet, and what its author can do. It returns "" if
// the name is free.
func nameTaken(ctx context.Context, others inventory, in settings.Settings, namespace string, subject stamp.Subject) (string, error) {
	name := stamp.OnCreate(in, subject).Pin.ClusterName
	if name == "" {
		return "", nil // The Cluster is not selected, or has no name yet.
	}
	instead := "name this Cluster differently"
	if usual, _ := stamp.FleetName(in.Cluster, subject.Name); usual != name {
		instead += fmt.Sprintf(", or remove its annotation %s", stamp.ClusterNameAnnotation)
	}

	cluster := &object{}
	cluster.Namespace, cluster.Name = namespace, subject.Name
	fleetCluster, _, err := others.fleetCluster(ctx, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return "", err
	}
	if fleetCluster != nil && fleetCluster.DeletionTimestamp.IsZero() {
		var failed error
		relation, why := stamp.RelationOf(fleetCluster, cluster, func(other string, uid types.UID) bool {
			lives, err := others.hasCluster(ctx, types.NamespacedName{Namespace: namespace, Name: other}, uid)
			failed = errors.Join(failed, err)
			return lives
		})
		if failed != nil {
			return "", failed
		}
		if relation == stamp.Foreign && fleetCluster.Labels[stamp.RancherClusterLabel] == "" { // The Fleet Cluster is Rancher's.
			if strings.Contains(why, stamp.AdoptAnnotation) {
				why += "; or"
			} else {
				why += ";"
			}
			return why + " " + instead, nil
		}
	}
	pinned, err := others.pinnedTo(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	for _, other := range pinned {
		if other.Name != subject.Name && other.DeletionTimestamp.IsZero() {
			return fmt.Sprintf("Cluster %q of this namespace has the Fleet Cluster %q, which would be this Cluster's as well; %s", other.Name, name, instead), nil
		}
	}
	return namespaceTaken(ctx, others, types.NamespacedName{Namespace: namespace, Name: name}, subject.Name)
}

// withOwnPin is stamp.Subject.WithOwnPin over the Fleet Clusters that exist. While they are unknown, every pin is the
// Cluster's own: the syncer asks again before it imports the Cluster.
func withOwnPin(ctx context.Context, others inventory, namespace string, subject stamp.Subject) (own stamp.Subject, another string, err error) {
	own, another = subject.WithOwnPin(func(name string) bool {
		fleetCluster, known, failed := others.fleetCluster(ctx, types.NamespacedName{Namespace: namespace, Name: name})
		err = failed
		return !known || fleetCluster != nil && stamp.OriginOf(fleetCluster).Name == subject.Name
	})
	return own, another, err
}

// pinWarnings warns about the name that a new Cluster gets in Fleet, if that is not what the settings make of its own.
func pinWarnings(in settings.Settings, subject stamp.Subject, wanted stamp.Stamp, another string) (warnings []string) {
	name := wanted.Pin.ClusterName
	if another != "" {
		warnings = append(warnings, stamp.NotItsPin(another))
	}
	if usual, _ := stamp.FleetName(in.Cluster, subject.Name); name != "" && name != usual {
		warnings = append(warnings, fmt.Sprintf("this Cluster's Fleet Cluster is %q, as its annotation %s says, not %q, as spec.cluster.naming of the FleetAddonConfig gives; remove the annotation if this is not a Cluster that was restored or moved", name, stamp.ClusterNameAnnotation, usual))
	}
	if wanted.Shortened {
		warnings = append(warnings, fmt.Sprintf("the Cluster's name does not fit Fleet, which wants a DNS label of at most 63 characters: its Fleet Cluster will be named %q", name))
	}
	return warnings
}

// namespaceTaken returns why this Fleet Cluster cannot have the namespace that Fleet derives for it, and what its
// author can do; empty if no other Fleet Cluster has it.
func namespaceTaken(ctx context.Context, others inventory, fleetCluster types.NamespacedName, cluster string) (string, error) {
	if !stamp.CanShareFleetNamespace(fleetCluster.Namespace, fleetCluster.Name) {
		return "", nil
	}
	claims, annotations, err := others.claims(ctx, stamp.FleetNamespace(fleetCluster.Namespace, fleetCluster.Name))
	if err != nil || stamp.OtherHolder(fleetCluster, annotations, claims).Name == "" {
		return "", err
	}
	return stamp.SharedFleetNamespace(fleetCluster.Namespace, fleetCluster.Name, cluster), nil
}

// notImported returns why a Cluster is not imported, and what happens to its Fleet Cluster; empty if the Cluster is
// imported.
func notImported(in settings.Settings, subject stamp.Subject, pin stamp.Pin) string {
	selected, why := subject.IsSelected(in.Cluster)
	switch {
	case selected:
		return ""
	case !pin.IsComplete():
		return "this Cluster is not imported into Fleet: " + why
	case in.Cluster.Enabled && in.Cluster.OnDeselect == addonsv1.DeselectDelete:
		return fmt.Sprintf("this Cluster is removed from Fleet, and its Fleet Cluster %q is deleted (spec.cluster.onDeselect is Delete): %s", pin.ClusterName, why)
	default:
		return fmt.Sprintf("this Cluster's Fleet Cluster %q stays as it is from now on: %s", pin.ClusterName, why)
	}
}

// classMissing warns that the class of a Cluster does not exist (yet); empty if it does, or if that is unknown.
func classMissing(ctx context.Context, others inventory, class types.NamespacedName) (string, error) {
	if class.Name == "" {
		return "", nil
	}
	found, known, err := others.hasClass(ctx, class)
	if err != nil || found || !known {
		return "", err
	}
	return fmt.Sprintf("ClusterClass %q does not exist in namespace %q (yet): until it does, Cluster API creates no control plane and the Cluster is not imported into Fleet", class.Name, class.Namespace), nil
}

// unknownRegistration warns that a Cluster's annotation names an unknown way of registration; empty if it does not.
func unknownRegistration(in settings.Settings, subject stamp.Subject) string {
	value, found := subject.Annotations[stamp.RegistrationAnnotation]
	if !found || stamp.IsRegistration(value) {
		return ""
	}
	return fmt.Sprintf("annotation %s: %q is neither %q nor %q and has no effect; the FleetAddonConfig decides, and it says %q",
		stamp.RegistrationAnnotation, value, stamp.ByAgent, stamp.ByManager, stamp.RegistrationOf(in.Cluster, subject, nil))
}

// tooMuchToCopy warns that a selected Cluster has nearly too many labels and annotations, or too many; empty if it has not,
// or if it had as many before.
func tooMuchToCopy(in settings.Settings, before *clusterRequest, subject stamp.Subject) string {
	warning := desired.NearlyTooMuch(in, subject.Labels, subject.Annotations)
	selected, _ := subject.IsSelected(in.Cluster)
	if !selected || warning == desired.NearlyTooMuch(in, before.Metadata.Labels, before.Metadata.Annotations) {
		return ""
	}
	return warning
}

// holdsNothing warns that the annotation by which a Cluster now asks for holds has no effect; empty if it has.
func holdsNothing(before, cluster hold.Cluster) string {
	if cluster.Annotations[stamp.HoldAnnotation] == before.Annotations[stamp.HoldAnnotation] {
		return ""
	}
	bound, err := hold.Bound(cluster.Annotations)
	switch {
	case err != nil:
		return err.Error()
	case bound > 0 && cluster.Version == "":
		return fmt.Sprintf("annotation %s has no effect: the Cluster has no topology, and Cluster API holds only the upgrades of topologies", stamp.HoldAnnotation)
	default:
		return ""
	}
}
