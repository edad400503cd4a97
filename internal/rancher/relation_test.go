package rancher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// world holds the objects of Rancher and around one Cluster.
type world struct {
	cluster         clusterv1.Cluster
	namespaceLabels map[string]string
	mode            addonsv1.RancherMode
	gone            bool
	managements     []object
	provisionings   []object
	fleets          []metav1.ObjectMeta
	unread          string
}

var _ objects = (*world)(nil)

func (w *world) isThere() bool { return !w.gone }
func (w *world) list(kind schema.GroupVersionKind, index, value string) (found []object) {
	all := w.managements
	if kind == ProvisioningKind {
		all = w.provisionings
	}
	for _, its := range all {
		if kind == ProvisioningKind {
			its.Owner = its.NamespacedName
		} else {
			its.Management = its.Name
		}
		if value != "" && (index == byOwner && its.Owner.String() == value || index == byManagement && its.Management == value) {
			found = append(found, its)
		}
	}
	return found
}
func (w *world) fleetCluster(key types.NamespacedName) metav1.Object {
	for i := range w.fleets {
		if w.fleets[i].Namespace == key.Namespace && w.fleets[i].Name == key.Name {
			return &w.fleets[i]
		}
	}
	return nil
}

func (w *world) fleetClustersOf(management string) (found []types.NamespacedName) {
	for _, fleet := range w.fleets {
		if fleet.Labels[stamp.RancherClusterLabel] == management {
			found = append(found, types.NamespacedName{Namespace: fleet.Namespace, Name: fleet.Name})
		}
	}
	return found
}
func (w *world) reads(namespace string) bool { return namespace != w.unread }

// noted sets the annotation that names the management Cluster.
func (w *world) noted(management string) {
	metav1.SetMetaDataAnnotation(&w.cluster.ObjectMeta, NoteAnnotation, management)
}

// imported is a Cluster that Turtles and Rancher have imported: team/one as c-abcde, in workspace ws.
func imported(change func(*world)) *world {
	w := &world{
		cluster:       clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: "1", Finalizers: []string{turtlesFinalizer}, Labels: map[string]string{autoImportLabel: "true"}}},
		managements:   []object{{NamespacedName: types.NamespacedName{Name: "c-abcde"}, Owner: types.NamespacedName{Namespace: "team", Name: "one"}, Workspace: "ws", Ready: true}},
		provisionings: []object{{NamespacedName: types.NamespacedName{Namespace: "ws", Name: "c-abcde"}, Management: "c-abcde"}},
		fleets:        []metav1.ObjectMeta{{Namespace: "ws", Name: "c-abcde", Labels: map[string]string{stamp.RancherClusterLabel: "c-abcde"}}},
	}
	if change != nil {
		change(w)
	}
	return w
}

// provisionedWorld is an RKE2 Cluster of Rancher's: ws/edge.
func provisionedWorld(change func(*world)) *world {
	w := &world{
		cluster: clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "edge", UID: "2", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "provisioning.cattle.io/v1", Kind: "Cluster", Name: "edge", UID: "p"}}}},
		managements:   []object{{NamespacedName: types.NamespacedName{Name: "c-m-1"}, Workspace: "ws", Ready: true, FromProvisioning: true}},
		provisionings: []object{{NamespacedName: types.NamespacedName{Namespace: "ws", Name: "edge"}, UID: "p", Management: "c-m-1"}},
		fleets:        []metav1.ObjectMeta{{Namespace: "ws", Name: "edge", Labels: map[string]string{stamp.RancherClusterLabel: "c-m-1"}}},
	}
	if change != nil {
		change(w)
	}
	return w
}

