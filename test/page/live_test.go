package page

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// kubectl runs kubectl on the cluster of test/view, or skips the test.
func kubectl(t testing.TB, args ...string) string {
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

// TestLive expects the page to show changes in the cluster. BenchmarkMany measures how fast.
func TestLive(t *testing.T) {
	kubectl(t, "version")
	tab := newTab(t)
	url := view(t)
	tab.open(url)
	tab.eventually("document.getElementById('live').textContent === 'live'")
	if cells, clusters := eval[int](tab, "document.querySelectorAll('.cell').length"), strings.Count(kubectl(t, "get", "clusters.cluster.x-k8s.io", "-A", "-o", "name"), "\n"); cells != clusters || cells == 0 {
		t.Errorf("there are %d cells for %d clusters", cells, clusters)
	}
	set := func(status string) {
		t.Helper()
		kubectl(t, "patch", "clusters.fleet.cattle.io", "-n", "team-a", "prod", "--subresource=status", "--type=merge", "-p", status)
	}
	state := func(want string) string {
		return fmt.Sprintf("document.getElementById('cluster/team-a/prod').querySelector('.state').textContent === %q", want)
	}
	seen := time.Now().UTC().Format(time.RFC3339)
	set(fmt.Sprintf(`{"status":{"agent":{"lastSeen":%q},"display":{"state":"ErrApplied","readyBundles":"1/2"}}}`, seen))
	tab.eventually(state("ErrApplied"))
	tab.eventually("document.getElementById('summary').textContent.includes('1 Problem')")
	set(`{"status":{"display":{"state":"","readyBundles":"2/2"}}}`)
	tab.eventually(state("Ready"))

	// The open page of a Cluster changes with its BundleDeployments.
	tab.open(url + "cluster/team-a/prod")
	tab.eventually("document.getElementById('detail').innerText.includes('classes/cni')")
	kubectl(t, "patch", "bundledeployments", "-n", "cluster-team-a-prod", "cni", "--subresource=status", "--type=merge", "-p",
		`{"status":{"ready":false,"nonReadyStatus":[{"kind":"DaemonSet","name":"calico-node","summary":{"state":"in-progress","message":["1/3"]}}]}}`)
	tab.eventually("document.getElementById('detail').innerText.includes('calico-node')")

	// A Cluster is created, and deleted.
	kubectl(t, "create", "-f", "testdata/new.yaml")
	tab.eventually("document.getElementById('cluster/team-a/new') !== null")
	kubectl(t, "delete", "-f", "testdata/new.yaml")
	tab.eventually("document.getElementById('cluster/team-a/new') === null")
	tab.accessible()
	tab.clean()
}

// many returns how many Clusters test/view says that it has made.
func many(t testing.TB) int {
	count, err := strconv.Atoi(os.Getenv("MUSTER_MANY"))
	if err != nil {
		t.Skip("skipped: it needs a cluster with many Clusters; make test-page and make bench-page start one")
	}
	return count
}

// TestMany expects each of many Clusters to have a cell that shows its changes.
func TestMany(t *testing.T) {
	count := many(t)
	tab := newTab(t)
	tab.open(view(t))
	tab.eventually("document.getElementById('live').textContent === 'live'")
	if cells := eval[int](tab, "document.querySelectorAll('.cell').length"); cells != count {
		t.Errorf("there are %d cells for %d clusters", cells, count)
	}
	for i := range 3 {
		name := fmt.Sprintf("c%05d", 17+100*i)
		kubectl(t, "patch", "clusters.fleet.cattle.io", "-n", "many", name, "--subresource=status", "--type=merge", "-p", `{"status":{"display":{"state":"ErrApplied"}}}`)
		tab.eventually(shows(name, "ErrApplied"))
	}
	tab.clean()
}

// shows returns an expression that is true once the cell of one of many Clusters has a state.
func shows(name, state string) string {
	return fmt.Sprintf("document.getElementById('cluster/many/%s').querySelector('.cell').ariaLabel === %q", name, name+" "+state)
}
