package channels

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/stack"
)

// generated is a commit with the chart whose templates were all generated.
const generated = "05cb3a3b"

// The chart replaces an earlier one, and what kubectl installed. Selectors cannot change, and with --reuse-values Helm takes
// the defaults of the earlier chart, which lack new keys. Both ways end with the same objects.
func TestChartTakesOver(t *testing.T) {
	root, err := stack.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	archive := exec.Command("git", "archive", generated, "charts/muster")
	archive.Dir = root
	earlier, err := archive.Output()
	if err != nil {
		t.Skipf("the history of this clone does not go back to %s: %v", generated, err)
	}
	var first map[string]map[string]any
	for name, commands := range map[string]string{
		"the earlier chart": `
mkdir earlier && tar -xf earlier.tar -C earlier
helm install muster earlier/charts/muster --namespace muster-system --create-namespace --set logLevel=debug
kubectl label namespace muster-system pod-security.kubernetes.io/enforce=restricted
helm upgrade muster charts/muster --namespace muster-system --reuse-values
kubectl -n muster-system get deployment muster-syncer -o jsonpath='{.spec.template.spec.containers[0].args}' | grep -e --log-level=debug
helm upgrade muster charts/muster --namespace muster-system --reset-values
`,
		"kubectl": `
kubectl apply --server-side -k manifests/default
helm install muster charts/muster --namespace muster-system --take-ownership --force-conflicts
helm upgrade muster charts/muster --namespace muster-system --set global.commonLabels.team=a --set webhook.podLabels.team=b
helm upgrade muster charts/muster --namespace muster-system --reset-values
`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, standard)
			g.Expect(os.WriteFile(filepath.Join(s.checkout, "earlier.tar"), earlier, 0o644)).To(Succeed())
			s.sh(commands)
			found := s.installed(g)
			if first == nil {
				first = found
			}
			if diff := cmp.Diff(first, found); diff != "" {
				t.Errorf("the objects differ from those of the other way (-first +this):\n%s", diff)
			}
		})
	}
}