func TestRelation(t *testing.T) {
	theirs := types.NamespacedName{Namespace: "ws", Name: "c-abcde"}
	claim := func(name string, change func(*object)) object {
		m := object{NamespacedName: types.NamespacedName{Name: name}, Owner: types.NamespacedName{Namespace: "team", Name: "one"}, Workspace: "ws", Ready: true}
		if change != nil {
			change(&m)
		}
		return m
	}
	for name, test := range map[string]struct {
		*world
		way   Way
		waits string
		fleet types.NamespacedName
	}{
		"no Rancher":         {world: imported(func(w *world) { w.gone = true })},
		"not to be imported": {world: imported(func(w *world) { *w = world{cluster: w.cluster}; w.cluster.Labels, w.cluster.Finalizers = nil, nil })},
		"false on the Cluster wins": {world: imported(func(w *world) {
			*w = world{namespaceLabels: map[string]string{autoImportLabel: "true"}}
			w.cluster.Labels = map[string]string{autoImportLabel: "false"}
		})},
		"to be imported":   {world: imported(func(w *world) { *w = world{cluster: w.cluster}; w.cluster.Finalizers = nil }), way: Wait, waits: "Turtles"},
		"its Namespace is": {world: imported(func(w *world) { *w = world{namespaceLabels: map[string]string{autoImportLabel: "true"}} }), way: Wait, waits: "Turtles"},
		"never again": {world: imported(func(w *world) {
			*w = world{cluster: w.cluster}
			w.cluster.Annotations = map[string]string{importedAnnotation: "true"}
		})},
		"no workspace":                 {world: imported(func(w *world) { w.managements[0].Workspace = ""; w.fleets = nil }), way: Wait, waits: "spec.fleetWorkspaceName"},
		"not ready":                    {world: imported(func(w *world) { w.managements[0].Ready = false; w.fleets = nil }), way: Wait, waits: "CNI"},
		"no Fleet Cluster":             {world: imported(func(w *world) { w.fleets = nil }), way: Wait, waits: "Rancher to make"},
		"somebody else's has its name": {world: imported(func(w *world) { w.fleets[0].Labels = nil }), way: Wait, waits: "make room"},
		"its Fleet Cluster goes":       {world: imported(func(w *world) { w.fleets[0].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }), way: Wait, waits: "to be deleted", fleet: theirs},
		"attached":                     {world: imported(nil), way: Attach, fleet: theirs},
		"attached, not ready now":      {world: imported(func(w *world) { w.managements[0].Ready = false }), way: Attach, fleet: theirs},
		"the mark is gone":             {world: imported(func(w *world) { w.cluster.Labels = nil }), way: Attach, fleet: theirs},
		"being deleted":                {world: imported(func(w *world) { w.managements[0].Deleting = true }), way: Wait, waits: `"c-abcde" to be deleted`, fleet: theirs},
		"gone, its Fleet Cluster not":  {world: imported(func(w *world) { w.managements, w.cluster.Labels = nil, nil; w.noted("c-abcde") }), way: Wait, waits: "may still run"},
		"Rancher gone, it not":         {world: imported(func(w *world) { w.gone = true; w.noted("c-abcde") }), way: Wait, waits: "may still run"},
		"externally managed":           {world: imported(func(w *world) { w.managements[0].ExternallyManaged = true; w.fleets = nil })},
		"externally managed now":       {world: imported(func(w *world) { w.managements[0].ExternallyManaged = true }), way: Wait, waits: "externally managed now", fleet: theirs},
		"mode Import":                  {world: imported(func(w *world) { w.mode = addonsv1.RancherImport }), fleet: theirs},
		"mode Off":                     {world: imported(func(w *world) { w.mode = addonsv1.RancherOff })},
		"annotated Off":                {world: imported(func(w *world) { w.cluster.Annotations = map[string]string{ModeAnnotation: "Off"} })},
		"annotated with nonsense":      {world: imported(func(w *world) { w.cluster.Annotations = map[string]string{ModeAnnotation: "off"} }), way: Attach, fleet: theirs},
		"labels alone prove nothing":   {world: imported(func(w *world) { w.cluster.Labels, w.cluster.Finalizers = nil, nil })},
		"labels of a user's choice":    {world: imported(func(w *world) { w.managements[0].FromProvisioning = true }), way: Wait, waits: "Turtles"},
		"the name, too": {world: imported(func(w *world) {
			w.provisionings = append(w.provisionings, object{NamespacedName: types.NamespacedName{Namespace: "ws", Name: "evil"}, Management: "c-abcde"})
		}), way: Wait, waits: "Turtles"},
		"two name it": {world: imported(func(w *world) { w.managements = append(w.managements, claim("c-evil1", nil)) }), way: Wait, waits: "c-abcde, c-evil1 name it"},
		"two name it, one was first": {world: imported(func(w *world) {
			w.managements = append(w.managements, claim("c-evil1", nil))
			w.noted("c-abcde")
		}), way: Attach, fleet: theirs},
		"one of a namesake":           {world: imported(func(w *world) { w.managements[0].Owner.Namespace = "other" }), way: Wait, waits: "Turtles"},
		"RKE2":                        {world: provisionedWorld(nil), way: Attach, fleet: types.NamespacedName{Namespace: "ws", Name: "edge"}},
		"RKE2, no management Cluster": {world: provisionedWorld(func(w *world) { w.provisionings[0].Management = "" }), way: Wait, waits: "to get a management Cluster"},
		"RKE2, it is not there":       {world: provisionedWorld(func(w *world) { w.managements = nil }), way: Wait, waits: `"c-m-1" of provisioning Cluster`},
		"RKE2, another UID":           {world: provisionedWorld(func(w *world) { w.provisionings[0].UID = "q" }), way: Wait, waits: "which owns it"},
		"RKE2, another name":          {world: provisionedWorld(func(w *world) { w.cluster.Name = "other" }), way: Wait, waits: "which owns it"},
		"RKE2, a management Cluster of two": {world: provisionedWorld(func(w *world) {
			w.provisionings = append(w.provisionings, object{NamespacedName: types.NamespacedName{Namespace: "ws", Name: "evil"}, Management: "c-m-1"})
		}), way: Wait, waits: "2 name it"},
		"RKE2, one in another namespace": {world: provisionedWorld(func(w *world) {
			w.provisionings = append(w.provisionings, object{NamespacedName: types.NamespacedName{Namespace: "other", Name: "evil"}, Management: "c-m-1"})
		}), way: Attach, fleet: types.NamespacedName{Namespace: "ws", Name: "edge"}},
		"RKE2, of an import": {world: provisionedWorld(func(w *world) { w.managements[0].FromProvisioning = false }), way: Wait, waits: "that of an import"},
		"one in another namespace names it": {world: imported(func(w *world) {
			w.provisionings = append(w.provisionings, object{NamespacedName: types.NamespacedName{Namespace: "other", Name: "evil"}, Management: "c-abcde"})
		}), way: Attach, fleet: theirs},
		"a dropped claim": {world: imported(func(w *world) {
			w.managements[0].FromProvisioning, w.cluster.Labels = true, nil
		}), way: Wait, waits: "c-abcde name it"},
		"a dropped claim, not imported": {world: imported(func(w *world) {
			w.managements[0].FromProvisioning, w.cluster.Finalizers, w.cluster.Annotations = true, nil, map[string]string{importedAnnotation: "true"}
		})},
		"noted, its labels are gone": {world: imported(func(w *world) {
			w.managements[0].Owner.Name, w.fleets, w.cluster.Labels = "", nil, nil
			w.noted("c-abcde")
		}), way: Wait, waits: "to name the Cluster in its labels again"},
		"noted, all is gone":    {world: imported(func(w *world) { w.managements, w.fleets, w.cluster.Labels = nil, nil, nil; w.noted("c-abcde") })},
		"noted, another has it": {world: imported(func(w *world) { w.noted("c-older") }), way: Attach, fleet: theirs},
		"noted, in another workspace": {world: imported(func(w *world) {
			w.managements[0].ExternallyManaged, w.managements[0].Workspace = true, ""
			w.noted("c-abcde")
		}), way: Wait, waits: "externally managed now"},
		"externally managed, never noted": {world: imported(func(w *world) {
			w.managements[0].ExternallyManaged, w.managements[0].Workspace = true, ""
		}), way: Wait, waits: "externally managed now"},
		"noted, it never was in Rancher":    {world: imported(func(w *world) { w.cluster.Labels, w.cluster.Finalizers = nil, nil; w.noted("c-abcde") }), way: Wait, waits: NoteAnnotation},
		"noted, mode Import":                {world: imported(func(w *world) { w.mode, w.managements = addonsv1.RancherImport, nil; w.noted("c-abcde") }), fleet: types.NamespacedName{}},
		"noted, nothing has such a name":    {world: imported(func(w *world) { *w = world{}; w.noted("not a name/at all") })},
		"a workspace that Muster reads not": {world: imported(func(w *world) { w.unread = "ws" }), way: Wait, waits: "--namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			in := settings.Default().Cluster
			if test.mode != "" {
				in.Rancher = test.mode
			}
			if test.cluster.Name == "" {
				test.cluster.Namespace, test.cluster.Name = "team", "one"
			}
			got := decide(in, &test.cluster, test.namespaceLabels, test.world)
			noted := NotedOn(&test.cluster)
			switch {
			case got.Way == Import && got.Management != "", got.Way == Attach && got.Management == "":
				t.Errorf("%s, and %q is to be noted", got.Way, got.Management)
			case got.Left != "" && (got.Way != Import || got.Left != noted), got.Way == Wait && noted != "" && got.Management == "":
				t.Errorf("%q was noted, got %+v", noted, got)
			}
			if got.Way != test.way || got.Fleet != test.fleet || !strings.Contains(got.For, test.waits) || (got.For == "") != (test.way != Wait) {
				t.Errorf("got %+v; want %q, %s, waiting for %q", got, test.way, test.fleet, test.waits)
			}
		})
	}
}

