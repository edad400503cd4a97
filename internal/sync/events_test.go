package sync

import (
	"maps"
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// Each watch passes only updates of what its reconciler reads.
func TestChanges(t *testing.T) {
	beat := metav1.Now()
	fleetCluster := func(changes ...func(*fleetv1.Cluster)) *fleetv1.Cluster {
		object := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{UID: "one", Generation: 1, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}}}
		object.Spec.KubeConfigSecret, object.Status.Agent.LastSeen = "kubeconfig", metav1.Unix(1, 0)
		for _, change := range changes {
			change(object)
		}
		return object
	}
	heard := func(c *fleetv1.Cluster) { c.Status.Agent.LastSeen = beat }
	unheard := func(c *fleetv1.Cluster) { c.Status.Agent.LastSeen = metav1.Time{} }
	byAgent := func(c *fleetv1.Cluster) { c.Spec.KubeConfigSecret = "" }
	labelled := func(c *fleetv1.Cluster) { c.Labels["env"] = "prod" }
	annotated := func(c *fleetv1.Cluster) { c.Annotations = map[string]string{"env": "prod"} }
	retargeted := func(c *fleetv1.Cluster) { c.Annotations = map[string]string{desired.RetargetAnnotation: "1"} }
	foreign := func(c *fleetv1.Cluster) { c.Labels = nil }
	owned := func(c *fleetv1.Cluster) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "one", UID: "uid"}}
	}
	anew := func(c *fleetv1.Cluster) { c.UID = "two" }
	respecified := func(c *fleetv1.Cluster) { c.Generation = 2 }
	placed := func(c *fleetv1.Cluster) { c.Status.Namespace = "cluster-one" }
	going := func(c *fleetv1.Cluster) { c.DeletionTimestamp = &beat }
	touched := func(c *fleetv1.Cluster) { c.ResourceVersion = "2" }
	fleetNews := fleetClusterNews(bundlesReady{staleAfter: 100 * 365 * 24 * time.Hour, now: time.Now})
	for name, test := range map[string]struct {
		passes        predicate.Predicate
		before, after *fleetv1.Cluster
		want          bool
	}{
		"a Fleet Cluster is touched":                  {fleetNews, fleetCluster(), fleetCluster(touched), false},
		"it is another of its name":                   {fleetNews, fleetCluster(), fleetCluster(anew), true},
		"its labels change":                           {fleetNews, fleetCluster(), fleetCluster(labelled), true},
		"its spec changes":                            {fleetNews, fleetCluster(), fleetCluster(respecified), true},
		"its owner changes":                           {fleetNews, fleetCluster(), fleetCluster(owned), true},
		"it begins to go":                             {fleetNews, fleetCluster(), fleetCluster(going), true},
		"it gets its namespace":                       {fleetNews, fleetCluster(), fleetCluster(placed), true},
		"its agent is heard for the first time":       {fleetNews, fleetCluster(unheard), fleetCluster(), true},
		"its agent is heard again":                    {fleetNews, fleetCluster(), fleetCluster(heard), false},
		"its agent, which registers itself, is heard": {fleetNews, fleetCluster(byAgent), fleetCluster(byAgent, heard), true},
		"its use: the spec changes":                   {useNews, fleetCluster(), fleetCluster(respecified), false},
		"its use: the labels change":                  {useNews, fleetCluster(), fleetCluster(labelled), true},
		"its use: the owner changes":                  {useNews, fleetCluster(), fleetCluster(owned), true},
		"a Cluster: the spec changes":                 {specOrLabels, fleetCluster(), fleetCluster(respecified), true},
		"a Cluster: the status changes":               {specOrLabels, fleetCluster(), fleetCluster(placed), false},
		"a class: the annotations change":             {labelsOrExistence, fleetCluster(), fleetCluster(annotated), true},
		"a class: the spec changes":                   {labelsOrExistence, fleetCluster(), fleetCluster(respecified), false},
		"a group: the labels change":                  {existenceOrMaker, fleetCluster(), fleetCluster(labelled), false},
		"a group: it is no longer Muster's":           {existenceOrMaker, fleetCluster(), fleetCluster(foreign), true},
		"a mapping begins to map":                     {mappingNews, fleetCluster(), fleetCluster(retargeted), true},
		"a mapping: other annotations change":         {mappingNews, fleetCluster(), fleetCluster(annotated), false},
		"a mapping is no longer Muster's":             {mappingNews, fleetCluster(), fleetCluster(foreign), true},
	} {
		if got := test.passes.Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
		if !test.passes.Create(event.CreateEvent{Object: test.after}) || !test.passes.Delete(event.DeleteEvent{Object: test.after}) {
			t.Errorf("%s: it does not pass an object that appears or disappears", name)
		}
	}
}

