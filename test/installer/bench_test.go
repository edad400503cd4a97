package installer

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/test/bench/usage"
)

// In MiB, what the shipped Deployment requests, and its GOMEMLIMIT.
const (
	mostIdle = 128.0
	mostEver = 460.0
)

// BenchmarkMemory measures what the leading installer holds: while nobody asks for anything,
// once Fleet is there and is looked at every 15 s, and at most until then, with an installation
// and an upgrade. Beside it, how large the programs are.
func BenchmarkMemory(b *testing.B) {
	g := fresh(b)
	secret(g, "charts", credentials())
	for b.Loop() {
		g.Expect(env.Restart(ctx, "muster-installer")).To(Succeed())
		ask(g, "{config: {featureGates: {}}}") // It leads, and has looked.
		says(g, "FleetConfigured", metav1.ConditionFalse, "FleetMissing")
		ask(g, "{}")
		report(b, "idle", settled(g).Now, mostIdle)

		ask(g, "{"+fromRepository("version: 0.16.0")+"}")
		installed(g, "0.16.0")
		ask(g, "{"+fromRepository("version: 0.16.1")+"}")
		installed(g, "0.16.1")
		watching := settled(g)
		report(b, "watching", watching.Now, mostEver)
		report(b, "peak", watching.Peak, mostEver)
	}
	for _, program := range []string{"webhook", "syncer", "installer"} {
		file, err := os.Stat(env.Program(program))
		g.Expect(err).NotTo(HaveOccurred())
		b.ReportMetric(float64(file.Size())/(1<<20), program+"-binary-MiB")
	}
}

func report(b *testing.B, what string, mib, most float64) {
	b.Helper()
	b.ReportMetric(mib, what+"-MiB")
	if mib > most {
		b.Errorf("%s: %.0f MiB, more than %.0f", what, mib, most)
	}
}

// settled waits until the installer holds no less than before: Go gives memory back little by
// little.
func settled(g Gomega) usage.Memory {
	var before, now usage.Memory
	g.Eventually(func(g Gomega) {
		before = now
		for _, process := range env.Processes() {
			if process.Name == "muster-installer" && process.Running {
				var err error
				now, err = usage.MemoryOf(process.PID)
				g.Expect(err).NotTo(HaveOccurred())
			}
		}
		g.Expect(now.Now).NotTo(BeZero())
		g.Expect(before.Now-now.Now).To(BeNumerically("<", 0.01*now.Now), "still gives back: %+v", now)
		g.Expect(before.Now).NotTo(BeZero())
	}).WithPolling(20 * time.Second).Should(Succeed())
	return now
}
