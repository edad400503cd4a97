package audit

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// user returns a claimed Cluster of namespace team that uses platform/std, created at noon.
func user(name string, change ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name, cluster.UID, cluster.CreationTimestamp = "team", name, types.UID(name), metav1.NewTime(noon)
	cluster.Annotations = map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: name}
	cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: "std", Namespace: "platform"}
	for _, change := range change {
		change(cluster)
	}
	return cluster
}

func unclaimed(cluster *clusterv1.Cluster)  { cluster.Annotations = nil }
func deselected(cluster *clusterv1.Cluster) { cluster.Labels = map[string]string{"fleet": "no"} }
func paused(cluster *clusterv1.Cluster)     { cluster.Spec.Paused = ptr.To(true) }
func deleting(cluster *clusterv1.Cluster)   { cluster.DeletionTimestamp = &metav1.Time{Time: noon} }
func annotatedPaused(cluster *clusterv1.Cluster) {
	cluster.Annotations[clusterv1.PausedAnnotation] = ""
}

// fleetCluster returns one of Muster's Fleet Clusters, of the class platform/std.
func fleetCluster(name string, annotations map[string]string) *metav1.PartialObjectMetadata {
	cluster := &metav1.PartialObjectMetadata{}
	cluster.Namespace, cluster.Name, cluster.CreationTimestamp = "team", name, metav1.NewTime(noon)
	cluster.Labels = stamp.Labels(types.NamespacedName{Namespace: "platform", Name: "std"})
	cluster.Labels[stamp.ManagedByLabel] = stamp.ManagedBy
	cluster.Annotations = annotations
	return cluster
}

func state(change func(*State)) *State {
	in := settings.Default()
	selector, err := labels.Parse("fleet!=no")
	if err != nil {
		panic(err)
	}
	in.Cluster.Selector = selector
	s := &State{
		Settings:   in,
		Namespaces: map[string]map[string]string{"team": {}, "platform": {}},
		Mappings:   []*fleetv1.BundleNamespaceMapping{desired.Mapping("platform", "team")},
		AskedSince: ptr.To(noon.Add(-time.Hour)),
	}
	change(s)
	return s
}

