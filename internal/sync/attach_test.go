package sync

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
)

// theirs is Rancher's Fleet Cluster of the scene.
var theirs = types.NamespacedName{Namespace: "workspace", Name: "c-abcde"}

func ranchers(kind schema.GroupVersionKind, namespace, name string, labels map[string]string, fields map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: fields}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetUID(types.UID("uid-of-" + name))
	object.SetLabels(labels)
	return object
}

func rancherCRDOf(name string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

// newRancherScene returns a scene whose Cluster Turtles has imported into Rancher.
func newRancherScene(t *testing.T, more ...client.Object) *scene {
	t.Helper()
	s := newScene(t, "standard", "classes", func(cluster *clusterv1.Cluster) { cluster.Finalizers = []string{"capicluster.turtles.cattle.io"} })
	s.scopes.rancher = s.rancherOf(t, &informertest.FakeInformers{})
	s.targets.rancher = s.scopes.rancher
	for _, object := range append(more,
		rancherCRDOf(rancher.ManagementCRD), rancherCRDOf(rancher.ProvisioningCRD),
		ranchers(rancher.ManagementKind, "", theirs.Name, map[string]string{"cluster-api.cattle.io/capi-cluster-owner": s.key.Name, "cluster-api.cattle.io/capi-cluster-owner-ns": s.key.Namespace}, map[string]any{
			"spec":   map[string]any{"fleetWorkspaceName": theirs.Namespace},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
		}),
		ranchers(rancher.ProvisioningKind, theirs.Namespace, theirs.Name, nil, map[string]any{"status": map[string]any{"clusterName": theirs.Name}}),
		&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: theirs.Namespace, Name: theirs.Name, UID: "fleet", Labels: map[string]string{stamp.RancherClusterLabel: theirs.Name}}},
	) {
		if err := s.direct.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	s.listRancher(t)
	return s
}

// rancherOf returns a reader of Rancher's objects, whose lists end as those of the informers do.
func (s *scene) rancherOf(t *testing.T, informers *informertest.FakeInformers) *rancher.Client {
	t.Helper()
	informers.Scheme = s.direct.Scheme()
	its := rancher.NewClient(t.Context(), s.applier, nil, func(toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
		its := *informers // Each kind has a cache of its own.
		return listed{&its, s.server}, nil
	})
	s.woken = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	if err := its.Source().Start(t.Context(), s.woken); err != nil {
		t.Fatal(err)
	}
	return its
}

// listRancher waits until Rancher's objects are listed.
func (s *scene) listRancher(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if its := s.scopes.rancher.Relation(t.Context(), settings.Default().Cluster, &clusterv1.Cluster{}, nil); its.Unknown == nil {
			return
		} else if time.Now().After(end) {
			t.Fatal(its.Unknown)
		}
	}
}

// imported returns the condition of the scene's Cluster, as "<status> <reason>", with its message, and the Cluster.
func (s *scene) imported(t *testing.T) (state, message string, cluster *clusterv1.Cluster) {
	t.Helper()
	cluster = &clusterv1.Cluster{}
	if err := s.direct.Get(t.Context(), s.key, cluster); err != nil {
		t.Fatal(err)
	}
	condition := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	if condition == nil {
		return "", "", cluster
	}
	return fmt.Sprintf("%s %s", condition.Status, condition.Reason), condition.Message, cluster
}

// fleetOf returns Rancher's Fleet Cluster.
func (s *scene) fleetOf(t *testing.T) *fleetv1.Cluster {
	t.Helper()
	fleet := &fleetv1.Cluster{}
	if err := s.direct.Get(t.Context(), theirs, fleet); err != nil {
		t.Fatal(err)
	}
	return fleet
}

