package desired

import (
	"crypto/sha256"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/muster-fleet/muster/internal/settings"
)

// The hash is stored on objects: if a release changed it, Muster would write every object once more.
func TestHashIsGolden(t *testing.T) {
	for value, want := range map[any]string{
		"a":  "ac8d8342bbb2362d13f0a559a3621bb4",
		1:    "6b86b273ff34fce19d6b804eff5a3f57",
		true: "b5bea41b6c623f7c09f1bf24dcae58eb",
	} {
		if got := Hash(value); got != want {
			t.Errorf("Hash(%v) = %s, want %s", value, got, want)
		}
	}
}

// Template values forged to look short do not pass for the values with that hash.
func TestShortValuesCannotBeForged(t *testing.T) {
	values := map[string]any{"Cluster": "prod"}
	forged := map[string]any{HashAnnotation: HashOfValues(values)}
	if HashOfValues(forged) == HashOfValues(values) {
		t.Error("the forged ones have the hash of the whole")
	}
	if HashOfValues(ShortValues(values)) != HashOfValues(values) || !cmp.Equal(ShortValues(ShortValues(values)), ShortValues(values)) {
		t.Error("short values are not those of the whole")
	}
}

func TestHashOfWhatIsTheSame(t *testing.T) {
	same := []any{
		map[string]any{"a": int64(3), "b": []any{int64(1), "x"}, "c": map[string]any{"y": nil, "z": true}},
		map[string]any{"c": map[string]any{"z": true, "y": nil}, "b": []any{float64(1), "x"}, "a": float64(3)},
		map[string]any{"a": int32(3), "b": []any{uint8(1), "x"}, "c": map[string]any{"y": nil, "z": true}},
		json.RawMessage(`{ "c":{"z":true, "y":null}, "a":3.0, "b":[1e0,"x"] }`),
		&fleetv1.GenericMap{Data: map[string]any{"a": 3, "b": []any{1, "x"}, "c": map[string]any{"y": nil, "z": true}}},
	}
	for i, value := range same[1:] {
		if Hash(value) != Hash(same[0]) {
			t.Errorf("value %d hashes differently from the first", i+1)
		}
	}
	different := []any{
		map[string]any{"a": int64(3)}, map[string]any{"a": int64(4)}, map[string]any{"a": "3"}, map[string]any{"a": 3.5}, map[string]any{"a": nil}, map[string]any{},
		map[string]any{"a": []any{1, 2}}, map[string]any{"a": []any{2, 1}}, map[string]any{"a": []any{}}, map[string]any{"b": int64(3)}, nil, "", 0, false,
	}
	seen := map[string]any{}
	for _, value := range different {
		if other, taken := seen[Hash(value)]; taken {
			t.Errorf("%v and %v hash alike", value, other)
		}
		seen[Hash(value)] = value
	}
}