// The note names an earlier management Cluster until nothing of that one is left.
func TestNoteOfAnEarlierManagementCluster(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   string
	}{
		"nothing is left": {func(*world) {}, "c-abcde"},
		"its Fleet Cluster is left": {func(w *world) {
			w.fleets = append(w.fleets, metav1.ObjectMeta{Namespace: "ws", Name: "c-older", Labels: map[string]string{stamp.RancherClusterLabel: "c-older"}})
		}, "c-older"},
		"it is left itself": {func(w *world) {
			w.managements = append(w.managements, object{NamespacedName: types.NamespacedName{Name: "c-older"}})
		}, "c-older"},
	} {
		w := imported(test.change)
		w.noted("c-older")
		if got := decide(settings.Default().Cluster, &w.cluster, nil, w); got.Way != Attach || got.Management != test.want {
			t.Errorf("%s: %s, and the note is %q, want %q", name, got.Way, got.Management, test.want)
		}
	}
}

// An older Turtles removes agents from the default namespace, unless the management Cluster or the Cluster says otherwise.
func TestRemovesAgent(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"an older Turtles": {func(*world) {}, true},
		"a newer one":      {func(w *world) { w.managements[0].Migrated = true }, false},
		"not ready":        {func(w *world) { w.managements[0].Ready = false }, false},
		"told not to":      {func(w *world) { w.cluster.Labels[KeepAgentLabel] = "" }, false},
		"no Rancher":       {func(w *world) { w.gone = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := imported(test.change)
			if got := decide(settings.Default().Cluster, &w.cluster, nil, w); got.RemovesAgent != test.want {
				t.Errorf("got %v", got.RemovesAgent)
			}
		})
	}
}

