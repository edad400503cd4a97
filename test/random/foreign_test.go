package random

import (
	"encoding/json"
	"math/rand/v2"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/oracle"
)

// foreignOperations are other users' changes to Fleet's objects. Muster must be at rest before each, because Muster
// may be about to retain or delete an object.
var foreignOperations = []operation{
	{name: "ForeignLabel", weight: 4, draw: draws(drawTarget, drawKey(
		oracle.Others+"a", managedByLabel, nameLabel, namespaceLabel, nameLabel, namespaceLabel,
		"left."+domain, domain+"/left", domain+"/released", domain+"/imported-from", domain+"/imported-uid", domain+"/clusterclass-name",
		domain+"/targeting", domain+"/applied-hash", "env", "tier",
	), drawValue("", "theirs")), do: foreignLabel, racy: always},
	{name: "ForeignSpec", weight: 4, draw: func(rng *rand.Rand, step *Step) {
		drawTarget(rng, step)
		step.Value = oneOf(rng, foreignSpecs[step.Kind]...)
	}, do: foreignSpec, racy: always},
	{name: "ForeignDelete", weight: 4, draw: drawTarget, do: foreignDelete, racy: always},
	{name: "ForeignCreate", weight: 3, draw: drawTarget, do: foreignCreate, racy: always},
	{name: "Adopt", weight: 3, draw: drawTarget, do: foreignAdopt, racy: always},
	{name: "ForeignNamespace", weight: 1, draw: drawNamespace, do: foreignNamespace, racy: always},
}

const (
	fleetClusterKind = "Cluster"
	classGroupKind   = "ClassGroup"
	crossGroupKind   = "CrossNamespaceGroup"
	mappingKind      = "Mapping"
)

func drawTarget(rng *rand.Rand, step *Step) {
	draws(drawKind(fleetClusterKind, fleetClusterKind, classGroupKind, crossGroupKind, mappingKind), drawSlot, drawOneClass, drawNamespace)(rng, step)
}

// target returns the Fleet object of a step, as last seen, or an empty one with its name if there is none.
func (r *run) target(step Step) client.Object {
	class := r.classKey(step)
	key := oracle.Key{Namespace: r.namespace(step.Namespace)}
	switch step.Kind {
	case fleetClusterKind:
		key.Name = slotName(step.Cluster)
		if cluster := r.cluster(step); cluster != nil && cluster.Annotations[pinKey] != "" {
			key = oracle.Key{Namespace: cluster.Namespace, Name: cluster.Annotations[pinKey]}
		}
		return pick(r.state.FleetClusters, key, &fleetv1.Cluster{})
	case classGroupKind:
		return pick(r.state.Groups, class, &fleetv1.ClusterGroup{})
	case crossGroupKind:
		key.Name = class.Name + "." + class.Namespace
		return pick(r.state.Groups, key, &fleetv1.ClusterGroup{})
	default:
		return pick(r.state.Mappings, oracle.Key{Namespace: class.Namespace, Name: key.Namespace}, &fleetv1.BundleNamespaceMapping{})
	}
}

func pick[T client.Object](from map[oracle.Key]T, key oracle.Key, empty T) client.Object {
	if object, ok := from[key]; ok {
		return object.DeepCopyObject().(client.Object)
	}
	empty.SetNamespace(key.Namespace)
	empty.SetName(key.Name)
	return empty
}

func foreignLabel(r *run, step Step) (bool, error) {
	object := r.target(step)
	// Keys of Muster are Muster's on every object, wanted or not.
	if isFree := step.Key == oracle.Others+"a" || strings.Contains(step.Key, domain); !isFree {
		if _, has := object.GetLabels()[step.Key]; !has {
			return false, nil
		}
		// While Muster restores nothing, a key that a user sets becomes theirs; a key that they remove does not.
		if !r.isRetained(step) {
			step.Value = ""
		}
	}
	field := "labels"
	if strings.HasPrefix(step.Key, domain+"/") {
		field = "annotations"
	}
	return r.change(admin, object, metadata(field, step.Key, step.Value))
}

// isRetained reports whether Muster restores a Fleet Cluster at once, because its Cluster is imported.
func (r *run) isRetained(step Step) bool {
	cluster := r.cluster(step)
	if step.Kind != fleetClusterKind || cluster == nil || r.createsOnly() {
		return false
	}
	return reason(cluster, "FleetImported") == "Imported"
}

// foreignSpecs are merge patches.
var foreignSpecs = map[string][]string{
	fleetClusterKind: {
		`{"spec":{"agentNamespace":"elsewhere"}}`, `{"spec":{"kubeConfigSecret":null}}`, `{"spec":{"hostNetwork":null}}`,
		`{"spec":{"agentTolerations":null}}`, `{"spec":{"clientID":"fleet"}}`, `{"spec":{"templateValues":null}}`,
		`{"spec":{"templateValues":{"Cluster":{"metadata":{"name":"theirs"}}}}}`, `{"spec":{"templateValues":{"Theirs":"x"}}}`,
		`{"spec":{"agentEnvVars":[{"name":"THEIRS","value":"x"}]}}`,
	},
	classGroupKind: {`{"spec":{"selector":{"matchLabels":{"theirs":"x"}}}}`, `{"spec":{"selector":null}}`},
	crossGroupKind: {`{"spec":{"selector":{"matchLabels":{"theirs":"x"}}}}`, `{"spec":{"selector":null}}`},
	mappingKind: {
		`{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":null}}}`, `{"bundleSelector":null}`,
		`{"bundleSelector":{"matchLabels":{"theirs":"x"}}}`,
	},
}

func foreignSpec(r *run, step Step) (bool, error) {
	object := r.target(step)
	// A clientID that an agent registered with stays as it is: no record tells which value to restore.
	if fleet, ok := object.(*fleetv1.Cluster); ok && fleet.Spec.KubeConfigSecret == "" && strings.Contains(step.Value, "clientID") {
		return false, nil
	}
	return r.change(admin, object, json.RawMessage(step.Value))
}

func foreignDelete(r *run, step Step) (bool, error) {
	object := r.target(step)
	if step.Kind == fleetClusterKind && r.retainsIn(object.GetNamespace()) {
		return false, nil // Whether helm sees the deletion, and then gives up what it retains, is chance.
	}
	return r.remove(admin, object)
}

// foreignCreate takes a name before Muster does.
func foreignCreate(r *run, step Step) (bool, error) {
	object := r.target(step)
	if isThere(object) || r.state.Namespaces[object.GetNamespace()] == nil {
		return false, nil
	}
	object.SetLabels(map[string]string{oracle.Others + "made": "true"})
	return true, r.create(admin, object)
}

func foreignAdopt(r *run, step Step) (bool, error) {
	return r.change(admin, r.target(step), metadata("annotations", domain+"/adopt", "true"))
}

func foreignNamespace(r *run, step Step) (bool, error) {
	const workspace = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"
	namespace := r.state.Namespaces[r.namespace(step.Namespace)].DeepCopy()
	if namespace.Annotations[workspace] == "" {
		return false, nil
	}
	return r.change(admin, namespace, metadata("annotations", workspace, ""))
}
