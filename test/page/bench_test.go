package page

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

const (
	// soon is the bar for a first paint and for a change, and most is the bar for memory in KiB.
	soon = time.Second
	most = 150 << 10
	// samples is how many paints and changes are measured.
	samples = 5
)

// BenchmarkMany measures the page with all Clusters that test/view has made. Next to each time is another, measured
// at the same moment on the same machine, for the work that the page cannot avoid. Their ratio says more than the
// time where the machine has other work.
func BenchmarkMany(b *testing.B) {
	count := many(b)
	for b.Loop() {
		begin := time.Now()
		for _, kind := range []string{"cluster.x-k8s.io/v1beta2", "fleet.cattle.io/v1alpha1"} {
			kubectl(b, "get", "--raw", "/apis/"+kind+"/clusters")
		}
		listed := time.Since(begin)
		begin = time.Now()
		url := view(b)
		served := time.Since(begin)
		program := started
		b.ReportMetric(float64(count), "clusters")
		report(b, "served", "list", 0, []time.Duration{served}, []time.Duration{listed})

		tab := newTab(b)
		single := viewState(b, "healthy")
		var paints, wholes, singles, oneCells, changes, events []time.Duration
		for range samples {
			first, whole := paint(tab, single)
			singles, oneCells = append(singles, first), append(oneCells, whole)
			first, whole = paint(tab, url)
			paints, wholes = append(paints, first), append(wholes, whole)
		}
		report(b, "paint", "one-cell", soon, paints, singles)
		report(b, "whole", "one-cell-whole", soon, wholes, oneCells)
		for i := range samples {
			page, watch := change(tab, fmt.Sprintf("c%05d", 17+100*i), "ErrApplied")
			changes, events = append(changes, page), append(events, watch)
		}
		report(b, "change", "kubectl-watch", soon, changes, events)
		tab.clean()

		for _, field := range []string{"VmHWM", "VmRSS"} {
			kib := memory(b, program, field)
			b.Logf("%s: %d MiB", field, kib>>10) // Go does not print metrics when a bar is missed.
			b.ReportMetric(float64(kib)/1024, field+"-MiB")
			if kib > most {
				b.Errorf("%s: %d MiB, more than %d", field, kib>>10, most>>10)
			}
		}
	}
}

// report reports the largest of the times, and its ratio to the largest of the comparison times.
func report(b *testing.B, what, beside string, bar time.Duration, times, others []time.Duration) {
	b.Helper()
	longest, other := times[0], others[0]
	for i := range times {
		longest, other = max(longest, times[i]), max(other, others[i])
	}
	b.Logf("%s: %v; %s: %v", what, times, beside, others)
	b.ReportMetric(float64(longest.Milliseconds()), what+"-ms")
	b.ReportMetric(float64(longest)/float64(other), what+"/"+beside)
	if bar > 0 && longest > bar {
		b.Errorf("%s took %s, longer than %s; %s took %s", what, longest, bar, beside, other)
	}
}

// paint returns when the browser first painted, and when the page was complete and its visible part painted. Both
// count from entering the address; the second also contains the time of the query for it.
func paint(tab *tab, url string) (first, whole time.Duration) {
	tab.Helper()
	tab.run(chromedp.Navigate(url))
	const frame = "new Promise((done) => requestAnimationFrame(done))"
	times := eval[[]float64](tab, `(async () => {
		await `+frame+`;
		await `+frame+`;
		const whole = document.readyState === 'complete' ? performance.now() : -1;
		const paint = () => performance.getEntriesByName('first-contentful-paint')[0];
		while (!paint() && performance.now() < 20000) await `+frame+`;
		return [paint() ? paint().startTime : -1, whole];
	})()`)
	if slices.Min(times) < 0 {
		tab.Fatalf("%s was not painted or not loaded: %v", url, times)
	}
	tab.eventually("document.getElementById('live').textContent === 'live'")
	return time.Duration(times[0] * float64(time.Millisecond)), time.Duration(times[1] * float64(time.Millisecond))
}

// change changes a Cluster's state, and returns how long the page took to show it, and how long a watching kubectl
// took. Both count from before the change is sent.
func change(tab *tab, name, state string) (page, event time.Duration) {
	tab.Helper()
	args := []string{"get", "clusters.fleet.cattle.io", "-n", "many", name, "--watch", "-o", "jsonpath={.status.display.state}{'\\n'}"}
	cmd := exec.CommandContext(tab.Context(), os.Getenv("MUSTER_KUBECTL"), args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		tab.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tab.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		tab.Fatalf("kubectl does not watch: %v", lines.Err())
	}
	seen := make(chan time.Time, 1)
	go func() {
		for lines.Scan() {
			if lines.Text() == state {
				seen <- time.Now()
				return
			}
		}
	}()
	begin := time.Now()
	patch(tab, "clusters.fleet.cattle.io", "many", name, fmt.Sprintf(`{"display":{"state":%q}}`, state))
	tab.eventually(shows(name, state))
	page = time.Since(begin)
	select {
	case at := <-seen:
		return page, at.Sub(begin)
	case <-time.After(20 * time.Second):
		tab.Fatal("kubectl has not seen it")
		return 0, 0
	}
}

// memory returns a field of the kernel's status of a process, in KiB.
func memory(b *testing.B, pid int, field string) (kib int) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), field+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.Fatal(err)
	}
	return kib
}
