package random

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	applySetPart = "applyset.kubernetes.io/part-of"
	argoInstance = "app.kubernetes.io/instance"
	syncOptions  = "argocd.argoproj.io/sync-options"
)

// pruningOperations are the work of tools that prune. They mark Clusters and classes, and none would delete an object of
// Muster's.
var pruningOperations = []operation{
	{name: "MarkCluster", weight: 3, draw: draws(drawSlot, drawKey(applySetPart, argoInstance, argoInstance), drawValue("", "x", "x")), do: labelCluster},
	{name: "MarkClass", weight: 3, draw: draws(drawOneClass, drawKey(applySetPart, argoInstance), drawValue("", "x", "x")), do: labelClass},
	{name: "OptIn", weight: 2, draw: draws(drawSlot, drawKey(syncOptions, "argocd.argoproj.io/tracking-id"), drawValue("", "Prune=true")), do: annotateCluster},
	{name: "Prune", weight: 3, do: prune, racy: always},
}

// prune plays kubectl with an ApplySet, and Argo CD, for which every object is extraneous.
func prune(r *run, _ Step) (bool, error) {
	var all []client.Object
	for _, object := range r.state.FleetClusters {
		all = append(all, object)
	}
	for _, object := range r.state.Groups {
		all = append(all, object)
	}
	for _, object := range r.state.Mappings {
		all = append(all, object)
	}
	for _, object := range all {
		labels := object.GetLabels()
		byArgo := labels[argoInstance] != "" && len(object.GetOwnerReferences()) == 0 &&
			!slices.Contains(strings.Split(object.GetAnnotations()[syncOptions], ","), "Prune=false")
		if byArgo || labels[applySetPart] != "" {
			return true, &oracleError{fmt.Sprintf("a tool would delete %T %s", object, client.ObjectKeyFromObject(object))}
		}
	}
	return true, nil
}
