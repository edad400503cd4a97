package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestStates checks recorded states in light and dark, wide and narrow.
func TestStates(t *testing.T) {
	for name, clusters := range map[string]int{"healthy": 1, "bundle-failing": 2, "deselected": 3, "conflict": 3, "cluster-gone": 3, "mapping-missing": 2, "fleet-absent": 1} {
		t.Run(name, func(t *testing.T) {
			tab := newTab(t)
			tab.open(viewState(t, name))
			if got := eval[int](tab, cells); got != clusters {
				t.Errorf("there are %d cells for %d clusters", got, clusters)
			}
			// Each cell says in text what its color says.
			if bare := eval[[]string](tab, "[...document.querySelectorAll('.cell')].filter((c) => !c.querySelector('.state').textContent || !c.querySelector('.name').textContent).map((c) => c.outerHTML)"); len(bare) > 0 {
				t.Errorf("these have no text: %v", bare)
			}
			tab.accessibleEverywhere()
			tab.clean()
		})
	}
}

// TestDetail opens a Cluster by keyboard, address and history.
func TestDetail(t *testing.T) {
	tab := newTab(t)
	url := viewState(t, "bundle-failing")
	tab.size(1400, 800)
	tab.open(url)
	tab.press("n") // This goes to the next problem.
	tab.press(kb.Enter)
	for _, want := range []string{"team-a/prod", "Problem: NotReady", "calico-node", "Available: 1/3", "Needs action from: the Bundle's author", "classes → team-a", "kubectl muster trace classes/cni team-a/prod"} {
		tab.eventually(says(want))
	}
	tab.eventually(fmt.Sprintf("location.href === %q", url+"cluster/team-a/prod"))
	tab.accessible()
	tab.dark(true)
	tab.accessible()
	tab.press(kb.Escape)
	tab.eventually("document.getElementById('detail').hidden && " + focused("cluster/team-a/prod"))
	tab.press(kb.ArrowLeft)
	tab.eventually(focused("cluster/classes/dev"))
	eval[chromedp.Void](tab, "history.back()") // This opens the closed Cluster again.
	tab.eventually("!document.getElementById('detail').hidden && " + says("team-a/prod"))
	// A click on what is replaced meanwhile would be lost.
	eval[chromedp.Void](tab, "window.former = document.getElementById('map'); document.dispatchEvent(new PointerEvent('pointerdown')); history.back()")
	tab.eventually("location.pathname.slice(document.body.dataset.base.length) === ''")
	if eval[bool](tab, "new Promise((done) => setTimeout(() => done(document.getElementById('map') !== window.former), 500))") {
		t.Error("the page was replaced while the mouse was pressed")
	}
	eval[chromedp.Void](tab, "document.dispatchEvent(new PointerEvent('pointerup'))")
	tab.eventually("document.getElementById('map') !== window.former")
	tab.open(url + "cluster/team-a/prod") // A deep link.
	tab.eventually(says("team-a/prod"))
	if marked := eval[string](tab, "document.querySelector('.cell[aria-current]').parentElement.id"); marked != "cluster/team-a/prod" {
		t.Errorf("%q is marked", marked)
	}
	tab.clean()
}

// TestSearch finds by name and by state, by keyboard only.
func TestSearch(t *testing.T) {
	tab := newTab(t)
	tab.open(viewState(t, "deselected"))
	for word, want := range map[string]string{
		"prod": "cluster/team-a/prod", "team-b": "cluster/team-b/never", "deselected": "cluster/team-a/prod", "nothing like it": "",
	} {
		tab.press("/")
		tab.eventually("document.activeElement.id === 'search' && document.activeElement.value === ''")
		tab.press(word)
		tab.eventually(fmt.Sprintf("%s === %q", visible, want))
		tab.eventually(status(fmt.Sprintf("%d clusters found", min(len(want), 1))))
		if want != "" {
			tab.press(kb.Enter)
			tab.eventually(focused(want))
			tab.press("/")
		}
		tab.press(kb.Escape)
		tab.eventually(visible + ".split(',').length === " + cells)
	}
	tab.clean()
}

