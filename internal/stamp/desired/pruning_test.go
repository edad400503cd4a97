package desired

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// optOuts are Argo CD's own opt-outs, on what has no owner.
var optOuts = map[string]string{
	"argocd.argoproj.io/sync-options":    "Prune=false",
	"argocd.argoproj.io/compare-options": "IgnoreExtraneous",
}

// ids are keys by which a tool deletes; names are keys by which a tool deletes, too, and people select.
var (
	ids = []string{
		"applyset.kubernetes.io/part-of", "applyset.kubernetes.io/id", "applyset.kubernetes.io/tooling", "applyset.kubernetes.io/contains-group-kinds",
		"kapp.k14s.io/app", "kapp.k14s.io/association",
		"clusterctl.cluster.x-k8s.io", "clusterctl.cluster.x-k8s.io/move-hierarchy", "clusterctl.cluster.x-k8s.io/delete-for-move",
		"argocd.argoproj.io/tracking-id", "kluctl.io/force-managed", "cleanup.kyverno.io/ttl", "janitor/ttl", "janitor/expires",
	}
	names = []string{
		"app.kubernetes.io/instance", "argocd.argoproj.io/instance", "cluster.x-k8s.io/provider", "env",
		"kustomize.toolkit.fluxcd.io/name", "app.kubernetes.io/name", "config.kubernetes.io/owning-inventory", "kapp.k14s.io/nonce",
		"applyset.kubernetes.io", "my.clusterctl.cluster.x-k8s.io", "kluctl.io/discriminator", "janitor/notified", "argocd.argoproj.io/sync-wave",
	}
)

// entries returns labels or annotations with these keys.
func entries(keys ...[]string) map[string]string {
	all := map[string]string{}
	for _, some := range keys {
		for _, key := range some {
			all[key] = "x"
		}
	}
	return all
}

// copiesOn returns what every Fleet object of a Cluster and a class has besides Muster's own keys.
func copiesOn(in settings.Settings, keys map[string]string) map[string]map[string]string {
	cluster := makeCluster("team", "prod").Class("classes", "standard").Obj()
	maps.Copy(cluster.Labels, keys)
	maps.Copy(cluster.Annotations, keys)
	class := makeClass("classes", "standard", keys)
	key := types.NamespacedName{Namespace: "classes", Name: "standard"}
	bare := makeCluster("team", "prod").Class("classes", "standard").Obj()
	before := Attachment(settings.Default(), types.NamespacedName{Name: "c"}, "u", cluster, class, nil, Targets{})
	maps.Copy(before.Labels, keys) // As an older Muster has copied them.
	all := map[string]map[string]string{
		"a Cluster's labels":               FleetCluster(in, cluster, nil, nil, Targets{}, "").Labels,
		"a Cluster's annotations":          FleetCluster(in, cluster, nil, nil, Targets{}, "").Annotations,
		"a class's labels":                 FleetCluster(in, bare, class, nil, Targets{}, "").Labels,
		"on Rancher's, labels":             Attachment(in, types.NamespacedName{Name: "c"}, "u", cluster, class, nil, Targets{}).Labels,
		"on Rancher's, annotations":        Attachment(in, types.NamespacedName{Name: "c"}, "u", cluster, class, nil, Targets{}).Annotations,
		"on Rancher's, what was there":     WithCopies(in, Attachment(in, types.NamespacedName{Name: "c"}, "u", bare, nil, nil, Targets{}), before).Labels,
		"on the class's group":             ClassGroup(in, class).Labels,
		"on the group of a use":            CrossNamespaceGroup(in, "team", key, class).Labels,
		"on the group in a workspace":      WorkspaceGroup(in, "w", "team", key, class).Labels,
		"on a Fleet Cluster without owner": {},
	}
	in.Cluster.SetOwnerReferences = false
	all["on a Fleet Cluster without owner"] = FleetCluster(in, cluster, class, nil, Targets{}, "").Labels
	for _, its := range all {
		maps.DeleteFunc(its, func(key, _ string) bool {
			return stamp.IsKey(key) || key == stamp.ManagedByLabel || key == turtlesClassLabel || key == turtlesClassNamespaceLabel
		})
	}
	return all
}

func TestKeysByWhichToolsDeleteAreNotCopied(t *testing.T) {
	for on, got := range copiesOn(settings.Default(), entries(ids, names)) {
		if diff := cmp.Diff(entries(names), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", on, diff)
		}
	}
	for _, key := range ids {
		if !IsPrunedBy(key) {
			t.Errorf("%s does not count as an ID", key)
		}
	}
	cluster := makeCluster("team", "prod").Obj()
	maps.Copy(cluster.Labels, entries(ids))
	maps.Copy(cluster.Labels, numbered(MaxCopiedKeys, "l", ""))
	if tooMuch := TooMuch(settings.Default(), cluster, nil); tooMuch != "" {
		t.Errorf("what is not copied counts: %s", tooMuch)
	}
}

