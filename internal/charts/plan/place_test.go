package plan

import (
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestPlaces(t *testing.T) {
	const first = "hcp-web.for.one"
	for name, want := range map[string]int{
		first: 0, first + ".1": 1, first + ".7": 7,
		first + ".0": -1, first + ".8": -1, first + ".01": -1, first + ".-1": -1, first + ".": -1, first + ".x": -1, first + "r": -1, "hcp-web.for": -1,
	} {
		got, found := NumberOf(name, first)
		if found != (want >= 0) || found && got != want {
			t.Errorf("%s: %d %v", name, got, found)
		}
	}
	for key, want := range map[string]int{
		"values.yaml": 0, "values-1.yaml": 1, "00-12.yaml": 12,
		"values-0.yaml": 0, "values-01.yaml": 0, "values-x.yaml": 0, "-1.yaml": 0, "values-" + strings.Repeat("9", 30) + ".yaml": 0, "": 0,
	} {
		helm := &fleetv1.HelmOptions{ValuesFrom: values{"ConfigMap", first + ".2", []string{key}}.from()}
		got, kind := placeIn(helm, first)
		if kind != "ConfigMap" || got != (Place{2, want}) {
			t.Errorf("%s: %v %v", key, got, kind)
		}
	}
	if _, kind := placeIn(&fleetv1.HelmOptions{ValuesFrom: []fleetv1.ValuesFrom{{}}}, first); kind != "" {
		t.Error("nothing is named")
	}
	never := func(int) bool { return false }
	place := Place{}
	for _, want := range []Place{{1, 1}, {0, 2}, {1, 3}} {
		next, found := place.Next(never, never)
		if !found || next != want {
			t.Errorf("after %v: %v", place, next)
		}
		place = next
		if name, key := next.Of(first), next.key("a.yaml"); name == first && next.Number != 0 || key == "a.yaml" {
			t.Errorf("%v is %s %s", next, name, key)
		}
	}
	if next, found := place.Next(func(number int) bool { return number < 3 }, never); !found || next != (Place{3, 4}) {
		t.Errorf("some are used: %v", next)
	}
	if next, found := place.Next(never, func(number int) bool { return number < 3 }); !found || next != (Place{3, 4}) {
		t.Errorf("some are there: %v", next)
	}
	if next, found := place.Next(never, func(int) bool { return true }); !found || next != (Place{0, 4}) {
		t.Errorf("all are there: %v", next)
	}
	if _, found := place.Next(func(int) bool { return true }, never); found {
		t.Error("all are used")
	}
}
