package stamp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/settings"
)

func TestIsOurs(t *testing.T) {
	both := map[string]string{RancherClusterLabel: "c-abcde", ManagedByLabel: ManagedBy}
	tests := map[string]struct {
		object metav1.ObjectMeta
		want   bool
	}{
		"nobody's":                         {},
		"made by us":                       {object: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/managed-by": "muster"}}, want: true},
		"made by Helm":                     {object: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"}}},
		"handed over":                      {object: metav1.ObjectMeta{Annotations: map[string]string{"fleet.addons.cluster.x-k8s.io/adopt": "true"}}, want: true},
		"not handed over":                  {object: metav1.ObjectMeta{Annotations: map[string]string{"fleet.addons.cluster.x-k8s.io/adopt": "false"}}},
		"made by CAAPF":                    {object: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}, {Manager: "addon-provider-fleet"}}}, want: true},
		"made by CAAPF's managers":         {object: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "prod-addon-provider-fleet"}}}, want: true},
		"a name that ends alike":           {object: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "myaddon-provider-fleet"}, {Manager: "addon-provider-fleet-x"}}}},
		"its label, copied to Rancher's":   {object: metav1.ObjectMeta{Labels: both, CreationTimestamp: metav1.Now()}},
		"its manager, on Rancher's":        {object: metav1.ObjectMeta{Labels: both, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: FieldManager}}}},
		"made by us, Rancher's label":      {object: metav1.ObjectMeta{Labels: both, Annotations: map[string]string{ImportedFromAnnotation: "prod"}}, want: true},
		"made by us, Rancher's label, UID": {object: metav1.ObjectMeta{Labels: both, Annotations: map[string]string{ImportedUIDAnnotation: "1"}}, want: true},
		"Rancher's, handed over":           {object: metav1.ObjectMeta{Labels: both, Annotations: map[string]string{AdoptAnnotation: "true"}}, want: true},
		"Rancher's, with a note of ours":   {object: metav1.ObjectMeta{Labels: map[string]string{RancherClusterLabel: "c-abcde"}, Annotations: map[string]string{ImportedFromAnnotation: "prod"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := IsOurs(&test.object); got != test.want {
				t.Errorf("IsOurs = %v", got)
			}
		})
	}
}

