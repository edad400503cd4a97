package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// others is an inventory with the objects that a test lists; unknown means that the API server does not serve their
// kinds.
type others struct {
	fleetClusters, pinned []object
	classes               []types.NamespacedName
	annotations           map[string]string // of the Namespace that Fleet derives
	unknown               bool
	err                   error
}

func (o *others) fleetCluster(_ context.Context, key types.NamespacedName) (found *object, known bool, err error) {
	for i := range o.fleetClusters {
		if !o.unknown && client.ObjectKeyFromObject(&o.fleetClusters[i]) == key {
			return &o.fleetClusters[i], o.err == nil, o.err
		}
	}
	return nil, !o.unknown && o.err == nil, o.err
}

func (o *others) claims(_ context.Context, fleetNamespace string) (all []stamp.FleetClaim, _ map[string]string, _ error) {
	for kind, made := range map[schema.GroupVersionKind][]object{fleetClusterKind: o.fleetClusters, clusterKind: o.pinned} {
		for i := range made {
			if slices.Contains(claimedBy(claimsOf[kind])(&made[i]), fleetNamespace) && !o.unknown {
				all = append(all, claimsOf[kind](&made[i]))
			}
		}
	}
	return all, o.annotations, o.err
}

func (o *others) hasCluster(_ context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
	for i := range o.pinned {
		if !o.unknown && client.ObjectKeyFromObject(&o.pinned[i]) == key && (uid == "" || o.pinned[i].UID == uid) {
			return true, o.err
		}
	}
	return false, o.err
}

func (o *others) pinnedTo(_ context.Context, namespace, fleetCluster string) ([]object, error) {
	var result []object
	for i, cluster := range o.pinned {
		if !o.unknown && cluster.Namespace == namespace && stamp.PinOf(o.pinned[i].Annotations).ClusterName == fleetCluster {
			result = append(result, cluster)
		}
	}
	return result, o.err
}

func (o *others) hasClass(_ context.Context, key types.NamespacedName) (found, known bool, err error) {
	for _, class := range o.classes {
		found = found || class == key
	}
	return found, !o.unknown && o.err == nil, o.err
}

func (o *others) clusters(context.Context) (all []object, known bool, err error) {
	return o.pinned, !o.unknown, o.err
}

func made(name string, change func(*object)) object {
	result := object{}
	result.Namespace, result.Name = "team", name
	if change != nil {
		change(&result)
	}
	return result
}

func annotated(key, value string) func(*object) {
	return func(o *object) { o.Annotations = map[string]string{key: value} }
}

func pinnedCluster(name, pin string) object {
	return made(name, func(o *object) {
		o.Annotations = map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: pin}
	})
}