func (s *scene) delete(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := s.direct.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// Events of an attached Cluster cause no write once it has come to rest. What others change is put back, with whole template values.
func TestAttachedIsWrittenOnce(t *testing.T) {
	s := newRancherScene(t)
	_, writes := s.reconcile(t)
	if state, message, cluster := s.imported(t); state != "True Attached" || cluster.Annotations[rancher.NoteAnnotation] != theirs.Name {
		t.Fatalf("%s: %s; noted %q; written %q", state, message, cluster.Annotations[rancher.NoteAnnotation], writes)
	}
	if _, writes := s.reconcile(t); len(writes) > 0 {
		t.Errorf("written again: %q", writes)
	}
	fleet := s.fleetOf(t)
	values := fleet.Spec.TemplateValues.DeepCopy()
	if its, _ := values.Data[desired.ClusterValue].(map[string]any); its["kind"] == nil {
		t.Errorf("the template values are not whole: %v", values.Data)
	}
	delete(fleet.Labels, stamp.OriginNamespaceLabel)
	if err := s.direct.Update(t.Context(), fleet); err != nil {
		t.Fatal(err)
	}
	s.reconcile(t)
	if fleet = s.fleetOf(t); fleet.Labels[stamp.OriginNamespaceLabel] != s.key.Namespace || !reflect.DeepEqual(fleet.Spec.TemplateValues, values) {
		t.Errorf("the label is not put back, or the values have changed: %+v", fleet)
	}
}

func managementObject() client.Object {
	return ranchers(rancher.ManagementKind, "", theirs.Name, nil, map[string]any{})
}
func provisioningObject() client.Object {
	return ranchers(rancher.ProvisioningKind, theirs.Namespace, theirs.Name, nil, map[string]any{})
}

// own reports whether the Cluster has a Fleet Cluster of Muster's.
func (s *scene) own(t *testing.T) bool {
	t.Helper()
	return s.direct.Get(t.Context(), s.key, &fleetv1.Cluster{}) == nil
}

// Rancher lets go of an attached Cluster, and its agent may still run. Whatever the condition says meanwhile, and
// after a restart, the Cluster is not imported until its owner says so, or nothing of Rancher's is left.
func TestRemembersRancher(t *testing.T) {
	for _, reason := range []string{addonsv1.PausedReason, addonsv1.FailedReason, addonsv1.DeselectedReason, addonsv1.NameConflictReason, addonsv1.TemplateValuesUnresolvedReason, ""} {
		t.Run(reason, func(t *testing.T) {
			s := newRancherScene(t)
			s.reconcile(t)
			s.change(t, &clusterv1.Cluster{}, func(object client.Object) {
				cluster := object.(*clusterv1.Cluster)
				if cluster.Status.Conditions = nil; reason != "" {
					cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.Now()}}
				}
			})
			s.delete(t, managementObject(), provisioningObject())
			s.scopes.rancher = s.rancherOf(t, &informertest.FakeInformers{})
			s.listRancher(t)
			s.reconcile(t)
			state, message, cluster := s.imported(t)
			if state != "False WaitingForRancher" || !strings.Contains(message, rancher.NoteAnnotation) || s.own(t) {
				t.Fatalf("%s: %s", state, message)
			}
			if reason == addonsv1.PausedReason { // Its owner says that the agent is gone.
				delete(cluster.Annotations, rancher.NoteAnnotation)
				if err := s.direct.Update(t.Context(), cluster); err != nil {
					t.Fatal(err)
				}
			} else {
				s.delete(t, s.fleetOf(t))
			}
			s.reconcile(t)
			s.reconcile(t) // Fleet has made its namespace.
			if state, message, cluster := s.imported(t); state != "True Imported" || cluster.Annotations[rancher.NoteAnnotation] != "" || !s.own(t) {
				t.Errorf("%s: %s; %v", state, message, cluster.Annotations)
			}
		})
	}
}

// lateReader is an API server that knows a Fleet Cluster of Rancher's which the cache does not show.
type lateReader struct{ client.Reader }

func (lateReader) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	if found, ok := list.(*metav1.PartialObjectMetadataList); ok && strings.Contains(fmt.Sprint(options), theirs.Name) {
		found.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Namespace: theirs.Namespace, Name: theirs.Name}}}
	}
	return nil
}

// The cache does not show the Fleet Cluster that Rancher has left.
func TestRemembersRancherWithAStaleCache(t *testing.T) {
	s := newRancherScene(t)
	s.reconcile(t)
	s.delete(t, managementObject(), provisioningObject(), s.fleetOf(t))
	live := s.applier.Live
	s.applier.Live = lateReader{live}
	s.reconcile(t)
	if state, message, cluster := s.imported(t); state != "False WaitingForRancher" || cluster.Annotations[rancher.NoteAnnotation] == "" || s.own(t) {
		t.Fatalf("%s: %s", state, message)
	}
	s.applier.Live = live
	s.reconcile(t)
	s.reconcile(t) // Fleet has made its namespace.
	if state, message, _ := s.imported(t); state != "True Imported" {
		t.Errorf("%s: %s", state, message)
	}
}