// The Cluster is "prod", made at noon, with UID "new". Cluster "other" exists, with UID
// "lives"; "prod" with any other UID is dead.
func TestRelationOf(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	cluster := &metav1.ObjectMeta{Name: "prod", UID: "new", CreationTimestamp: metav1.NewTime(noon)}
	lives := func(name string, uid types.UID) bool {
		return name == "other" && (uid == "" || uid == "lives") || name == "" && uid == "lives"
	}
	owner := func(name string, uid types.UID) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta1", Kind: "Cluster", Name: name, UID: uid}
	}
	ours := map[string]string{ManagedByLabel: ManagedBy}
	caapf := []metav1.ManagedFieldsEntry{{Manager: FieldManager}}
	for name, test := range map[string]struct {
		fleet metav1.ObjectMeta
		want  Relation
		why   bool
	}{
		"nobody's":                 {want: Foreign, why: true},
		"with our owner reference": {fleet: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{owner("prod", "new")}}, want: Own},
		"with a note of our UID":   {fleet: metav1.ObjectMeta{Annotations: map[string]string{ImportedUIDAnnotation: "new"}}, want: Own},
		"the owner takes precedence over the annotation": {fleet: metav1.ObjectMeta{Labels: ours, Annotations: map[string]string{ImportedUIDAnnotation: "new"},
			OwnerReferences: []metav1.OwnerReference{owner("prod", "old")}}, want: EarlierCluster},
		"a dead namesake's, owned":         {fleet: metav1.ObjectMeta{Labels: ours, OwnerReferences: []metav1.OwnerReference{owner("prod", "old")}}, want: EarlierCluster},
		"a dead namesake's, made by CAAPF": {fleet: metav1.ObjectMeta{ManagedFields: caapf, OwnerReferences: []metav1.OwnerReference{owner("prod", "old")}}, want: EarlierCluster},
		"a dead namesake's, not owned": {fleet: metav1.ObjectMeta{Labels: ours,
			Annotations: map[string]string{ImportedFromAnnotation: "prod", ImportedUIDAnnotation: "old"}}, want: Orphan},
		"unknown UID, older":                           {fleet: metav1.ObjectMeta{Labels: ours, CreationTimestamp: metav1.NewTime(noon.Add(-time.Second))}, want: Orphan},
		"unknown UID, same age":                        {fleet: metav1.ObjectMeta{Labels: ours, CreationTimestamp: metav1.NewTime(noon)}, want: Own},
		"unknown UID, younger":                         {fleet: metav1.ObjectMeta{ManagedFields: caapf, CreationTimestamp: metav1.NewTime(noon.Add(time.Second))}, want: Own},
		"CAAPF's, with the name of another that lives": {fleet: metav1.ObjectMeta{Name: "other", ManagedFields: caapf, CreationTimestamp: metav1.NewTime(noon.Add(-time.Second))}, want: Foreign, why: true},
		"CAAPF's, with the name of nobody":             {fleet: metav1.ObjectMeta{Name: "x-prod", ManagedFields: caapf, CreationTimestamp: metav1.NewTime(noon.Add(-time.Second))}, want: Orphan},
		"ours, but another's":                          {fleet: metav1.ObjectMeta{Labels: ours, Annotations: map[string]string{ImportedFromAnnotation: "other"}}, want: Foreign, why: true},
		"owned by another":                             {fleet: metav1.ObjectMeta{Labels: ours, OwnerReferences: []metav1.OwnerReference{owner("other", "lives")}}, want: Foreign, why: true},
		"Rancher's, with our label": {fleet: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon),
			Labels: map[string]string{RancherClusterLabel: "c-abcde", ManagedByLabel: ManagedBy}}, want: Foreign, why: true},
		"handed over": {fleet: metav1.ObjectMeta{Annotations: map[string]string{AdoptAnnotation: "true"}}, want: HandedOver},
		"handed over, another Cluster owns it": {fleet: metav1.ObjectMeta{Annotations: map[string]string{AdoptAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{owner("other", "lives")}}, want: Foreign, why: true},
		"handed over, another Cluster is noted": {fleet: metav1.ObjectMeta{Annotations: map[string]string{AdoptAnnotation: "true",
			ImportedFromAnnotation: "other", ImportedUIDAnnotation: "lives"}}, want: Foreign, why: true},
		"handed over, the other Cluster is dead": {fleet: metav1.ObjectMeta{Annotations: map[string]string{AdoptAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{owner("other", "dead")}}, want: HandedOver},
		"handed over, the namesake is dead": {fleet: metav1.ObjectMeta{Annotations: map[string]string{AdoptAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{owner("prod", "old")}}, want: HandedOver},
		"our name, another's UID": {fleet: metav1.ObjectMeta{Labels: ours, OwnerReferences: []metav1.OwnerReference{owner("prod", "lives")}}, want: Foreign, why: true},
		"our name, another's UID noted": {fleet: metav1.ObjectMeta{Labels: ours,
			Annotations: map[string]string{ImportedFromAnnotation: "prod", ImportedUIDAnnotation: "lives"}}, want: Foreign, why: true},
		"two living owners, made from us": {fleet: metav1.ObjectMeta{Annotations: map[string]string{ImportedFromAnnotation: "prod"},
			OwnerReferences: []metav1.OwnerReference{owner("other", "lives"), owner("prod", "new")}}, want: Own},
		"two living owners, made from the other": {fleet: metav1.ObjectMeta{Annotations: map[string]string{ImportedFromAnnotation: "other"},
			OwnerReferences: []metav1.OwnerReference{owner("prod", "new"), owner("other", "lives")}}, want: Foreign, why: true},
		"two living owners, no annotation": {fleet: metav1.ObjectMeta{
			OwnerReferences: []metav1.OwnerReference{owner("prod", "new"), owner("other", "lives")}}, want: Foreign, why: true},
		"a dead owner in addition to us": {fleet: metav1.ObjectMeta{
			OwnerReferences: []metav1.OwnerReference{owner("other", "dead"), owner("prod", "new")}}, want: Own},
		"our UID, another kind": {fleet: metav1.ObjectMeta{
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "prod", UID: "new"}}}, want: Foreign, why: true},
		"an owner of another kind": {fleet: metav1.ObjectMeta{Labels: ours, CreationTimestamp: metav1.NewTime(noon),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "prod", UID: "x"}}}, want: Own},
	} {
		t.Run(name, func(t *testing.T) {
			test.fleet.Name = cmp.Or(test.fleet.Name, "prod")
			got, why := RelationOf(&test.fleet, cluster, lives)
			if got != test.want || (why != "") != test.why {
				t.Errorf("RelationOf = %v, %q, want %v", got, why, test.want)
			}
			// Who deletes the Fleet Cluster of a Cluster that exists uninstalls what is on that Cluster.
			if exists := strings.Contains(why, "which exists"); exists == strings.Contains(why, AdoptAnnotation) && why != "" && got == Foreign && !strings.Contains(why, "owns it, too") {
				t.Errorf("the advice is %q", why)
			}
		})
	}
}

func TestMayBeFrom(t *testing.T) {
	in := settings.Default().Cluster
	in.Prefix = "capi-"
	for name, c := range map[string]struct {
		fleet metav1.ObjectMeta
		want  bool
	}{
		"notes the name":                     {metav1.ObjectMeta{Name: "any", Annotations: map[string]string{ImportedFromAnnotation: "prod"}}, true},
		"notes another, has the name":        {metav1.ObjectMeta{Name: "capi-prod", Annotations: map[string]string{ImportedFromAnnotation: "other"}}, false},
		"notes nothing, has the name":        {metav1.ObjectMeta{Name: "capi-prod"}, true},
		"notes nothing, has its bare name":   {metav1.ObjectMeta{Name: "prod"}, false},
		"is owned by it":                     {metav1.ObjectMeta{Name: "any", OwnerReferences: []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta1", Kind: "Cluster", Name: "prod"}}}, true},
		"is owned by another, has the name":  {metav1.ObjectMeta{Name: "capi-prod", OwnerReferences: []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "other"}}}, false},
		"is owned by no Cluster, has a name": {metav1.ObjectMeta{Name: "capi-prod", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other"}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := MayBeFrom(in, &c.fleet, "prod"); got != c.want {
				t.Errorf("MayBeFrom = %v, want %v", got, c.want)
			}
		})
	}
}

