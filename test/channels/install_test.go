package channels

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
)

const crd = "CustomResourceDefinition fleetaddonconfigs.addons.cluster.x-k8s.io"

// way is a way to install, and the shipped objects that its uninstallation leaves.
type way struct {
	name, namespace string
	left            []string
	// prepare sets up what the guide assumes. Before any program runs, alongside checks what only this way has, and
	// last does so before Muster is uninstalled, and after when it is.
	prepare, alongside, last, after func(*scene)
}

var ways = []way{
	{name: "kubectl", namespace: standard},
	{name: "kustomize", namespace: "fleet-addons"},
	{name: "helm", namespace: standard, left: []string{"Namespace " + standard, crd}, alongside: helmAlongside, last: helmFreezes, after: helmHasLeft},
	{name: "clusterctl", namespace: standard, left: []string{"Namespace " + standard, crd}, prepare: coreProvider, alongside: clusterctlAlongside},
	{name: "operator", namespace: standard, left: []string{"Namespace " + standard, crd}, prepare: startOperator, alongside: operatorAlongside},
}

// The test installs in each way, by the commands of the guide. Every way creates the same objects, the programs of the
// Deployments import a Cluster, and uninstalling leaves exactly what the guide says.
func TestWaysToInstall(t *testing.T) {
	commands, err := fixture.Commands("install.md")
	if err != nil {
		t.Fatal(err)
	}
	delete(commands, "config") // TestConfigIsAppliedFirst in test/integration
	if len(commands) != len(ways) {
		t.Errorf("the guide describes %d ways, of which %d are tested", len(commands), len(ways))
	}
	var first map[string]map[string]any
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, w.namespace)
			do := commands[w.name]
			if w.prepare != nil {
				w.prepare(s)
			}
			s.sh(do["install"])
			found := s.installed(g)
			if first == nil {
				first = found
			}
			if diff := cmp.Diff(first, found); diff != "" {
				t.Errorf("it installs other objects than the first way (-first +this):\n%s", diff)
			}
			if w.alongside != nil {
				w.alongside(s)
			}
			s.sh(do["upgrade"])
			s.runs()
			s.sh(do["check"])
			s.works()
			if w.last != nil {
				w.last(s)
			}
			s.sh(do["uninstall"])
			g.Eventually(func(g Gomega) { g.Expect(s.present(g)).To(ConsistOf(w.left)) }).WithTimeout(patience).Should(Succeed())
			if w.after != nil {
				w.after(s)
			}
			s.isRetained(g)
		})
	}
}
