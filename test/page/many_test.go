package page

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// viewMany shows Clusters from a file, every hundredth of which waits because of its name.
func viewMany(t *testing.T, many, namespaces int) string {
	t.Helper()
	type object = map[string]any
	var items []any
	for i := range many {
		reason := "WaitingForControlPlane"
		if i%100 == 17 {
			reason = "NameConflict"
		}
		items = append(items, object{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": object{"namespace": fmt.Sprintf("team-%d", i%namespaces), "name": fmt.Sprintf("c%05d", i)},
			"spec":   object{"topology": object{"classRef": object{"namespace": "classes", "name": "standard"}}},
			"status": object{"conditions": []any{object{"type": "FleetImported", "status": "False", "reason": reason, "message": "not yet"}}},
		})
	}
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "many.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return view(t, "-f", file)
}

// TestManyStill paints ten thousand Clusters from a file, in one namespace and in twenty: each has a cell. The time
// depends on the machine, but its causes do not: a cell is two elements, and the browser does not lay out cells that
// are out of sight.
func TestManyStill(t *testing.T) {
	const many = 10_000
	for _, namespaces := range []int{1, 20} {
		t.Run(fmt.Sprintf("%d namespaces", namespaces), func(t *testing.T) {
			tab := newTab(t)
			url := viewMany(t, many, namespaces)
			first, whole := paint(tab, url)
			t.Logf("first paint after %s, all there after %s", first, whole)
			if cells := eval[int](tab, "document.querySelectorAll('.cell').length"); cells != many {
				t.Errorf("there are %d cells", cells)
			}
			if elements, most := eval[int](tab, "document.getElementsByTagName('*').length"), 2*many+500; elements > most {
				t.Errorf("there are %d elements, more than %d", elements, most)
			}
			hidden := eval[int](tab, "[...document.querySelectorAll('.cells')].filter((list) => !list.firstElementChild.checkVisibility({contentVisibilityAuto: true})).length")
			if lists := eval[int](tab, "document.querySelectorAll('.cells').length"); lists < 40 || hidden < lists/2 {
				t.Errorf("of %d lists %d are not laid out", lists, hidden)
			}
			tab.clean()
		})
	}
}

// TestDense shows so many Clusters that their names have no room.
func TestDense(t *testing.T) {
	tab := newTab(t)
	tab.open(viewMany(t, 600, 1))
	if bare := eval[[]string](tab, "[...document.querySelectorAll('.cell')].filter((c) => !/^c\\d{5} (NameConflict|WaitingForControlPlane)$/.test(c.ariaLabel) || !/^[○▲]$/u.test(c.textContent)).map((c) => c.outerHTML)"); len(bare) > 0 {
		t.Errorf("these say nothing: %v", bare)
	}
	tab.accessibleEverywhere()
	focused := func(want string) {
		t.Helper()
		tab.eventually(fmt.Sprintf("document.activeElement.parentElement.id === 'cluster/team-0/%s'", want))
	}
	tab.press("n")
	focused("c00017")
	tab.press("n")
	focused("c00117")
	tab.press("n")
	focused("c00217")
	for range 33 { // From one list to the next, which is not on the screen.
		tab.press(kb.ArrowRight)
	}
	focused("c00250")
	tab.press(kb.ArrowLeft)
	focused("c00249")
	tab.press(kb.ArrowDown)
	tab.press(kb.ArrowUp)
	if id := eval[string](tab, "document.activeElement.closest('ul').ariaLabel"); id != "Clusters in team-0" {
		t.Errorf("after down and up the focus is in %q", id)
	}
	tab.press(kb.End)
	focused("c00599")
	tab.press("/")
	tab.press("c0051")
	tab.eventually("document.getElementById('live').textContent === '10 clusters found'")
	if lists := eval[[]string](tab, "[...document.querySelectorAll('.cells')].filter((list) => list.checkVisibility()).map((list) => list.ariaLabel)"); len(lists) != 1 || lists[0] != "Clusters in team-0 from c00500 on" {
		t.Errorf("these lists are seen: %q", lists)
	}
	tab.press(kb.Enter)
	focused("c00510")
	tab.press(kb.Enter)
	tab.eventually("document.getElementById('detail').innerText.includes('team-0/c00510')")
	tab.accessible()
	tab.clean()
}
