package page

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// kubectl runs kubectl on the cluster that test/view has started, or skips the test.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	program := os.Getenv("MUSTER_KUBECTL")
	if program == "" {
		t.Skip("skipped: it needs a cluster; make test-page starts one")
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v: %s", args, err, out)
	}
	return string(out)
}

// TestLive sees changes in the cluster on the page, within a second.
func TestLive(t *testing.T) {
	kubectl(t, "version")
	tab := newTab(t)
	url := view(t)
	tab.open(url)
	tab.eventually("document.getElementById('live').textContent === 'live'")
	if cells, clusters := eval[int](tab, "document.querySelectorAll('.cell').length"), len(items(t, "clusters.cluster.x-k8s.io")); cells != clusters || cells == 0 {
		t.Errorf("there are %d cells for %d clusters", cells, clusters)
	}
	set := func(status string) time.Time {
		t.Helper()
		kubectl(t, "patch", "clusters.fleet.cattle.io", "-n", "team-a", "prod", "--subresource=status", "--type=merge", "-p", status)
		return time.Now()
	}
	within := func(what string, since time.Time, expression string) {
		t.Helper()
		tab.eventually(expression)
		took := time.Since(since)
		t.Logf("%s: %s after the event", what, took.Round(10*time.Millisecond))
		if took > time.Second && isIdle(t) {
			t.Errorf("%s took %s", what, took)
		}
	}
	state := func(want string) string {
		return fmt.Sprintf("document.getElementById('cluster/team-a/prod').querySelector('.state').textContent === %q", want)
	}
	seen := time.Now().UTC().Format(time.RFC3339)
	since := set(fmt.Sprintf(`{"status":{"agent":{"lastSeen":%q},"display":{"state":"ErrApplied","readyBundles":"1/2"}}}`, seen))
	within("a Bundle fails", since, state("ErrApplied"))
	tab.eventually("document.getElementById('summary').textContent.includes('1 Problem')")
	since = set(`{"status":{"display":{"state":"","readyBundles":"2/2"}}}`)
	within("it is well again", since, state("Ready"))

	// The Cluster that is looked at changes with its BundleDeployments.
	tab.open(url + "cluster/team-a/prod")
	tab.eventually("document.getElementById('detail').innerText.includes('classes/cni')")
	kubectl(t, "patch", "bundledeployments", "-n", "cluster-team-a-prod", "cni", "--subresource=status", "--type=merge", "-p",
		`{"status":{"ready":false,"nonReadyStatus":[{"kind":"DaemonSet","name":"calico-node","summary":{"state":"in-progress","message":["1/3"]}}]}}`)
	within("a resource fails", time.Now(), "document.getElementById('detail').innerText.includes('calico-node')")

	// A Cluster comes, and goes.
	kubectl(t, "create", "-f", "testdata/new.yaml")
	within("a Cluster comes", time.Now(), "document.getElementById('cluster/team-a/new') !== null")
	kubectl(t, "delete", "-f", "testdata/new.yaml")
	within("it goes", time.Now(), "document.getElementById('cluster/team-a/new') === null")
	tab.accessible()
	tab.clean()
}

func items(t *testing.T, kind string) []any {
	t.Helper()
	var list struct{ Items []any }
	if err := json.Unmarshal([]byte(kubectl(t, "get", kind, "-A", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// TestMany looks at as many Clusters as test/view says that there are: how long it takes
// until they are seen, and until a change is.
func TestMany(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("MUSTER_MANY"))
	if err != nil {
		t.Skip("skipped: it needs a cluster with ten thousand Clusters; make test-page starts one")
	}
	tab := newTab(t)
	begin := time.Now()
	url := view(t)
	t.Logf("%d Clusters: listed and served after %s", count, time.Since(begin).Round(10*time.Millisecond))
	tab.run(chromedp.Navigate(url))
	tab.eventually("document.getElementById('live').textContent === 'live'")
	paint := eval[float64](tab, "performance.getEntriesByType('paint').find((p) => p.name === 'first-contentful-paint')?.startTime ?? -1")
	t.Logf("first paint %.0f ms after the address was entered", paint)
	if paint < 0 || paint > 1000 && isIdle(tab.T) {
		t.Errorf("first paint: %.0f ms", paint)
	}
	if cells := eval[int](tab, "document.querySelectorAll('.cell').length"); cells != count {
		t.Errorf("there are %d cells", cells)
	}
	for i := range 3 {
		name := fmt.Sprintf("c%05d", 17+1000*i)
		kubectl(t, "patch", "clusters.fleet.cattle.io", "-n", "many", name, "--subresource=status", "--type=merge", "-p", `{"status":{"display":{"state":"ErrApplied"}}}`)
		since := time.Now()
		tab.eventually(fmt.Sprintf("document.getElementById('cluster/many/%s').querySelector('.state').textContent === 'ErrApplied'", name))
		took := time.Since(since)
		t.Logf("a change is seen after %s", took.Round(10*time.Millisecond))
		if took > time.Second && isIdle(t) {
			t.Errorf("a change was seen after %s", took)
		}
	}
	out, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", started))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"VmHWM", "VmRSS"} {
		kib := 0
		if _, err := fmt.Sscanf(after(string(out), field+":"), "%d", &kib); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d MiB", field, kib/1024)
		if kib > 150<<10 {
			t.Errorf("%s: %d MiB", field, kib/1024)
		}
	}
	tab.clean()
}