// The hash covers every desired field: if one is dropped, the hash must change.
func TestSealCoversEverything(t *testing.T) {
	hashOf := func(spec string, change func(*clusterBuilder)) string {
		cluster := makeCluster("team", "prod").Label("a", "1").Annotation("b", "2").Class("classes", "standard")
		if change != nil {
			change(cluster)
		}
		return FleetCluster(settingsOf(t, spec), cluster.Obj(), makeClass("classes", "standard", map[string]string{"c": "3"}), map[string]any{"v": 1}, Targets{}, "").Annotations[HashAnnotation]
	}
	seen := map[string]string{hashOf(`{}`, nil): "unchanged"}
	if seen[hashOf(`{}`, nil)] == "" {
		t.Fatal("the same Cluster has another hash the second time")
	}
	for name, hash := range map[string]string{
		"label gone":      hashOf(`{}`, func(b *clusterBuilder) { delete(b.Cluster.Labels, "a") }),
		"annotation gone": hashOf(`{}`, func(b *clusterBuilder) { delete(b.Cluster.Annotations, "b") }),
		"class gone":      hashOf(`{}`, func(b *clusterBuilder) { b.Class("", "") }),
		"owner gone":      hashOf(`cluster: {setOwnerReferences: false}`, nil),
		"tolerations":     hashOf(`cluster: {agentTolerations: []}`, nil),
		"environment":     hashOf(`cluster: {agentEnvVars: [{name: A}]}`, nil),
		"no pull secrets": hashOf(`cluster: {agentPullSecrets: []}`, nil),
		"pull secrets":    hashOf(`cluster: {agentPullSecrets: [{name: a}]}`, nil),
		"namespace":       hashOf(`cluster: {agentNamespace: a}`, nil),
		"host network":    hashOf(`cluster: {hostNetwork: false}`, nil),
	} {
		if other := seen[hash]; other != "" {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[hash] = name
	}
}

func TestTargetsAreNoted(t *testing.T) {
	marked := func(group, mapping string) map[string]string {
		targets := Targets{Group: types.UID(group), Mapping: types.UID(mapping)}
		return FleetCluster(settings.Default(), makeCluster("team", "prod").Obj(), nil, nil, targets, "").Annotations
	}
	none := marked("", "")
	if value, ok := none[TargetingAnnotation]; ok {
		t.Errorf("the note of no targets is %q", value)
	}
	seen := map[string]bool{}
	for _, pair := range [][2]string{{"g", ""}, {"", "g"}, {"g", "m"}, {"m", "g"}, {"g2", "m"}, {"g", "m2"}} {
		annotations := marked(pair[0], pair[1])
		if annotations[TargetingAnnotation] == "" || seen[annotations[TargetingAnnotation]] {
			t.Errorf("the note of %v is %q", pair, annotations[TargetingAnnotation])
		}
		if annotations[HashAnnotation] == none[HashAnnotation] || seen[annotations[HashAnnotation]] {
			t.Errorf("the hash of %v does not cover the note", pair)
		}
		seen[annotations[TargetingAnnotation]], seen[annotations[HashAnnotation]] = true, true
		if diff := cmp.Diff(annotations, marked(pair[0], pair[1])); diff != "" {
			t.Errorf("%v the second time (-first +second):\n%s", pair, diff)
		}
	}
}

// The canonical JSON equals the output of encoding/json for a value that has been through JSON once,
// whatever the value holds.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`null`, `true`, `"a"`, `"\u2028<&>\"\\\u0000ä日本"`, `-0`, `1e21`, `1e-7`, `0.1`, `9007199254740992`, `-9007199254740993`, `9223372036854775807`,
		`[]`, `{}`, `{"b":[1,2.5,{"a":null}],"a":{"":"x"},"ä":[[]]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		var floats, integers any
		if json.Unmarshal(document, &floats) != nil {
			return
		}
		want, err := json.Marshal(positiveZeros(floats))
		if err != nil {
			t.Fatal(err)
		}
		if got := canonical(floats); string(got) != string(want) {
			t.Errorf("%s, want %s", got, want)
		}
		// As the caches of unstructured objects decode it.
		if utiljson.Unmarshal(document, &integers) != nil {
			return
		}
		if got := canonical(integers); string(got) != string(want) {
			t.Errorf("with integers %s, want %s", got, want)
		}
		if got := canonical(json.RawMessage(document)); string(got) != string(want) {
			t.Errorf("raw %s, want %s", got, want)
		}
	})
}

// positiveZeros replaces -0, which is 0 where integers are distinguished from floats.
func positiveZeros(value any) any {
	switch typed := value.(type) {
	case float64:
		if typed == 0 {
			return 0.0
		}
	case map[string]any:
		for key, child := range typed {
			typed[key] = positiveZeros(child)
		}
	case []any:
		for i, child := range typed {
			typed[i] = positiveZeros(child)
		}
	}
	return value
}

func BenchmarkHash(b *testing.B) {
	files := []any{}
	for range 40 {
		files = append(files, map[string]any{"path": "/etc/kubernetes/x.yaml", "owner": "root:root", "permissions": "0600", "mode": int64(384), "content": strings.Repeat("line of a file\n", 12)})
	}
	values := map[string]any{"ControlPlane": map[string]any{"spec": map[string]any{"files": files}}}
	b.Run("canonical", func(b *testing.B) {
		for b.Loop() {
			Hash(values)
		}
	})
	b.Run("through JSON twice", func(b *testing.B) {
		for b.Loop() {
			var plain any
			if err := json.Unmarshal(encode(values), &plain); err != nil {
				b.Fatal(err)
			}
			sha256.Sum256(encode(plain))
		}
	})
}

// The hash covers exactly the applied bytes: a new version of Fleet's Go module must not cause another
// write of every Fleet Cluster.
func TestWhatIsHashedIsGolden(t *testing.T) {
	cluster := makeCluster("team", "prod").Label("a", "1").Class("classes", "standard").Obj()
	fleet := FleetCluster(settingsOf(t, `{cluster: {agentTolerations: [{key: k, operator: Exists}]}}`), cluster, nil, map[string]any{"v": 1}, Targets{Group: "g"}, "")
	delete(fleet.Annotations, HashAnnotation)
	const want = `{"apiVersion":"fleet.cattle.io/v1alpha1","kind":"Cluster",` +
		`"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/imported-from":"prod","fleet.addons.cluster.x-k8s.io/targeting":"451b0efa24fd6bd4867eec5aaa8a91e0"},` +
		`"labels":{"a":"1","app.kubernetes.io/managed-by":"muster","clusterclass-name.fleet.addons.cluster.x-k8s.io":"standard","clusterclass-namespace.fleet.addons.cluster.x-k8s.io":"classes"},` +
		`"name":"prod","namespace":"team","ownerReferences":[{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","name":"prod","uid":"uid-of-prod"}]},` +
		`"spec":{"agentNamespace":"fleet-addon-agent","agentTolerations":[{"key":"k","operator":"Exists"}],"hostNetwork":true,` +
		`"kubeConfigSecret":"prod-kubeconfig","templateValues":{"fleet.addons.cluster.x-k8s.io/applied-hash":"afbf9d0f3560b0fd7795e81c42a0a79e"}}}`
	if got := string(canonical(summary(fleet))); got != want {
		t.Errorf("hashed:\n%s\nwant:\n%s", got, want)
	}
}

// newerCluster is Fleet's Cluster as another version of its Go module may have it.
type newerCluster struct {
	fleetv1.Cluster
	Status struct {
		Added int `json:"added"`
	} `json:"status,omitempty"`
}

func (c *newerCluster) DeepCopyObject() runtime.Object { return c }

func TestAFieldAddedToTheStatusChangesNoHash(t *testing.T) {
	fleet := FleetCluster(settingsOf(t, `{}`), makeCluster("team", "prod").Obj(), nil, nil, Targets{}, "")
	hash := fleet.Annotations[HashAnnotation]
	delete(fleet.Annotations, HashAnnotation)
	if got := seal(&newerCluster{Cluster: *fleet}).GetAnnotations()[HashAnnotation]; got != hash {
		t.Errorf("the hash is %s, was %s", got, hash)
	}
}