func TestClusterValidator(t *testing.T) {
	const (
		plain    = `{"metadata":{"name":"prod","namespace":"team"}}`
		labeled  = `{"metadata":{"name":"prod","namespace":"team","labels":{"import":"true"}}}`
		pinned   = `{"metadata":{"name":"prod","namespace":"team","annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"prod","fleet.addons.cluster.x-k8s.io/owned-by":"fleet-addon-config"}}}`
		restored = `{"metadata":{"name":"prod","namespace":"team","annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"old"}}}`
		classy   = `{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard"}}}}`
		beta1    = `{"apiVersion":"cluster.x-k8s.io/v1beta1","metadata":{"name":"prod"},"spec":{"topology":{"class":"standard","classNamespace":"classes"}}}`

		asking   = `{"metadata":{"name":"prod","annotations":{"fleet.addons.cluster.x-k8s.io/registration":"agent"}}}`
		misspelt = `{"metadata":{"name":"prod","annotations":{"fleet.addons.cluster.x-k8s.io/registration":"Agent"}}}`

		unknown    = `annotation fleet.addons.cluster.x-k8s.io/registration: "Agent" is neither "agent" nor "manager" and has no effect; the FleetAddonConfig decides, and it says "manager"`
		foreign    = `Fleet Cluster "prod" was created by someone else; to hand it over with what is deployed there: kubectl annotate clusters.fleet.cattle.io -n team prod fleet.addons.cluster.x-k8s.io/adopt=true; delete it only if its cluster is gone; or name this Cluster differently`
		unselected = `this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (import=true)`
		missing    = `ClusterClass "standard" does not exist in namespace "team" (yet): until it does, Cluster API creates no control plane and the Cluster is not imported into Fleet`
	)
	manyLabels := func(count int, more string) string {
		var entries []string
		for i := range count {
			entries = append(entries, fmt.Sprintf(`"l%03d":""`, i))
		}
		return `{"metadata":{"name":"prod","namespace":"team","labels":{` + strings.Join(entries, ",") + `}}` + more + `}`
	}
	const (
		many    = "it has 257 labels and 0 annotations to copy, of 1028 bytes together, and Muster copies at most 512 labels, 512 annotations and 131072 bytes; above that, nothing is copied to Fleet any more"
		tooMany = "nothing is copied to Fleet: it has 513 labels and 0 annotations to copy, of 2052 bytes together, and Muster copies at most 512 labels, 512 annotations and 131072 bytes; what Fleet has stays as it is, and nothing new is imported: remove some"
	)
	const (
		// Fleet derives the same namespace for these two names.
		colliding, ofOthers = "a-production-eu-west-1-payments-cluster-00013967", "production-eu-west-1-payments-cluster-0001"
		collides            = `{"metadata":{"name":"` + colliding + `","namespace":"team"}}`
		shares              = `Fleet would give it Namespace "cluster-team-a-production-eu-west-1-payments-cluster-0001-a7464", which belongs to a Fleet Cluster of another name or namespace; name this Cluster differently, for example "a-production-eu-west-1-payments-cluster-00013967-2" (namespace and name of at most 41 characters together never share a Namespace)`
	)
	elsewhere := func(o object) object { o.Namespace = "team-a"; return o }
	fleetOf := func(namespace, name string) map[string]string {
		return map[string]string{"fleet.cattle.io/cluster-namespace": namespace, "fleet.cattle.io/cluster": name}
	}
	taken := &others{fleetClusters: []object{made("prod", nil)}}
	fleetClusterBeing := func(change func(*object)) *others { return &others{fleetClusters: []object{made("prod", change)}} }
	selecting := configured(t, `cluster: {selector: {matchLabels: {import: "true"}}}`)
	now := metav1.Now()
	going := func(o *object) { o.DeletionTimestamp = &now }
	tests := map[string]struct {
		reader   client.Reader
		others   *others
		request  admission.Request
		refused  string
		warnings []string
	}{
		"alone":                 {request: create(plain)},
		"somebody's":            {others: taken, request: create(plain), refused: foreign},
		"somebody's, going":     {others: fleetClusterBeing(going), request: create(plain)},
		"somebody's, elsewhere": {others: fleetClusterBeing(func(o *object) { o.Namespace = "elsewhere" }), request: create(plain)},
		"handed over":           {others: fleetClusterBeing(annotated(stamp.AdoptAnnotation, "true")), request: create(plain)},
		"made from it before": {others: fleetClusterBeing(func(o *object) {
			annotated(stamp.ImportedFromAnnotation, "prod")(o)
			o.Labels = map[string]string{stamp.ManagedByLabel: "muster"}
		}), request: create(plain)},
		"made from another": {others: fleetClusterBeing(annotated(stamp.ImportedFromAnnotation, "pr.od")), request: create(plain), refused: `Fleet Cluster "prod" belongs to Cluster "pr.od"; to hand it over with what is deployed there: kubectl annotate clusters.fleet.cattle.io -n team prod fleet.addons.cluster.x-k8s.io/adopt=true; delete it only if its cluster is gone; or name this Cluster differently`},
		"owned by another": {others: fleetClusterBeing(func(o *object) {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "pr.od", UID: "1"}}
		}), request: create(plain), refused: `Fleet Cluster "prod" belongs to Cluster "pr.od"; to hand it over with what is deployed there: kubectl annotate clusters.fleet.cattle.io -n team prod fleet.addons.cluster.x-k8s.io/adopt=true; delete it only if its cluster is gone; or name this Cluster differently`},
		"owned by another, which lives": {others: &others{pinned: []object{func() object { o := pinnedCluster("pr.od", ""); o.UID = "1"; return o }()}, fleetClusters: []object{made("prod", func(o *object) {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "pr.od", UID: "1"}}
		})}}, request: create(pinned), refused: `Fleet Cluster "prod" belongs to Cluster "pr.od", which exists; name this Cluster differently`},
		"Rancher has made it":                          {others: fleetClusterBeing(func(o *object) { o.Labels = map[string]string{"management.cattle.io/cluster-name": "c-m-1"} }), request: create(plain)},
		"pinned by another":                            {others: &others{pinned: []object{pinnedCluster("pr.od", "prod")}}, request: create(plain), refused: `Cluster "pr.od" of this namespace has the Fleet Cluster "prod", which would be this Cluster's as well; name this Cluster differently`},
		"pinned by another that is being deleted":      {others: &others{pinned: []object{func() object { o := pinnedCluster("pr.od", "prod"); going(&o); return o }()}}, request: create(plain)},
		"pinned by itself":                             {others: &others{pinned: []object{pinnedCluster("prod", "prod")}}, request: create(plain)},
		"with its pin":                                 {others: &others{pinned: []object{pinnedCluster("pr.od", "old")}}, request: create(restored), refused: `Cluster "pr.od" of this namespace has the Fleet Cluster "old", which would be this Cluster's as well; name this Cluster differently, or remove its annotation fleet.addons.cluster.x-k8s.io/cluster-name`},
		"shares a Fleet namespace":                     {others: &others{fleetClusters: []object{elsewhere(made(ofOthers, nil))}}, request: create(collides), refused: shares},
		"shares it with one that is being deleted":     {others: &others{fleetClusters: []object{elsewhere(made(ofOthers, going))}}, request: create(collides), refused: shares},
		"shares it with a pin":                         {others: &others{pinned: []object{elsewhere(pinnedCluster("x", ofOthers))}}, request: create(collides), refused: shares},
		"shares it with a Namespace":                   {others: &others{annotations: fleetOf("team-a", ofOthers)}, request: create(collides), refused: shares},
		"it is its own Namespace":                      {others: &others{annotations: fleetOf("team", colliding), fleetClusters: []object{elsewhere(made(ofOthers, nil))}}, request: create(collides)},
		"shares it, not served yet":                    {others: &others{unknown: true, fleetClusters: []object{elsewhere(made(ofOthers, nil))}}, request: create(collides)},
		"with a prefix":                                {reader: configured(t, `cluster: {naming: {prefix: p-}}`), others: &others{fleetClusters: []object{made("p-prod", nil)}}, request: create(plain), refused: strings.NewReplacer(`"prod"`, `"p-prod"`, "-n team prod", "-n team p-prod").Replace(foreign)},
		"not served yet":                               {others: &others{unknown: true, fleetClusters: taken.fleetClusters}, request: create(classy)},
		"inventory broken":                             {others: &others{err: errors.New("broken")}, request: create(classy)},
		"settings unreadable":                          {reader: &cached{err: errors.New("broken")}, others: taken, request: create(plain)},
		"Namespace unknown":                            {reader: &cached{config: configured(t, `cluster: {namespaceSelector: {matchLabels: {team: a}}}`).config}, others: taken, request: create(plain)},
		"an update is never refused":                   {others: taken, request: update(plain, labeled)},
		"names a way of registration":                  {request: create(asking)},
		"names an unknown way":                         {request: create(misspelt), warnings: []string{unknown}},
		"names an unknown way in an update":            {request: update(asking, misspelt), warnings: []string{unknown}},
		"named that way before":                        {request: update(misspelt, misspelt)},
		"names it, and all agents register themselves": {reader: configured(t, `cluster: {agentInitiated: true}`), request: create(misspelt), warnings: []string{strings.TrimSuffix(unknown, `"manager"`) + `"agent"`}},
		"not selected":                                 {reader: selecting, others: taken, request: create(plain), warnings: []string{unselected}},
		"selected":                                     {reader: selecting, request: create(labeled)},
		"its Namespace is not":                         {reader: configured(t, `cluster: {namespaceSelector: {matchLabels: {team: b}}}`), request: create(plain), warnings: []string{`this Cluster is not imported into Fleet: the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (team=b)`}},
		"nothing is imported":                          {reader: configured(t, `cluster: {enabled: false}`), request: create(plain), warnings: []string{"this Cluster is not imported into Fleet: spec.cluster.enabled of the FleetAddonConfig is false"}},
		"relabelled out":                               {reader: selecting, request: update(labeled, plain), warnings: []string{unselected}},
		"relabelled out, kept":                         {reader: selecting, request: update(strings.Replace(pinned, `"annotations"`, `"labels":{"import":"true"},"annotations"`, 1), pinned), warnings: []string{`this Cluster's Fleet Cluster "prod" stays as it is from now on: its labels do not match spec.cluster.selector of the FleetAddonConfig (import=true)`}},
		"relabelled out, deleted":                      {reader: configured(t, `cluster: {onDeselect: Delete, selector: {matchLabels: {import: "true"}}}`), request: update(strings.Replace(pinned, `"annotations"`, `"labels":{"import":"true"},"annotations"`, 1), pinned), warnings: []string{`this Cluster is removed from Fleet, and its Fleet Cluster "prod" is deleted (spec.cluster.onDeselect is Delete): its labels do not match spec.cluster.selector of the FleetAddonConfig (import=true)`}},
		"an update of something else":                  {reader: selecting, request: update(plain, restored)},
		"class missing":                                {request: create(classy), warnings: []string{missing}},
		"class missing, settings as well":              {reader: &cached{err: errors.New("broken")}, request: create(classy), warnings: []string{missing}},
		"class there":                                  {others: &others{classes: []types.NamespacedName{{Namespace: "team", Name: "standard"}}}, request: create(classy)},
		"class there, v1beta1":                         {others: &others{classes: []types.NamespacedName{{Namespace: "classes", Name: "standard"}}}, request: create(beta1)},
		"rebased to one that is missing":               {request: update(plain, classy), warnings: []string{missing}},
		"class still missing":                          {request: update(classy, classy)},
		"refused and warned":                           {others: taken, request: create(classy), refused: foreign, warnings: []string{missing}},
		"shortened: the Stamper warns about that":      {request: create(`{"metadata":{"name":"prod.eu"}}`)},
		"half of what is copied":                       {request: create(manyLabels(256, ""))},
		"more than half":                               {request: create(manyLabels(257, "")), warnings: []string{many}},
		"more than half in an update":                  {request: update(plain, manyLabels(257, "")), warnings: []string{many}},
		"as many as before":                            {request: update(manyLabels(257, ""), manyLabels(257, `,"spec":{"paused":true}`))},
		"too many labels":                              {request: update(manyLabels(257, ""), manyLabels(513, "")), warnings: []string{tooMany}},
		"too many labels, not selected":                {reader: selecting, request: create(manyLabels(513, "")), warnings: []string{unselected}},
		"without a name":                               {others: taken, request: create(`{"metadata":{"generateName":"prod"}}`)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.reader == nil {
				test.reader = &cached{}
			}
			if test.others == nil {
				test.others = &others{}
			}
			response := (&ClusterValidator{Settings: settings.NewReader(test.reader), Namespaces: test.reader, Others: test.others}).Handle(t.Context(), test.request)
			refused := ""
			if !response.Allowed {
				refused = response.Result.Message
			}
			if diff := cmp.Diff(test.refused, refused); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.warnings, response.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if len(response.Patches) > 0 {
				t.Errorf("a validating webhook answers with patches: %v", response.Patches)
			}
		})
	}
}

