package channels

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/ports"
	"github.com/muster-fleet/muster/test/stack/process"
)

// core is a minimal CoreProvider: Cluster API's kinds exist already. The operator installs no other provider before
// the core is ready, which it reads from a Deployment.
const core = `
apiVersion: v1
kind: Namespace
metadata: {name: capi-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: capi-system, name: core, labels: {provider.cluster.x-k8s.io/version: v1.14.2, test: core}}
data:
  metadata: |
    apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
    kind: Metadata
    releaseSeries: [{major: 1, minor: 14, contract: v1beta2}]
  components: |
    apiVersion: v1
    kind: Namespace
    metadata: {name: capi-system}
    ---
    apiVersion: apps/v1
    kind: Deployment
    metadata: {namespace: capi-system, name: capi-controller-manager}
    spec:
      replicas: 1
      selector: {matchLabels: {app: capi}}
      template:
        metadata: {labels: {app: capi}}
        spec: {containers: [{name: manager, image: "registry.example.com/capi:v1.14.2"}]}
---
apiVersion: operator.cluster.x-k8s.io/v1alpha2
kind: CoreProvider
metadata: {namespace: capi-system, name: cluster-api}
spec:
  version: v1.14.2
  fetchConfig: {selector: {matchLabels: {test: core}}}
`

// startOperator runs the Cluster API Operator, and makes its CoreProvider ready.
func startOperator(s *scene) {
	s.Helper()
	g := NewWithT(s.T)
	binary, err := fixture.Program("test/parts/capi-operator", "sigs.k8s.io/cluster-api-operator/cmd", s.T.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	dir, err := fixture.ModuleDir("test/parts/capi-operator", "sigs.k8s.io/cluster-api-operator")
	g.Expect(err).NotTo(HaveOccurred())
	crds := filepath.Join(dir, "config/crd/bases")
	s.sh("kubectl apply --server-side -f " + crds + " && kubectl wait --for=condition=Established --timeout=1m -f " + crds)

	s.runOperator(binary)
	g.Expect(os.WriteFile(filepath.Join(s.Home, "core.yaml"), []byte(core), 0o600)).To(Succeed())
	s.sh(`
kubectl apply -f ~/core.yaml
kubectl -n capi-system wait --for=condition=ProviderInstalled --timeout=2m coreproviders.operator.cluster.x-k8s.io/cluster-api
`)
	s.available("capi-system", "capi-controller-manager")
	s.sh("kubectl -n capi-system wait --for=condition=Ready --timeout=1m coreproviders.operator.cluster.x-k8s.io/cluster-api")
}

// operatorAlongside customizes the Deployments as the guide says, and takes that back.
func operatorAlongside(s *scene) {
	g := NewWithT(s.T)
	g.SetDefaultEventuallyTimeout(patience)
	blocks, err := fixture.Guide("../install.md", 2)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(s.Home, "spec.yaml"), []byte(blocks[1]), 0o600)).To(Succeed())
	deployed := func(name string) func() (string, error) {
		return func() (string, error) {
			return s.try("kubectl -n muster-system get deployment " + name + " -o jsonpath='{.spec.replicas} {.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].args}'")
		}
	}
	shipped, err := deployed("muster-webhook")()
	g.Expect(err).NotTo(HaveOccurred())
	const patch = "kubectl -n muster-system patch addonproviders.operator.cluster.x-k8s.io muster --type=merge "
	s.sh(patch + "--patch-file ~/spec.yaml")
	g.Eventually(deployed("muster-webhook")).Should(ContainSubstring("registry.example.com/muster/muster-webhook:v0.1.0"))
	g.Eventually(deployed("muster-syncer")).Should(And(HavePrefix("3 "), ContainSubstring("--sync-period=3600s")))
	s.sh(patch + `-p '{"spec":{"additionalDeployments":null}}'`)
	g.Eventually(deployed("muster-webhook")).Should(Equal(shipped))
	// The operator applies everything again, and more than once, the webhooks' configurations without the CA of cert-manager.
	const installed = "kubectl -n muster-system get addonproviders.operator.cluster.x-k8s.io muster -o jsonpath='{.metadata.generation}={.status.observedGeneration}'"
	g.Eventually(func(g Gomega) {
		out, err := s.try(installed)
		g.Expect(err).NotTo(HaveOccurred())
		generation, observed, _ := strings.Cut(strings.TrimSpace(out), "=")
		g.Expect(observed).To(Equal(generation))
	}).Should(Succeed())
	for _, kind := range []string{"mutating", "validating"} {
		g.Eventually(func() (string, error) {
			return s.try("kubectl get " + kind + "webhookconfiguration muster-" + kind + "-webhook -o jsonpath='{range .webhooks[*]}[{.clientConfig.caBundle}]{end}'")
		}).WithPolling(time.Second).MustPassRepeatedly(10).ShouldNot(ContainSubstring("[]"))
	}
}

// runOperator starts the operator's process. Its webhooks are not called here: they would convert and default nothing
// that the test applies.
func (s *scene) runOperator(binary string) {
	s.Helper()
	g := NewWithT(s.T)
	leases := ports.New()
	s.Cleanup(leases.Release)
	var port [3]int
	for i := range port {
		free, err := leases.Port(0)
		g.Expect(err).NotTo(HaveOccurred())
		port[i] = free
	}
	s.sh(`
mkdir -p ~/serving
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=operator -keyout ~/serving/tls.key -out ~/serving/tls.crt
`)
	health := fmt.Sprintf("127.0.0.1:%d", port[0])
	p := process.New(process.Spec{
		Name: "capi-operator", Path: binary, Dir: s.Home,
		Args: []string{
			"--health-addr=" + health, fmt.Sprintf("--diagnostics-address=127.0.0.1:%d", port[1]), "--insecure-diagnostics=true",
			fmt.Sprintf("--webhook-port=%d", port[2]), "--webhook-cert-dir=" + filepath.Join(s.Home, "serving"), "--profiler-address=", "--v=2",
		},
		Env:     []string{"HOME=" + s.Home, "KUBECONFIG=" + s.env.Kubeconfig},
		Ready:   poll.Answers(http.DefaultClient, "http://"+health+"/readyz"),
		Timeout: patience,
	}, filepath.Join(s.Home, "capi-operator.log"))
	g.Expect(p.Start()).To(Succeed())
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("the end of the operator's log:\n%s", p.Tail())
		}
		if err := p.SignalAndWait(syscall.SIGTERM); err != nil {
			s.Error(err)
		}
	})
	g.Expect(p.Ready(ctx)).To(Succeed())
}
