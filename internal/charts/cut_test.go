package charts

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// An object of nothing but empty items, as large as etcd accepts, takes little memory.
func TestForgedHeap(t *testing.T) {
	const count, limit = 10, 1.4 // MiB each
	many := "[{}" + strings.Repeat(",{}", 450_000) + "]"
	heap := func() float64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc) / (1 << 20)
	}
	for name, test := range map[string]struct {
		object   client.Object
		document string
	}{
		"values":                {&fleetv1.Bundle{}, `{"spec":{"helm":{"values":{"a":` + many + `}}}}`},
		"a HelmOp's values":     {&fleetv1.HelmOp{}, `{"spec":{"helm":{"values":{"a":` + many + `}}}}`},
		"sources of values":     {&fleetv1.Bundle{}, `{"spec":{"helm":{"valuesFrom":` + many + `}}}`},
		"restrictions":          {&fleetv1.Bundle{}, `{"spec":{"targetRestrictions":` + many + `}}`},
		"copied objects":        {&fleetv1.Bundle{}, `{"spec":{"downstreamResources":` + many + `}}`},
		"a target's values":     {&fleetv1.Bundle{}, `{"spec":{"targets":[{"helm":{"values":{"a":` + many + `}}}]}}`},
		"a target's sources":    {&fleetv1.Bundle{}, `{"spec":{"targets":[{"helm":{"valuesFrom":` + many + `}}]}}`},
		"targets with values":   {&fleetv1.Bundle{}, `{"spec":{"targets":[{}` + strings.Repeat(`,{"helm":{"values":{"a":[{},{},{},{},{},{},{},{},{},{}]}}}`, 20_000) + `]}}`},
		"conditions":            {&fleetv1.BundleDeployment{}, `{"status":{"conditions":` + many + `}}`},
		"what is not ready":     {&fleetv1.BundleDeployment{}, `{"status":{"nonReadyStatus":` + many + `}}`},
		"words of why":          {&fleetv1.BundleDeployment{}, `{"status":{"nonReadyStatus":[{"summary":{"message":[""` + strings.Repeat(`,""`, 450_000) + `]}}]}}`},
		"what an agent deploys": {&fleetv1.BundleDeployment{}, `{"spec":{"options":{"downstreamResources":` + many + `}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			kept := make([]client.Object, count)
			before := heap()
			for i := range kept {
				kept[i] = test.object.DeepCopyObject().(client.Object)
				if err := json.Unmarshal([]byte(test.document), kept[i]); err != nil {
					t.Fatal(err)
				}
				kept[i].SetName("hcp-forged")
				if _, err := Trim(kept[i]); err != nil {
					t.Fatal(err)
				}
			}
			each := (heap() - before) / count
			runtime.KeepAlive(kept)
			if each > limit {
				t.Errorf("one takes %.1f MiB of the cache", each)
			}
		})
	}
}

// An edit is put back even if the cache has cut it.
func TestCutIsPutBack(t *testing.T) {
	big := map[string]any{"a": slices.Repeat([]any{map[string]any{}}, mostValues)}
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		for name, edit := range map[string]func(*fleetv1.BundleSpec){
			"values":   func(spec *fleetv1.BundleSpec) { spec.Helm.Values = &fleetv1.GenericMap{Data: big} },
			"labels":   func(spec *fleetv1.BundleSpec) { spec.NamespaceLabels = manyLabels() },
			"a target": func(spec *fleetv1.BundleSpec) { spec.Targets[1].DoNotDeploy = true },
			"a target more": func(spec *fleetv1.BundleSpec) {
				spec.Targets[1].Helm = &fleetv1.HelmOptions{Values: &fleetv1.GenericMap{Data: big}}
			},
		} {
			t.Run(string(download)+" "+name, func(t *testing.T) {
				s := newScene(t)
				proxy := s.proxy()
				proxy.Spec.Download = download
				var object client.Object = &fleetv1.Bundle{}
				spec := func() *fleetv1.BundleSpec { return &object.(*fleetv1.Bundle).Spec }
				if download == addonsv1.DownloadManager {
					s.create(proxy)
					s.looks()
				} else {
					s.handsOver(proxy)
					object = &fleetv1.HelmOp{}
					spec = func() *fleetv1.BundleSpec { return &object.(*fleetv1.HelmOp).Spec.BundleSpec }
				}
				key := client.ObjectKey{Namespace: "team", Name: bundleName}
				read := func() {
					t.Helper()
					if err := s.api.Get(t.Context(), key, object); err != nil {
						t.Fatal(err)
					}
				}
				read()
				before := spec().DeepCopy()
				s.change(object, func() { edit(spec()) })
				s.looks()
				s.looks()
				object = reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
				read()
				if diff := cmp.Diff(before, spec()); diff != "" {
					t.Errorf("the spec (-before +after):\n%s", diff)
				}
				if isCut(object) {
					t.Error("the cache's own mark was written")
				}
			})
		}
	}
}

func manyLabels() map[string]string {
	labels := map[string]string{}
	for i := range mostValues {
		labels[fmt.Sprint(i)] = "x"
	}
	return labels
}
