package sync

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// afterStart passes everything but objects found at startup.
var afterStart = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
}

// settingsNews passes changes to the settings that the syncer acts on. The rest concerns the
// webhook, or Fleet itself.
var settingsNews = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*addonsv1.FleetAddonConfig).Spec, e.ObjectNew.(*addonsv1.FleetAddonConfig).Spec
		return !equality.Semantic.DeepEqual(before.Cluster, after.Cluster) || !equality.Semantic.DeepEqual(before.ClusterClass, after.ClusterClass)
	},
}

// existence passes objects that appear and disappear.
var existence = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() },
}

// existenceOrMaker passes objects that appear, disappear, or become Muster's or another's.
var existenceOrMaker = predicate.Or[client.Object](existence, predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return stamp.IsOurs(e.ObjectOld) != stamp.IsOurs(e.ObjectNew) },
})

// created passes objects that appear.
var created = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return true },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// unimported passes Clusters found at a start that are not said to be imported: they need not
// wait for the thousands that are.
var unimported = predicate.And(created, predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
	return e.IsInInitialList && !meta.IsStatusConditionTrue(e.Object.(*clusterv1.Cluster).Status.Conditions, ImportedCondition)
}})

// removed passes objects that disappear.
var removed = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// disowned passes Fleet Clusters that disappear, and those that start or stop being Muster's,
// or change their Cluster.
var disowned = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return stamp.IsOurs(e.ObjectOld) != stamp.IsOurs(e.ObjectNew) || stamp.OriginOf(e.ObjectOld) != stamp.OriginOf(e.ObjectNew)
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// watched passes objects that the watch filter lets through, and those that have just been
// relabelled out of it, so that they are no longer counted.
func watched(filter string) predicate.Predicate {
	passes := predicate.NewPredicateFuncs(func(object client.Object) bool { return isWatched(object, filter) })
	passes.UpdateFunc = func(e event.UpdateEvent) bool {
		return isWatched(e.ObjectOld, filter) || isWatched(e.ObjectNew, filter)
	}
	return passes
}

// labelsOrExistence passes objects that appear, disappear, or change labels or annotations.
var labelsOrExistence = predicate.Or[client.Object](existence, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{})

// useNews passes what can change which class a Fleet Cluster keeps a group and a mapping
// for: its labels, and whose it is.
var useNews = predicate.Or[client.Object](labelsOrExistence, disowned)

// specOrLabels passes what can change which class a Cluster uses, its deletion included.
var specOrLabels = predicate.Or[client.Object](labelsOrExistence, predicate.GenerationChangedPredicate{})

// fleetClusterNews passes what concerns a Fleet Cluster's CAPI Cluster: any change but to a
// status that is not mirrored. Of heartbeats it passes the first, and the first for long; and
// all of agents that call by themselves, because what their Cluster waits for may be any.
func fleetClusterNews(m mirror) predicate.Predicate {
	return predicate.Or[client.Object](specOrLabels, predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*fleetv1.Cluster), e.ObjectNew.(*fleetv1.Cluster)
			seen, now := before.Status.Agent.LastSeen, after.Status.Agent.LastSeen
			return m.bundlesReady(before) != m.bundlesReady(after) ||
				before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
				seen.IsZero() != now.IsZero() || after.Spec.KubeConfigSecret == "" && !seen.Equal(&now) ||
				!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences)
		},
	})
}