func TestExcludedKeysAreNotCopied(t *testing.T) {
	in := settingsOf(t, `cluster: {copy: {exclude: [env, example.com/*, app.kubernetes.io/*]}}`)
	excluded := []string{"env", "example.com/a", "example.com/b", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by"}
	others := []string{"environment", "my.example.com/a", "example.com", "example.community/a", "env/a"}
	for on, got := range copiesOn(in, entries(ids, excluded, others)) {
		if diff := cmp.Diff(entries(others), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", on, diff)
		}
	}
	cluster := makeCluster("team", "prod").Label("env", "prod").Obj()
	maps.Copy(cluster.Labels, numbered(MaxCopiedKeys, "l", ""))
	if tooMuch := TooMuch(in, cluster, nil); tooMuch != "" {
		t.Errorf("what is excluded counts: %s", tooMuch)
	}
	if tooMuch := TooMuch(settings.Default(), cluster, nil); tooMuch == "" {
		t.Error("what is not excluded does not count")
	}
	if got := ClassGroup(in, makeClass("classes", "standard", map[string]string{"env": "prod"})); got.Labels[stamp.ManagedByLabel] != stamp.ManagedBy || got.Labels[stamp.ClassNameLabel] != "standard" {
		t.Errorf("Muster's own labels went, too: %v", got.Labels)
	}
}

// What has no owner carries Argo CD's opt-outs, whatever is copied under these keys; what has one carries what is copied.
func TestWithoutOwnerArgoCDSparesIt(t *testing.T) {
	copied := map[string]string{"argocd.argoproj.io/sync-options": "Prune=true", "argocd.argoproj.io/compare-options": "ServerSideDiff=true"}
	plain, annotated := makeCluster("team", "prod").Obj(), makeCluster("team", "prod").Obj()
	maps.Copy(annotated.Annotations, copied)
	orphaned := settingsOf(t, `cluster: {setOwnerReferences: false}`)
	large := makeCluster("team", "prod").Obj()
	large.Labels = numbered(MaxCopiedKeys+1, "l", "")
	paused := makeClass("classes", "standard", nil)
	paused.Annotations = map[string]string{clusterv1.PausedAnnotation: "true"}
	pausedLarge := paused.DeepCopy()
	pausedLarge.Labels = large.Labels
	key := types.NamespacedName{Namespace: "classes", Name: "standard"}
	for name, test := range map[string]struct {
		got  map[string]string
		want map[string]string
	}{
		"a Fleet Cluster":                               {FleetCluster(settings.Default(), plain, nil, nil, Targets{}, "").Annotations, nil},
		"a Fleet Cluster with copies":                   {FleetCluster(settings.Default(), annotated, nil, nil, Targets{}, "").Annotations, copied},
		"a Fleet Cluster without owner":                 {FleetCluster(orphaned, plain, nil, nil, Targets{}, "").Annotations, optOuts},
		"a Fleet Cluster with copies, without owner":    {FleetCluster(orphaned, annotated, nil, nil, Targets{}, "").Annotations, optOuts},
		"one of Rancher's":                              {Attachment(orphaned, types.NamespacedName{Name: "c"}, "u", plain, nil, nil, Targets{}).Annotations, nil},
		"a class's group":                               {ClassGroup(settings.Default(), makeClass("classes", "standard", nil)).Annotations, nil},
		"a paused class's group":                        {ClassGroup(settings.Default(), paused).Annotations, optOuts},
		"a class's group without owner":                 {ClassGroup(settingsOf(t, `clusterClass: {setOwnerReferences: false}`), makeClass("classes", "standard", nil)).Annotations, optOuts},
		"the group of a use":                            {CrossNamespaceGroup(settings.Default(), "team", key, nil).Annotations, optOuts},
		"the group in a workspace":                      {WorkspaceGroup(settings.Default(), "w", "team", key, nil).Annotations, optOuts},
		"a mapping":                                     {Mapping("classes", "team").Annotations, optOuts},
		"a mapping that begins":                         {BegunMapping("classes", "team", "3").Annotations, optOuts},
		"a mapping that is retired":                     {RetiredMapping("classes", "team").Annotations, optOuts},
		"with too much to copy":                         {FleetCluster(settings.Default(), large, nil, nil, Targets{}, "").Annotations, nil},
		"with too much to copy, without owner":          {FleetCluster(orphaned, large, nil, nil, Targets{}, "").Annotations, optOuts},
		"a paused class's group, with too much to copy": {ClassGroup(settings.Default(), pausedLarge).Annotations, optOuts},
	} {
		maps.DeleteFunc(test.got, func(key, _ string) bool { return stamp.IsKey(key) })
		if !maps.Equal(test.want, test.got) {
			t.Errorf("%s: %v, want %v", name, test.got, test.want)
		}
	}
}

func TestUnsparedBy(t *testing.T) {
	cluster := makeCluster("team", "prod").Annotation("argocd.argoproj.io/sync-options", "Prune=true").Obj()
	want := map[string]any{"argocd.argoproj.io/sync-options": "Prune=true", "argocd.argoproj.io/compare-options": nil}
	if diff := cmp.Diff(want, UnsparedBy(settings.Default(), cluster)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want["argocd.argoproj.io/sync-options"] = nil
	if diff := cmp.Diff(want, UnsparedBy(settingsOf(t, `cluster: {copy: {exclude: [argocd.argoproj.io/*]}}`), cluster)); diff != "" {
		t.Errorf("excluded (-want +got):\n%s", diff)
	}
}
