package page

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestManyStill paints ten thousand Clusters out of a file: each has a cell.
func TestManyStill(t *testing.T) {
	const many = 10_000
	tab := newTab(t)
	type object = map[string]any
	var items []any
	for i := range many {
		metadata := object{"namespace": fmt.Sprintf("team-%d", i%20), "name": fmt.Sprintf("c%05d", i)}
		items = append(items, object{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata,
			"spec":   object{"topology": object{"classRef": object{"namespace": "classes", "name": "standard"}}},
			"status": object{"conditions": []any{object{"type": "FleetImported", "status": "False", "reason": "WaitingForControlPlane", "message": "not yet"}}},
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
	url := view(t, "-f", file)
	tab.run(chromedp.Navigate(url))
	tab.eventually("document.getElementById('live').textContent === 'live'")
	if cells := eval[int](tab, "document.querySelectorAll('.cell').length"); cells != many {
		t.Errorf("there are %d cells", cells)
	}
	tab.clean()
}
