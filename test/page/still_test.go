package page

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestStates checks recorded states in light and dark, wide and narrow.
func TestStates(t *testing.T) {
	for name, clusters := range map[string]int{"healthy": 1, "bundle-failing": 2, "deselected": 3, "conflict": 3, "cluster-gone": 3, "mapping-missing": 2, "fleet-absent": 1} {
		t.Run(name, func(t *testing.T) {
			tab := newTab(t)
			tab.open(viewState(t, name))
			if got := eval[int](tab, "document.querySelectorAll('.cell').length"); got != clusters {
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

// TestDetail opens a Cluster by mouse, keyboard and address.
func TestDetail(t *testing.T) {
	tab := newTab(t)
	url := viewState(t, "bundle-failing")
	tab.size(1400, 800)
	tab.open(url)
	seen := "document.getElementById('detail').innerText"
	isOpen := "!document.getElementById('detail').hidden && " + seen + ".includes('team-a/prod')"

	tab.press("n") // This goes to the next problem.
	tab.press(kb.Enter)
	tab.eventually(isOpen)
	for _, want := range []string{"Problem: NotReady", "calico-node", "Available: 1/3", "Needs action from: the Bundle's author", "classes → team-a", "kubectl muster trace classes/cni team-a/prod"} {
		if text := eval[string](tab, seen); !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if at := eval[string](tab, "location.href"); at != url+"cluster/team-a/prod" {
		t.Errorf("the address is %s", at)
	}
	tab.accessible()
	tab.dark(true)
	tab.accessible()
	tab.size(480, 900)
	tab.size(1400, 800)
	tab.press(kb.Escape)
	tab.eventually("document.getElementById('detail').hidden")
	if focused := eval[string](tab, "document.activeElement.parentElement.id"); focused != "cluster/team-a/prod" {
		t.Errorf("after closing, the focus is on %q", focused)
	}
	tab.press(kb.ArrowLeft)
	if focused := eval[string](tab, "document.activeElement.parentElement.id"); focused != "cluster/classes/dev" {
		t.Errorf("after an arrow, the focus is on %q", focused)
	}
	eval[chromedp.Void](tab, "history.back()") // This opens the closed Cluster again.
	tab.eventually(isOpen)

	tab.open(url + "cluster/team-a/prod") // A deep link.
	tab.eventually(isOpen)
	if marked := eval[string](tab, "document.querySelector('.cell[aria-current]').parentElement.id"); marked != "cluster/team-a/prod" {
		t.Errorf("%q is marked", marked)
	}
	tab.clean()
}

// TestSearch finds by name and by state, by keyboard only.
func TestSearch(t *testing.T) {
	tab := newTab(t)
	tab.open(viewState(t, "deselected"))
	visible := "[...document.querySelectorAll('.cell')].filter((c) => !c.parentElement.hidden).map((c) => c.parentElement.id).join()"
	for word, want := range map[string]string{
		"prod": "cluster/team-a/prod", "team-b": "cluster/team-b/never", "deselected": "cluster/team-a/prod", "nothing like it": "",
	} {
		tab.press("/")
		tab.eventually("document.activeElement.id === 'search' && document.activeElement.value === ''")
		tab.press(word)
		tab.eventually(fmt.Sprintf("%s === %q", visible, want))
		count := 1
		if want == "" {
			count = 0
		}
		tab.eventually(fmt.Sprintf("document.getElementById('live').textContent === '%d clusters found'", count))
		if want != "" {
			tab.press(kb.Enter)
			tab.eventually(fmt.Sprintf("document.activeElement.parentElement.id === %q", want))
			tab.press("/")
		}
		tab.press(kb.Escape)
		tab.eventually("document.querySelectorAll('.cell').length === [...document.querySelectorAll('.cell')].filter((c) => !c.parentElement.hidden).length")
	}
	tab.clean()
}

// TestHostile expects the page to show foreign text as text: none of it runs, and the page loads nothing for it.
func TestHostile(t *testing.T) {
	tab := newTab(t)
	url := viewState(t, "hostile")
	tab.open(url + "cluster/team-a/prod")
	text := eval[string](tab, "document.getElementById('detail').innerText")
	for _, want := range []string{"<script>alert(1)</script>", `\x1b[2J`, `\u202egnp.exe`, "&amp;"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if scripts := eval[int](tab, "document.querySelectorAll('script').length"); scripts != 1 {
		t.Errorf("there are %d scripts", scripts)
	}
	// The policy holds even if something slips through.
	eval[chromedp.Void](tab, "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s); })()")
	if eval[bool](tab, "window.ran === 1") {
		t.Error("a script that was put into the page ran")
	}
}

// TestGuarded requests the page in ways that the server must refuse, such as without the token.
func TestGuarded(t *testing.T) {
	url := viewState(t, "healthy")
	base := url[:strings.Index(url[len("http://"):], "/")+len("http://")]
	for name, test := range map[string]struct {
		method, url, host string
		want              int
	}{
		"the page":             {"GET", url, "", http.StatusOK},
		"without the token":    {"GET", base + "/", "", http.StatusNotFound},
		"with another token":   {"GET", base + "/AAAAAAAAAAAAAAAAAAAAAAAAAA/", "", http.StatusNotFound},
		"under another name":   {"GET", url, "muster.example.com", http.StatusNotFound},
		"to change something":  {"POST", url, "", http.StatusMethodNotAllowed},
		"something else there": {"GET", url + "../../etc/passwd", "", http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequest(test.method, test.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = test.host
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			if response.StatusCode != test.want {
				t.Errorf("got %d, want %d", response.StatusCode, test.want)
			}
			policy := response.Header.Get("Content-Security-Policy")
			if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
				t.Errorf("the policy is %q", policy)
			}
		})
	}
}