func ownerRef(name, uid string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: name, UID: types.UID(uid)}
}

// A user who may write owner references may write any name with a UID. Still, at most one of two
// Clusters that own a Fleet Cluster may get it.
func TestForgedNamesOfOwners(t *testing.T) {
	uids := map[string]types.UID{"a": "1", "b": "2"}
	lives := func(name string, uid types.UID) bool {
		if name == "" {
			return uid == "1" || uid == "2"
		}
		have, ok := uids[name]
		return ok && (uid == "" || have == uid)
	}
	for _, names := range [][2]string{{"x", "x"}, {"x", "b"}, {"a", "x"}, {"b", "a"}, {"a", "b"}} {
		for _, from := range []string{"", "a", "b", "x"} {
			fleetCluster := &metav1.ObjectMeta{
				Name: "f", Annotations: map[string]string{ImportedFromAnnotation: from},
				OwnerReferences: []metav1.OwnerReference{ownerRef(names[0], "1"), ownerRef(names[1], "2")},
			}
			var own []string
			for name, uid := range uids {
				if relation, _ := RelationOf(fleetCluster, &metav1.ObjectMeta{Name: name, UID: uid}, lives); relation == Own {
					own = append(own, name)
				}
			}
			if len(own) > 1 {
				t.Errorf("owners %v, made from %q: %v have it", names, from, own)
			}
		}
	}
}

func TestBoundedOwners(t *testing.T) {
	many := make([]metav1.OwnerReference, 0, 10_000)
	for i := range cap(many) {
		many = append(many, ownerRef(fmt.Sprint(i), fmt.Sprint(i)))
	}
	for name, test := range map[string]struct {
		owners []metav1.OwnerReference
		from   string
		want   func([]metav1.OwnerReference) bool
	}{
		"none":      {nil, "prod", func(got []metav1.OwnerReference) bool { return len(got) == 0 }},
		"one":       {[]metav1.OwnerReference{ownerRef("prod", "1")}, "prod", func(got []metav1.OwnerReference) bool { return len(got) == 1 }},
		"others":    {[]metav1.OwnerReference{{Kind: "ConfigMap", Name: "x"}, ownerRef("prod", "1")}, "prod", func(got []metav1.OwnerReference) bool { return len(got) == 2 }},
		"long name": {[]metav1.OwnerReference{ownerRef(strings.Repeat("x", 254), "2"), ownerRef("prod", "1")}, "prod", func(got []metav1.OwnerReference) bool { return len(got) == 1 && got[0].Name == "prod" }},
		"long UID":  {[]metav1.OwnerReference{ownerRef("x", strings.Repeat("2", 1<<20))}, "x", func(got []metav1.OwnerReference) bool { return len(got) == 0 }},
		"many":      {many, "prod", func(got []metav1.OwnerReference) bool { return len(got) == maxOwners }},
		"many, its origin last": {append(slices.Clone(many), ownerRef("prod", "1")), "prod", func(got []metav1.OwnerReference) bool {
			return len(got) == maxOwners+1 && got[maxOwners].Name == "prod"
		}},
	} {
		fleetCluster := &metav1.ObjectMeta{Name: "f", OwnerReferences: test.owners, Annotations: map[string]string{ImportedFromAnnotation: test.from}}
		got := BoundedOwners(fleetCluster)
		if !test.want(got) {
			t.Errorf("%s: %d owners are kept", name, len(got))
		}
		// A second trim, such as of the answer to a write, changes nothing.
		fleetCluster.OwnerReferences = got
		if again := BoundedOwners(fleetCluster); len(again) != len(got) {
			t.Errorf("%s: %d owners are kept of %d", name, len(again), len(got))
		}
	}
}

// Known: the annotation that hands a Fleet Cluster over names no Cluster. While it is there, any Cluster that expects, or pins,
// the name of the Fleet Cluster may take it. It is left because who sets the annotation may write Fleet Clusters, and so
// delete this one or write its owner.
func TestKnownAdoptNamesNoCluster(t *testing.T) {
	fleet := &metav1.ObjectMeta{Namespace: "team", Name: "prod", Annotations: map[string]string{AdoptAnnotation: "true"}}
	nobody := func(string, types.UID) bool { return false }
	for _, cluster := range []string{"prod", "another"} {
		if got, why := RelationOf(fleet, &metav1.ObjectMeta{Namespace: "team", Name: cluster, UID: types.UID(cluster)}, nobody); got != HandedOver {
			t.Errorf("Cluster %s: %v %s", cluster, got, why)
		}
	}
}