// refusingReader is an API server that refuses all lists.
type refusingReader struct{ client.Reader }

func (refusingReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "clusters"}, "", errors.New("refused"))
}

// The API server does not say whether Rancher has left a Fleet Cluster. A Cluster in Fleet stays imported and ready, which
// availability gates may read.
func TestStaysImportedWhenRancherIsUnknown(t *testing.T) {
	s := newRancherScene(t)
	s.delete(t, managementObject(), provisioningObject(), s.fleetOf(t))
	s.reconcile(t)
	s.reconcile(t) // Fleet has made its namespace.
	_, _, before := s.imported(t)
	s.edit(t, func(cluster *clusterv1.Cluster) {
		metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, rancher.NoteAnnotation, theirs.Name)
	})
	s.applier.Live = refusingReader{s.applier.Live}
	if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key}); !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	state, message, after := s.imported(t)
	if state != "True Failed" {
		t.Errorf("%s: %s", state, message)
	}
	ready := func(cluster *clusterv1.Cluster) *metav1.Condition {
		return meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetBundlesReadyCondition)
	}
	if diff := cmp.Diff(ready(before), ready(after)); diff != "" {
		t.Errorf("FleetBundlesReady has changed: %s", diff)
	}
}

// Rancher's CRD is being deleted: Rancher's objects, and its agents, are still there.
func TestCRDBeingDeleted(t *testing.T) {
	s := newRancherScene(t)
	crd := rancherCRDOf(rancher.ManagementCRD)
	if err := s.direct.Patch(t.Context(), crd, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["customresourcecleanup.apiextensions.k8s.io"]}}`))); err != nil {
		t.Fatal(err)
	}
	s.delete(t, crd)
	s.reconcile(t)
	if state, message, _ := s.imported(t); state != "True Attached" || s.own(t) {
		t.Errorf("%s: %s", state, message)
	}
}

// The CRD of provisioning Clusters is missing, and the management Clusters are not listed yet.
func TestUnlistedWithoutProvisioning(t *testing.T) {
	s := newRancherScene(t)
	s.delete(t, rancherCRDOf(rancher.ProvisioningCRD))
	s.scopes.rancher = s.rancherOf(t, &informertest.FakeInformers{InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
		rancher.ManagementKind: controllertest.NewFakeInformer(),
	}})
	s.reconcile(t)
	if state, message, _ := s.imported(t); state != "False WaitingForControlPlane" || s.own(t) {
		t.Errorf("it is decided without Rancher's objects: %s: %s", state, message)
	}
}

// While Rancher's objects are not listed, Muster updates its own Fleet Cluster, and the conditions of the Cluster stay: Rancher
// may have a Fleet Cluster, too.
func TestUnlistedInFleet(t *testing.T) {
	for name, isRanchers := range map[string]bool{"its own": false, "perhaps Rancher's": true} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, "standard", "", nil)
			s.reconcile(t)
			s.reconcile(t) // Fleet has made its namespace.
			s.change(t, &clusterv1.Cluster{}, func(cluster client.Object) {
				meta.FindStatusCondition(cluster.(*clusterv1.Cluster).Status.Conditions, addonsv1.FleetImportedCondition).Reason = addonsv1.DoubleImportReason
			})
			if isRanchers {
				s.change(t, &fleetv1.Cluster{}, func(fleet client.Object) {
					fleet.SetLabels(map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, stamp.RancherClusterLabel: "c-abcde"})
				})
			}
			s.edit(t, func(cluster *clusterv1.Cluster) {
				cluster.Labels["env"] = "prod"
				metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, rancher.NoteAnnotation, "not a name/at all")
			})
			if err := s.direct.Create(t.Context(), rancherCRDOf(rancher.ManagementCRD)); err != nil {
				t.Fatal(err)
			}
			s.scopes.rancher = s.rancherOf(t, &informertest.FakeInformers{InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
				rancher.ManagementKind: controllertest.NewFakeInformer(),
			}})
			_, _, before := s.imported(t)
			s.reconcile(t)
			state, _, after := s.imported(t)
			if diff := cmp.Diff(before, after); diff != "" || state != "True DoubleImport" {
				t.Errorf("the Cluster is written, %s (-before +after):\n%s", state, diff)
			}
			in, err := s.settings.Current(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if its := s.scopes.rancher.Relation(t.Context(), in.Cluster, after, nil); !errors.Is(its.Unknown, rancher.ErrUnlisted) {
				t.Fatal(its.Unknown)
			}
			// If that lasts, a scope would say that Fleet has no namespace for it.
			if its, err := s.scopes.newScope(t.Context(), in, after); (its == nil) != isRanchers || (err != nil) != isRanchers {
				t.Errorf("%v, %v", its, err)
			}
			var fleet fleetv1.Cluster
			if err := s.direct.Get(t.Context(), s.key, &fleet); err != nil || (fleet.Labels["env"] == "prod") == isRanchers {
				t.Errorf("%v: its labels are %v", err, fleet.Labels)
			}
		})
	}
}

// While Rancher's objects are listed, a Cluster waits for the end of the list, which wakes it.
func TestTheEndOfAListWakesAll(t *testing.T) {
	s := newRancherScene(t)
	management := controllertest.NewFakeInformer()
	s.scopes.rancher = s.rancherOf(t, &informertest.FakeInformers{InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
		rancher.ManagementKind: management, rancher.ProvisioningKind: controllertest.NewFakeInformer(controllertest.Synced),
	}})
	time.AfterFunc(10*time.Second, s.woken.ShutDown)
	if result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key}); err != nil || result.RequeueAfter != kinds.Patience {
		t.Errorf("again after %v (%v)", result.RequeueAfter, err)
	}
	for _, end := range []func(){func() {}, management.Synced} { // The other kind has been listed already.
		end()
		its, isShutDown := s.woken.Get()
		if s.woken.Done(its); isShutDown || its.NamespacedName != s.key {
			t.Fatalf("woken: %v", its)
		}
		select { // The namespaces are reconciled, too.
		case <-s.scopes.rancher.Listed:
		case <-time.After(10 * time.Second):
			t.Error("no event for the namespaces")
		}
	}
	s.listRancher(t)
}

// attachedBy makes a Fleet Cluster of Rancher's that is attached to the scene's Cluster.
func (s *scene) attachedBy(t *testing.T, name, manager string, labels map[string]string, cluster, uid string) *fleetv1.Cluster {
	t.Helper()
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: theirs.Namespace, Name: name, Labels: labels}}
	if err := s.direct.Create(t.Context(), fleet); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	if err := s.direct.Patch(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": map[string]any{
			"namespace": theirs.Namespace, "name": name, "annotations": map[string]any{stamp.AttachedAnnotation: cluster, stamp.AttachedUIDAnnotation: uid},
		},
	}}, client.Apply, client.FieldOwner(manager), client.ForceOwnership); err != nil { //nolint:staticcheck // as another client
		t.Fatal(err)
	}
	return fleet
}

// An attachment to a Fleet Cluster of Rancher's that is not the Cluster's any more is taken off, also while the
// Cluster is attached to another one, and if an earlier attempt failed.
func TestStraysAreDetached(t *testing.T) {
	s := newRancherScene(t)
	s.reconcile(t)
	stray := s.attachedBy(t, "c-older", rancher.AttachManager, map[string]string{stamp.RancherClusterLabel: "c-older"}, s.key.String(), "prod")
	s.reconcile(t)
	if err := s.direct.Get(t.Context(), client.ObjectKeyFromObject(stray), stray); err != nil || rancher.IsAttached(stray) {
		t.Errorf("%v, %v", err, stray.Annotations)
	}
	if state, message, _ := s.imported(t); state != "True Attached" || !rancher.IsAttached(s.fleetOf(t)) {
		t.Errorf("%s: %s", state, message)
	}
}

// A Fleet Cluster that says that it is attached keeps no Cluster from being imported, whether or not Muster can
// take its fields off again.
func TestForgedAttachment(t *testing.T) {
	for name, labels := range map[string]map[string]string{"without Rancher's label": nil, "with it": {stamp.RancherClusterLabel: "c-evil1"}} {
		t.Run(name, func(t *testing.T) {
			s := newRancherScene(t)
			s.delete(t, managementObject(), provisioningObject(), s.fleetOf(t))
			s.attachedBy(t, "forged", rancher.AttachManager, labels, s.key.String(), "prod")
			s.refuse = func(object client.Object) error {
				if object.GetName() == "forged" {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "clusters"}, "forged", errors.New("a policy"))
				}
				return nil
			}
			s.reconcile(t)
			s.reconcile(t) // Fleet has made its namespace.
			state, message, _ := s.imported(t)
			if state != "True Imported" || !s.own(t) {
				t.Errorf("%s: %s", state, message)
			}
			if said := strings.Contains(message, "a policy"); said != (labels != nil) {
				t.Errorf("says %q", message)
			}
		})
	}
}

// Another writer owns the annotations that say whose the attachment is: nothing is attached, and nothing loops.
func TestAttachedBySomeoneElse(t *testing.T) {
	s := newRancherScene(t)
	s.attachedBy(t, theirs.Name, "somebody", nil, "other/one", "other")
	for range 3 {
		_, writes := s.reconcile(t)
		if len(writes) > 3 {
			t.Errorf("written %q", writes)
		}
	}
	state, message, _ := s.imported(t)
	if state != "True NameConflict" || !strings.Contains(message, "other/one") || !strings.Contains(message, stamp.AttachedAnnotation) {
		t.Errorf("%s: %s", state, message)
	}
	if fleet := s.fleetOf(t); rancher.IsAttached(fleet) || fleet.Labels[stamp.OriginNamespaceLabel] != "" {
		t.Errorf("it is attached: %v", fleet.Labels)
	}
}

// With patchResource off, attached fields stay unchanged, but the attachment of an earlier Cluster of this name is
// replaced.
func TestAttachmentOfAnEarlierCluster(t *testing.T) {
	s := newRancherScene(t)
	s.attachedBy(t, theirs.Name, rancher.AttachManager, nil, s.key.String(), "earlier")
	config := fixture.Config()
	if err := s.direct.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
		t.Fatal(err)
	}
	config.Spec.Cluster.PatchResource = ptr.To(false)
	if err := s.direct.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.reconcile(t)
	if fleet := s.fleetOf(t); fleet.Annotations[stamp.AttachedUIDAnnotation] != "prod" || fleet.Labels[stamp.OriginNamespaceLabel] != s.key.Namespace {
		t.Errorf("attached to %v", fleet.Annotations)
	}
}

// A user in the workspace makes a group of the name that Muster needs, and labels it as one of Muster's own.
func TestForgedGroup(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"no class":                       {},
		"a class that does not exist":    {stamp.ClassNameLabel: "standard.classes.team", stamp.ClassNamespaceLabel: theirs.Namespace},
		"a use that does not exist":      {stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: "classes"},
		"of another class and namespace": {stamp.ClassNameLabel: "other", stamp.ClassNamespaceLabel: "other", stamp.OriginNamespaceLabel: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			group := &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: theirs.Namespace, Name: "standard.classes.team", Labels: labels}}
			metav1.SetMetaDataLabel(&group.ObjectMeta, stamp.ManagedByLabel, stamp.ManagedBy)
			group.Spec.Selector = &metav1.LabelSelector{}
			s := newRancherScene(t, group)
			s.reconcile(t)
			if state, message, _ := s.imported(t); state != "True Attached" {
				t.Errorf("%s: %s", state, message)
			}
			if err := s.direct.Get(t.Context(), client.ObjectKeyFromObject(group), group); err != nil || group.Spec.Selector.MatchLabels[stamp.OriginNamespaceLabel] != s.key.Namespace {
				t.Errorf("%v: selects %v", err, group.Spec.Selector)
			}
		})
	}
}

// A Fleet Cluster of Rancher's that a person hands over loses the mark by which the policy muster-syncer-fleet knows
// Rancher's. With it, the policy would refuse the next write.
func TestHandedOverByRancher(t *testing.T) {
	s := newScene(t, "standard", "classes", nil)
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "prod", Labels: map[string]string{stamp.RancherClusterLabel: "c-abcde"},
		Annotations: map[string]string{stamp.AdoptAnnotation: "true", rancher.ApplierAnnotation: "provisioning.cattle.io/v1, Kind=Cluster", "note": "x"},
	}}
	if err := s.direct.Create(t.Context(), fleet); err != nil {
		t.Fatal(err)
	}
	s.reconcile(t)
	if err := s.direct.Get(t.Context(), s.key, fleet); err != nil {
		t.Fatal(err)
	}
	_, isMarked := fleet.Annotations[rancher.ApplierAnnotation]
	if isMarked || !stamp.IsOurs(fleet) || fleet.Annotations[stamp.ImportedFromAnnotation] != "prod" || fleet.Annotations["note"] != "x" {
		t.Errorf("got %v", fleet.Annotations)
	}
}