// TestHostile expects the page to show foreign text as text: none of it runs, and the page loads nothing for it.
func TestHostile(t *testing.T) {
	tab := newTab(t)
	tab.open(viewState(t, "hostile") + "cluster/team-a/prod")
	for _, want := range []string{"<script>alert(1)</script>", `\x1b[2J`, `\u202egnp.exe`, "&amp;"} {
		tab.eventually(says(want))
	}
	tab.eventually("document.querySelectorAll('script').length === 1")
	// The policy holds even if something slips through.
	eval[chromedp.Void](tab, "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s); })()")
	if eval[bool](tab, "window.ran === 1") {
		t.Error("a script that was put into the page ran")
	}
}

// TestManyStill paints ten thousand Clusters from a file, in one namespace and in twenty: each has a cell. The time
// depends on the machine, but its causes do not: a cell is two elements, and the browser does not lay out cells that
// are out of sight. When the page is replaced, the reader stays at the same place.
func TestManyStill(t *testing.T) {
	const many = 10_000
	for _, namespaces := range []int{1, 20} {
		t.Run(fmt.Sprintf("%d namespaces", namespaces), func(t *testing.T) {
			tab := newTab(t)
			url := viewMany(t, many, namespaces)
			first, whole := paint(tab, url)
			t.Logf("first paint after %s, all there after %s", first, whole)
			if got := eval[int](tab, cells); got != many {
				t.Errorf("there are %d cells", got)
			}
			if elements, most := eval[int](tab, "document.getElementsByTagName('*').length"), 2*many+500; elements > most {
				t.Errorf("there are %d elements, more than %d", elements, most)
			}
			hidden := eval[int](tab, "[...document.querySelectorAll('.cells')].filter((list) => !list.firstElementChild.checkVisibility({contentVisibilityAuto: true})).length")
			if lists := eval[int](tab, "document.querySelectorAll('.cells').length"); lists < 40 || hidden < lists/2 {
				t.Errorf("of %d lists %d are not laid out", lists, hidden)
			}
			show := func(id string) time.Duration {
				begin := time.Now()
				eval[chromedp.Void](tab, fmt.Sprintf("(() => { window.former = document.getElementById('map'); history.pushState(null, '', %q); dispatchEvent(new PopStateEvent('popstate')); })()", url+id))
				tab.eventually("window.former !== document.getElementById('map') && " + says(strings.TrimPrefix(id, "cluster/")))
				return time.Since(begin)
			}
			show(fmt.Sprintf("cluster/team-%d/c00117", 117%namespaces))
			const at = "(() => { const e = [...document.querySelectorAll('.cells')].find((e) => e.getBoundingClientRect().bottom > 0); return e.ariaLabel + ' ' + Math.round(e.getBoundingClientRect().top / 10); })()"
			eval[chromedp.Void](tab, "scrollTo(0, 3000)")
			place := eval[string](tab, "new Promise((done) => setTimeout(() => done("+at+"), 300))") // A list is laid out once it is seen.
			t.Logf("replaced after %s, at %s", show(fmt.Sprintf("cluster/team-%d/c00017", 17%namespaces)), place)
			tab.eventually(fmt.Sprintf("%s === %q", at, place))
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
	press := func(key, want string) {
		t.Helper()
		tab.press(key)
		tab.eventually(focused("cluster/team-0/" + want))
	}
	for _, want := range []string{"c00017", "c00117", "c00217"} {
		press("n", want)
	}
	for range 32 { // From one list to the next, which is not on the screen.
		tab.press(kb.ArrowRight)
	}
	press(kb.ArrowRight, "c00250")
	press(kb.ArrowLeft, "c00249")
	tab.press(kb.ArrowDown)
	tab.press(kb.ArrowUp)
	if id := eval[string](tab, "document.activeElement.closest('ul').ariaLabel"); id != "Clusters in team-0" {
		t.Errorf("after down and up the focus is in %q", id)
	}
	press(kb.End, "c00599")
	tab.press("/")
	tab.press("c0051")
	tab.eventually(status("10 clusters found"))
	if lists := eval[[]string](tab, "[...document.querySelectorAll('.cells')].filter((list) => list.checkVisibility()).map((list) => list.ariaLabel)"); len(lists) != 1 || lists[0] != "Clusters in team-0 from c00500 on" {
		t.Errorf("these lists are seen: %q", lists)
	}
	press(kb.Enter, "c00510")
	tab.press(kb.Enter)
	tab.eventually(says("team-0/c00510"))
	if found := eval[string](tab, visible); strings.Count(found, ",") != 9 {
		t.Errorf("after the page was replaced, the search shows %s", found)
	}
	tab.accessible()
	tab.clean()
}

// TestLive expects the page to show changes in the cluster, and to leave what the reader has done to it.
// BenchmarkMany measures how fast.
func TestLive(t *testing.T) {
	kubectl(t, "version")
	tab := newTab(t)
	url := view(t)
	tab.open(url)
	if got, clusters := eval[int](tab, cells), strings.Count(kubectl(t, "get", "clusters.cluster.x-k8s.io", "-A", "-o", "name"), "\n"); got != clusters || got == 0 {
		t.Errorf("there are %d cells for %d clusters", got, clusters)
	}
	const fleet = "clusters.fleet.cattle.io"
	state := func(want string) string {
		return fmt.Sprintf("document.getElementById('cluster/team-a/prod').querySelector('.state').textContent === %q", want)
	}
	patch(t, fleet, "team-a", "prod", fmt.Sprintf(`{"agent":{"lastSeen":%q},"display":{"state":"ErrApplied","readyBundles":"1/2"}}`, time.Now().UTC().Format(time.RFC3339)))
	tab.eventually(state("ErrApplied"))
	tab.eventually("document.getElementById('summary').textContent.includes('1 Problem')")
	patch(t, fleet, "team-a", "prod", `{"display":{"state":"","readyBundles":"2/2"}}`)
	tab.eventually(state("Ready"))

	// The open page of a Cluster changes with its BundleDeployments. Search, focus and folds stay.
	tab.open(url + "cluster/team-a/prod")
	tab.eventually(says("classes/cni"))
	eval[chromedp.Void](tab, "document.querySelector('.bundles details').open = true")
	tab.press("/")
	tab.press("edge")
	patch(t, "bundledeployments", "cluster-team-a-prod", "cni", `{"ready":false,"nonReadyStatus":[{"kind":"DaemonSet","name":"calico-node","summary":{"state":"in-progress","message":["1/3"]}}]}`)
	tab.eventually(says("calico-node"))
	eval[chromedp.Void](tab, "document.querySelector('.bundles details').open = false")
	patch(t, fleet, "team-a", "edge", `{"display":{"state":"NotReady"}}`)
	tab.eventually("document.getElementById('cluster/team-a/edge').textContent.includes('NotReady')")
	tab.eventually(`document.activeElement.id === 'search' && document.activeElement.value === 'edge' && !document.querySelector('.bundles details').open && ` + visible + ` === 'cluster/team-a/edge'`)

	// A Cluster is created, and deleted.
	kubectl(t, "create", "-f", "testdata/new.yaml")
	tab.eventually("document.getElementById('cluster/team-a/new') !== null")
	kubectl(t, "delete", "-f", "testdata/new.yaml")
	tab.eventually("document.getElementById('cluster/team-a/new') === null")
	tab.accessible()
	tab.clean()
}

// TestMany expects each of many Clusters to have a cell that shows its changes.
func TestMany(t *testing.T) {
	count := many(t)
	tab := newTab(t)
	tab.open(view(t))
	if got := eval[int](tab, cells); got != count {
		t.Errorf("there are %d cells for %d clusters", got, count)
	}
	for i := range 3 {
		name := fmt.Sprintf("c%05d", 17+100*i)
		patch(t, "clusters.fleet.cattle.io", "many", name, `{"display":{"state":"ErrApplied"}}`)
		tab.eventually(shows(name, "ErrApplied"))
	}
	tab.clean()
}