// The syncer's own writes of the status do not wake it, as the counts change all the time; those of the installer do.
func TestConfigNews(t *testing.T) {
	its := func(change func(*addonsv1.FleetAddonConfig)) *addonsv1.FleetAddonConfig {
		config := &addonsv1.FleetAddonConfig{}
		change(config)
		return config
	}
	has := func(kind string) func(*addonsv1.FleetAddonConfig) {
		return func(c *addonsv1.FleetAddonConfig) { c.Status.Conditions = []metav1.Condition{{Type: kind}} }
	}
	for name, test := range map[string]struct {
		change func(*addonsv1.FleetAddonConfig)
		want   bool
	}{
		"counts":                      {change: func(c *addonsv1.FleetAddonConfig) { c.Status.Clusters = &addonsv1.ClusterCounts{Imported: 1} }},
		"a condition":                 {change: has(addonsv1.ReadyCondition)},
		"a condition of another":      {change: has(addonsv1.FleetInstalledCondition), want: true},
		"the version of another":      {change: func(c *addonsv1.FleetAddonConfig) { c.Status.InstalledVersion = "0.16.0" }, want: true},
		"the spec":                    {change: func(c *addonsv1.FleetAddonConfig) { c.Generation = 2 }, want: true},
		"the label of a watch filter": {change: func(c *addonsv1.FleetAddonConfig) { c.Labels = map[string]string{"a": "b"} }, want: true},
	} {
		if got := configNews.Update(event.UpdateEvent{ObjectOld: &addonsv1.FleetAddonConfig{}, ObjectNew: its(test.change)}); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A Cluster whose Namespace the cache does not show yet is not reconciled at intervals: the Namespace's event brings it back.
func TestNamespaceThatIsNotCachedYet(t *testing.T) {
	s := newScene(t, "", "", nil)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.key.Namespace}}
	if err := s.direct.Delete(t.Context(), namespace.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key}); err != nil || result != (ctrl.Result{}) {
		t.Errorf("got %+v, %v", result, err)
	}
	appears := event.CreateEvent{Object: namespace}
	if !afterStart.Create(appears) || !(predicate.LabelChangedPredicate{}).Create(appears) {
		t.Error("the event of the Namespace is not passed")
	}
	if got := (&enqueuer{s.direct}).clustersInNamespace(t.Context(), namespace); !slices.Equal(got, requests(s.key)) {
		t.Errorf("got %v", got)
	}
}

// When a Namespace of Fleet's comes or goes, these Clusters are reconciled, without a look at intervals: its own, one that is
// pinned to its name, and, behind all others, those that wait because Fleet would give them the same Namespace. There may be
// thousands of these, of another tenant, and the import of its own Cluster is complete only now.
func TestNamespaceInFleetGoes(t *testing.T) {
	shared := stamp.FleetNamespace("team", "prod")
	pinned := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pinned", Annotations: map[string]string{stamp.ClusterNameAnnotation: "prod"}}}
	conflicted := func(name, reason, message string) *clusterv1.Cluster {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: name}}
		cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
		return cluster
	}
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	if err := addIndexes(t.Context(), indexes{builder}); err != nil {
		t.Fatal(err)
	}
	message := stamp.SharedFleetNamespace("team", "prod", "waits")
	e := &enqueuer{builder.WithObjects(pinned, conflicted("waits", addonsv1.NameConflictReason, message), conflicted("waits-too", addonsv1.NameConflictReason, message), conflicted("in-fleet", addonsv1.ImportedReason, message),
		conflicted("waits-for-another", addonsv1.NameConflictReason, stamp.SharedFleetNamespace("team", "test", "other")),
		conflicted("foreign", addonsv1.NameConflictReason, "it is that of another")).Build()}
	namespace := namespaceMetadata()
	namespace.Name, namespace.Annotations = shared, map[string]string{fleetv1.ClusterNamespaceAnnotation: "team", fleetv1.ClusterAnnotation: "prod"}
	own := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", Annotations: map[string]string{stamp.ImportedFromAnnotation: "own"}}}
	own.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "own"}}
	if err := e.Reader.(client.Client).Create(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	for _, each := range []handler.EventHandler{enqueue(e.clusterOfFleetNamespace), atLowPriority(e.clustersInConflict)} {
		each.Create(t.Context(), event.CreateEvent{Object: namespace}, queue)
	}
	got := map[string]int{}
	for range 4 {
		its, priority, _ := queue.GetWithPriority()
		got[its.Name] = priority
	}
	if want := map[string]int{"own": 0, "pinned": 0, "waits": lowPriority, "waits-too": lowPriority}; !maps.Equal(got, want) {
		t.Errorf("the priorities are %v, want %v", got, want)
	}
}