func TestMappings(t *testing.T) {
	retained := func(retainers ...Retainer) []Mapping {
		return []Mapping{{Namespace: "platform", Name: "team", RetainedBy: append([]Retainer{}, retainers...)}}
	}
	cluster := func(why string) Retainer {
		return Retainer{Kind: "Cluster", Namespace: "team", Name: "one", Why: why}
	}
	fleet := func(why string) Retainer {
		return Retainer{Kind: "Fleet Cluster", Namespace: "team", Name: "one", Why: why}
	}
	clusters := func(clusters ...*clusterv1.Cluster) func(*State) {
		return func(s *State) { s.Clusters = clusters }
	}
	copies := func(copies ...*metav1.PartialObjectMetadata) func(*State) {
		return func(s *State) { s.FleetClusters = copies }
	}
	from := func(name string) map[string]string { return map[string]string{stamp.ImportedFromAnnotation: name} }
	released := map[string]string{stamp.ReleasedAnnotation: "true"}

	for name, test := range map[string]struct {
		change func(*State)
		want   []Mapping
	}{
		"nobody uses it":                {clusters(), retained()},
		"a rightful user":               {clusters(user("one")), []Mapping{}},
		"a rightful user among others":  {clusters(user("one", paused), user("two")), []Mapping{}},
		"a deselected user":             {clusters(user("one", deselected)), retained(cluster("deselected"))},
		"a paused user":                 {clusters(user("one", paused)), retained(cluster("paused"))},
		"one paused by an annotation":   {clusters(user("one", annotatedPaused)), retained(cluster("paused"))},
		"a user that is being deleted":  {clusters(user("one", deleting)), retained(cluster("being deleted"))},
		"one that is yet to be claimed": {clusters(user("one", unclaimed)), retained(cluster("not claimed yet"))},
		"one that was never claimed":    {clusters(user("one", unclaimed, deselected)), retained()},
		"half a pin claims nothing": {clusters(user("one", deselected, func(c *clusterv1.Cluster) {
			delete(c.Annotations, stamp.OwnedByAnnotation)
		})), retained()},
		"a user of another namespace's class": {clusters(user("one", func(c *clusterv1.Cluster) {
			c.Spec.Topology.ClassRef.Namespace = "elsewhere"
		})), retained()},
		"a user in another namespace": {clusters(user("one", func(c *clusterv1.Cluster) { c.Namespace = "other" })), retained()},
		"labels do not make a user": {clusters(user("one", func(c *clusterv1.Cluster) {
			c.Labels, c.Spec.Topology = stamp.Labels(types.NamespacedName{Namespace: "platform", Name: "std"}), clusterv1.Topology{}
		})), retained()},
		"its group's name is taken": {func(s *State) {
			s.Clusters = []*clusterv1.Cluster{user("one")}
			s.Classes = map[types.NamespacedName]bool{{Namespace: "team", Name: "std.platform"}: true}
		}, retained(cluster("a ClusterClass in its namespace has the name of its group"))},
		"nothing is imported at present": {func(s *State) {
			s.Clusters, s.Settings.Cluster.Enabled = []*clusterv1.Cluster{user("one")}, false
		}, []Mapping{}},
		"applyClassGroup is false": {func(s *State) {
			s.Clusters, s.Settings.Cluster.ApplyClassGroup = []*clusterv1.Cluster{user("one")}, false
		}, retained()},

		"a released Fleet Cluster":      {copies(fleetCluster("one", released)), retained(fleet("released"))},
		"one of a Cluster that is gone": {copies(fleetCluster("one", from("gone"))), retained()},
		"one without an origin":         {copies(fleetCluster("one", nil)), retained()},
		"one that someone else made": {copies(func() *metav1.PartialObjectMetadata {
			c := fleetCluster("one", released)
			delete(c.Labels, stamp.ManagedByLabel)
			return c
		}()), retained()},
		"one of a Cluster of another class": {func(s *State) {
			s.Clusters = []*clusterv1.Cluster{user("mine", func(c *clusterv1.Cluster) { c.Spec.Topology.ClassRef.Namespace = "" })}
			s.FleetClusters = []*metav1.PartialObjectMetadata{fleetCluster("one", from("mine"))}
		}, retained(fleet("of Cluster mine"))},
		"one that such a Cluster owns": {func(s *State) {
			s.Clusters = []*clusterv1.Cluster{user("mine", func(c *clusterv1.Cluster) { c.Spec.Topology.ClassRef.Namespace = "" })}
			owned := fleetCluster("one", nil)
			owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta1", Kind: "Cluster", Name: "mine", UID: "mine"}}
			s.FleetClusters = []*metav1.PartialObjectMetadata{owned}
		}, retained(fleet("of Cluster mine"))},

		"one that its dead namesake owned": {func(s *State) {
			s.Clusters = []*clusterv1.Cluster{user("mine", func(c *clusterv1.Cluster) { c.Spec.Topology.ClassRef.Namespace = "" })}
			owned := fleetCluster("one", nil)
			owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta1", Kind: "Cluster", Name: "mine", UID: "dead"}}
			s.FleetClusters = []*metav1.PartialObjectMetadata{owned}
		}, retained()},
		"one that CAAPF made, with a prefix": {func(s *State) {
			s.Clusters = []*clusterv1.Cluster{user("mine", unclaimed, deselected)}
			s.Settings.Cluster.Prefix = "capi-"
			s.FleetClusters = []*metav1.PartialObjectMetadata{fleetCluster("capi-mine", nil)}
		}, retained(Retainer{Kind: "Fleet Cluster", Namespace: "team", Name: "capi-mine", Why: "of Cluster mine"})},
		"a retired mapping": {func(s *State) {
			s.Mappings = []*fleetv1.BundleNamespaceMapping{desired.RetiredMapping("platform", "team")}
		}, []Mapping{}},
		"someone else's mapping": {func(s *State) { delete(s.Mappings[0].Labels, stamp.ManagedByLabel) }, []Mapping{}},
		"an edited mapping": {func(s *State) { s.Mappings[0].BundleSelector = &metav1.LabelSelector{} },
			[]Mapping{{Namespace: "platform", Name: "team", Edited: true, RetainedBy: []Retainer{}}}},

		"Clusters may not be read":                      {func(s *State) { s.Unread = map[Kind]string{Clusters: "no"} }, []Mapping{}},
		"Namespaces may not be read, and do not matter": {func(s *State) { s.Unread = map[Kind]string{Namespaces: "no"} }, retained()},
		"Namespaces may not be read, but matter": {func(s *State) {
			s.Unread, s.Settings.Cluster.NamespaceSelector = map[Kind]string{Namespaces: "no"}, s.Settings.Cluster.Selector
		}, []Mapping{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Audit(state(test.change)).Mappings); diff != "" {
				t.Errorf("mappings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*State)
		want   Asked
	}{
		"younger than the webhook":    {func(*State) {}, AskedYes},
		"older":                       {func(s *State) { s.AskedSince = ptr.To(noon.Add(time.Second)) }, AskedOlder},
		"there is no webhook":         {func(s *State) { s.AskedSince = nil }, AskedNobody},
		"the webhook may not be read": {func(s *State) { s.AskedSince, s.Unread = nil, map[Kind]string{Webhook: "no"} }, AskedUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			got := Audit(state(func(s *State) {
				test.change(s)
				s.Clusters = []*clusterv1.Cluster{user("two", unclaimed), user("own", func(c *clusterv1.Cluster) { c.Spec.Topology.ClassRef.Namespace = "" }), user("one")}
			})).Clusters
			want := []Use{
				{Namespace: "team", Name: "one", Class: "std", ClassNamespace: "platform", Created: noon, Asked: test.want},
				{Namespace: "team", Name: "two", Class: "std", ClassNamespace: "platform", Created: noon, Asked: test.want},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Clusters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReleased(t *testing.T) {
	released := func(from string) map[string]string {
		return map[string]string{stamp.ReleasedAnnotation: "true", stamp.ImportedFromAnnotation: from}
	}
	got := Audit(state(func(s *State) {
		s.Clusters = []*clusterv1.Cluster{user("here")}
		going := fleetCluster("going", released("gone"))
		going.DeletionTimestamp = &metav1.Time{Time: noon}
		s.FleetClusters = []*metav1.PartialObjectMetadata{
			fleetCluster("left", released("gone")), fleetCluster("paused", released("here")), fleetCluster("usual", nil), going,
		}
	})).Released
	want := []Leftover{{Namespace: "team", Name: "left", Cluster: "gone", Created: noon,
		Delete: "kubectl -n team delete clusters.fleet.cattle.io left"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
}

// The syncer decides whether a Cluster is in Fleet twice.
func TestDoubles(t *testing.T) {
	got := Audit(state(func(s *State) {
		for reason, name := range map[string]string{"DoubleImport": "twice", "Imported": "once"} {
			s.Clusters = append(s.Clusters, user(name))
			s.Clusters[len(s.Clusters)-1].Status.Conditions = []metav1.Condition{{Type: "FleetImported", Reason: reason, Message: reason}}
		}
	})).Doubles
	if diff := cmp.Diff([]Double{{Namespace: "team", Name: "twice", Message: "DoubleImport"}}, got); diff != "" {
		t.Errorf("doubles (-want +got):\n%s", diff)
	}
}

// Every hold is listed: of one that the syncer will not end, it says why.
func TestHolds(t *testing.T) {
	began := func(ago time.Duration) string {
		return hold.Hold{From: "v1", To: "v2", Since: noon.Add(-ago)}.String()
	}
	got := Audit(state(func(s *State) {
		s.Now = noon
		for name, annotations := range map[string]map[string]string{
			"none":    {stamp.HoldAnnotation: "30m"},
			"others":  {"before-upgrade.hook.cluster.cluster.x-k8s.io/else": "x"},
			"held":    {stamp.HoldAnnotation: "30m", stamp.HookAnnotation: began(30 * time.Minute)},
			"overdue": {stamp.HoldAnnotation: "30m", stamp.HookAnnotation: began(time.Hour)},
			"unasked": {stamp.HookAnnotation: began(0)},
			"forged":  {stamp.HoldAnnotation: "30m", stamp.HookAnnotation: "x"},
		} {
			s.Clusters = append(s.Clusters, user(name))
			s.Clusters[len(s.Clusters)-1].Annotations = annotations
		}
	})).Holds
	var names []string
	for _, its := range got {
		names = append(names, its.Name)
	}
	if diff := cmp.Diff([]string{"forged", "held", "overdue", "unasked"}, names); diff != "" {
		t.Fatalf("holds (-want +got):\n%s", diff)
	}
	if want := "kubectl -n team annotate clusters.cluster.x-k8s.io forged before-upgrade.hook.cluster.cluster.x-k8s.io/muster-"; got[0].End != want {
		t.Errorf("%s", got[0].End)
	}
	if want := "v1 to v2 waits for its add-ons until " + noon.Format(time.RFC3339) + " at the latest"; got[1].Why != want {
		t.Errorf("got %q, want %q", got[1].Why, want)
	}
}

// The report names the kinds that could not be read, and the resulting gaps.
func TestNotes(t *testing.T) {
	got := Audit(state(func(s *State) { s.Unread = map[Kind]string{Clusters: "may not be read", Webhook: "may not be read"} })).Notes
	want := []string{
		"Clusters: may not be read",
		"ValidatingWebhookConfiguration muster-validating-webhook: may not be read",
		"unknown: whether a mapping has a rightful user, which Clusters use a class of another namespace, which are in Fleet twice, which upgrades are held, which Fleet Clusters are left over",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

var example = &Report{
	Mappings: []Mapping{
		{Namespace: "platform", Name: "team", RetainedBy: []Retainer{{Kind: "Cluster", Namespace: "team", Name: "one", Why: "paused"}, {Kind: "Fleet Cluster", Namespace: "team", Name: "two", Why: "released"}}},
		{Namespace: "platform", Name: "x", Edited: true, RetainedBy: []Retainer{}},
	},
	Clusters: []Use{{Namespace: "team", Name: "one", Class: "std", ClassNamespace: "platform", Created: noon, Asked: AskedOlder}},
	Released: []Leftover{},
	Doubles:  []Double{{Namespace: "team", Name: "one", Message: "two agents"}},
	Holds:    []Hold{{Namespace: "team", Name: "one", Why: "nobody asks", End: "kubectl …"}},
	Notes:    []string{"Namespaces: may not be read"},
}

const exampleTables = `BundleNamespaceMappings without a rightful user: 2
NAMESPACE   NAME   MAPS      RETAINED BY
platform    team   as made   Cluster one (paused), Fleet Cluster two (released)
platform    x      edited    nothing

Clusters that use a class of another namespace: 1
NAMESPACE   NAME   CLASS          CREATED                ASKED
team        one    platform/std   2026-01-02T12:00:00Z   no, older than the webhook

Released Fleet Clusters whose Cluster is gone: 0

Clusters that are in Fleet twice, as Muster's and as Rancher's: 1
NAMESPACE   NAME   HOW
team        one    two agents

Upgrades that are held: 1
NAMESPACE   NAME   WHY           TO END IT
team        one    nobody asks   kubectl …

note: Namespaces: may not be read
`

func TestTables(t *testing.T) {
	var out bytes.Buffer
	if err := example.WriteTables(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleTables, out.String()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
}

func TestJSON(t *testing.T) {
	text, err := json.Marshal(example)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example, &back); diff != "" {
		t.Errorf("the report changes in JSON (-want +got):\n%s", diff)
	}
}