func TestClusterValidatorRefusesWhatIsNoCluster(t *testing.T) {
	for name, req := range map[string]admission.Request{"now": create(`[]`), "before": update(``, `{}`)} {
		response := (&ClusterValidator{Settings: settings.NewReader(&cached{}), Namespaces: &cached{}, Others: &others{}}).Handle(t.Context(), req)
		if response.Allowed || response.Result.Code != 400 {
			t.Errorf("%s: the answer is %+v", name, response.AdmissionResponse)
		}
	}
}

func FuzzClusterValidator(f *testing.F) {
	f.Add([]byte(`{}`), []byte(`{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard"}}}}`), "team")
	f.Add([]byte(`[]`), []byte(`{"metadata":{"name":"prod.eu","labels":{"a":"b"},"annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"x"}}}`), "")
	configuration := configured(f, `cluster: {onDeselect: Delete, selector: {matchLabels: {import: "true"}}, naming: {prefix: p-}}`)
	validators := []*ClusterValidator{
		{Settings: settings.NewReader(&cached{}), Namespaces: &cached{}, Others: &others{fleetClusters: []object{made("prod", nil)}, pinned: []object{pinnedCluster("x", "x")}}},
		{Settings: settings.NewReader(configuration), Namespaces: configuration, Others: &others{}},
	}
	f.Fuzz(func(t *testing.T, old, object []byte, namespace string) {
		for _, validator := range validators {
			req := update(string(old), string(object))
			req.Namespace = namespace
			if response := validator.Handle(t.Context(), req); !response.Allowed && response.Result.Code != 400 {
				t.Errorf("an update is refused: %v", response.Result)
			}
			req.Operation = admissionv1.Create
			if response := validator.Handle(t.Context(), req); !response.Allowed && response.Result.Message == "" {
				t.Error("refused without a message")
			}
		}
	})
}
