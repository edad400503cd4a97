package desired

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cluster-api/util/contract"

	"github.com/muster-fleet/muster/internal/settings"
)

var update = flag.Bool("update", false, "write the golden files")

// The shipped roles list the kinds of the table, and nothing else but CRDs.
func TestRolesListTheKindsOfTheTable(t *testing.T) {
	readable := readableResources(t)
	delete(readable, schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"})
	for _, kind := range settings.Kinds() {
		resource := schema.GroupResource{Group: kind.Group, Resource: kind.Plural}
		if !readable[resource] {
			t.Errorf("no role lists %s", resource)
		}
		delete(readable, resource)
		if computed := contract.CalculateCRDName(kind.Group, kind.Kind); computed != resource.String() {
			t.Errorf("the syncer looks for %s as %s", resource, computed)
		}
	}
	for _, resource := range slices.Collect(maps.Keys(readable)) {
		t.Errorf("a role lists %s, but the table does not", resource)
	}
}

// Testdata/strings.txt has every string of each kind whose secret fields always stay out. Each is filled with the
// marker, in turn, and the file shows which of them reach the template values although the FleetAddonConfig replaces
// the default.
func TestStringsOfKindsThatReachTheTemplateValues(t *testing.T) {
	const golden = "testdata/strings.txt"
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var its settings.Kind
	used, listed := map[string]bool{}, map[schema.GroupKind]bool{}
	var got []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		parent, leaves, isParent := strings.Cut(line, ": ")
		switch {
		case strings.HasPrefix(line, "#"):
		case !isParent:
			its = kindOfCRD(t, line)
			listed[its.GroupKind] = true
		default:
			names := strings.Fields(leaves)
			for i, name := range names {
				name = strings.TrimPrefix(name, "-")
				pointer := strings.TrimSpace(parent) + "/" + name
				if !reaches(t, its.GroupKind, pointer) {
					used[its.String()+coveredBy(its, pointer)] = true
					name = "-" + name
				}
				names[i] = name
			}
			line = parent + ": " + strings.Join(names, " ")
		}
		got = append(got, line+"\n")
	}
	if diff := cmp.Diff(string(text), strings.Join(got, "")); diff != "" && !*update {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
	if *update {
		if err := os.WriteFile(golden, []byte(strings.Join(got, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range settings.Kinds() {
		if listed[kind.GroupKind] == kind.IsReplaceable {
			t.Errorf("%s: in %s: %t, replaceable: %t", kind, golden, listed[kind.GroupKind], kind.IsReplaceable)
		}
		for _, pointer := range kind.Secret {
			if !kind.IsReplaceable && !used[kind.String()+pointer] {
				t.Errorf("%s: %s leaves nothing out", kind, pointer)
			}
		}
	}
}

func kindOfCRD(t *testing.T, name string) settings.Kind {
	t.Helper()
	for _, kind := range settings.Kinds() {
		if kind.Plural+"."+kind.Group == name {
			return kind
		}
	}
	t.Fatalf("%s is not in the table", name)
	return settings.Kind{}
}

// reaches reports whether the marker in a field of an object reaches the values, whichever reference names the object.
func reaches(t *testing.T, kind schema.GroupKind, pointer string) bool {
	t.Helper()
	object := map[string]any{"apiVersion": kind.WithVersion("v1").GroupVersion().String(), "kind": kind.Kind}
	if err := unstructured.SetNestedField(object, marker, segments(pointer)...); err != nil {
		t.Fatal(err)
	}
	var found []bool
	for _, objects := range [][2]map[string]any{{object, nil}, {nil, object}} {
		values, err := Values(makeCluster("team", "prod").Obj(), objects[0], objects[1], []string{})
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, strings.Contains(string(data), marker))
	}
	if found[0] != found[1] {
		t.Errorf("%s %s reaches the values as the control plane: %t, as the infrastructure: %t", kind, pointer, found[0], found[1])
	}
	return found[0]
}

// coveredBy returns the pointer of a kind that leaves a field out.
func coveredBy(kind settings.Kind, pointer string) string {
	for _, secret := range kind.Secret {
		if pointer == secret || strings.HasPrefix(pointer, secret+"/") {
			return secret
		}
	}
	return ""
}

// What always stays out of one kind stays in another: bundles may read it there.
func TestAlwaysOutIsOfOneKind(t *testing.T) {
	always := settings.AlwaysOut(schema.GroupKind{Group: infrastructureGroup, Kind: "VCDCluster"})
	if len(always) == 0 {
		t.Fatal("nothing of a VCDCluster always stays out")
	}
	for _, kind := range []schema.GroupKind{{Group: infrastructureGroup, Kind: "VSphereCluster"}, {Group: "example.org", Kind: "VCDCluster"}} {
		for _, pointer := range always {
			if !reaches(t, kind, pointer) {
				t.Errorf("%s of %s stays out", pointer, kind)
			}
		}
	}
}