func TestExternallyManaged(t *testing.T) {
	for value, want := range map[string]bool{"": false, "false": false, "False": false, "true": true, "yes": true} {
		management := Object(ManagementKind)
		management.SetAnnotations(map[string]string{externallyManagedAnnotation: value})
		if got := objectOf(management); got.ExternallyManaged != want {
			t.Errorf("%q: got %v", value, got.ExternallyManaged)
		}
	}
}

// What a cache drops is nothing that is read.
func TestTrim(t *testing.T) {
	management, provisioning := Object(ManagementKind), Object(ProvisioningKind)
	for _, whole := range []*unstructured.Unstructured{management, provisioning} {
		whole.SetNamespace("ws")
		whole.SetName("c-abcde")
		whole.SetUID("1")
		whole.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
		whole.SetLabels(map[string]string{ownerLabel: "one", ownerNamespaceLabel: "team", "more": "x"})
		whole.SetAnnotations(map[string]string{externallyManagedAnnotation: "true", administratedAnnotation: "true", migratedAnnotation: "x", "more": "x"})
		whole.Object["spec"] = map[string]any{"fleetWorkspaceName": "ws", "more": "x"}
		whole.Object["status"] = map[string]any{"clusterName": "c-abcde", "conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "x"}, "no condition"}}
		slim, err := Trim(whole)
		if err != nil || objectOf(slim.(client.Object)) != objectOf(whole) {
			t.Errorf("%v: of %+v, %+v is left", err, objectOf(whole), objectOf(slim.(client.Object)))
		}
		if text := fmt.Sprint(slim); strings.Contains(text, "more") || strings.Contains(text, "reason") {
			t.Errorf("kept %s", text)
		}
	}
}
