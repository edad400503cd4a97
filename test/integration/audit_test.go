package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/audit"
	"github.com/muster-fleet/muster/test/stack"
)

// auditor runs the built command with a kubeconfig that has a context for an administrator
// and one, "limited", for somebody who may list mappings and nothing else.
type auditor struct{ program, kubeconfig string }

func newAuditor(t *testing.T, g Gomega) auditor {
	t.Helper()
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	a := auditor{program: filepath.Join(t.TempDir(), "syncer"), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	build := exec.Command("go", "build", "-o", a.program, "./cmd/syncer")
	build.Dir = root
	out, err := build.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))

	config, err := clientcmd.LoadFromFile(env.Kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	current := config.Contexts[config.CurrentContext]
	limited := config.AuthInfos[current.AuthInfo].DeepCopy()
	limited.Impersonate = "limited"
	config.AuthInfos["limited"] = limited
	config.Contexts["limited"] = &api.Context{Cluster: current.Cluster, AuthInfo: "limited"}
	g.Expect(clientcmd.WriteToFile(*config, a.kubeconfig)).To(Succeed())
	g.Expect(env.Apply(ctx, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-mappings}
rules: [{apiGroups: [fleet.cattle.io], resources: [bundlenamespacemappings], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-mappings}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-mappings}
subjects: [{kind: User, name: limited}]
`)).To(Succeed())
	return a
}

// run returns what it printed and its exit code.
func (a auditor) run(g Gomega, args ...string) (stdout, stderr string, code int) {
	cmd := exec.Command(a.program, append([]string{"audit"}, args...)...)
	cmd.Env = []string{"KUBECONFIG=" + a.kubeconfig}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		g.Expect(err).NotTo(HaveOccurred())
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

// report returns what it says of one scene: other tests leave things, too.
func (a auditor) report(g Gomega, s scene) (report audit.Report, code int) {
	out, problems, code := a.run(g, "-o", "json")
	g.Expect(json.Unmarshal([]byte(out), &report)).To(Succeed(), problems)
	report.Mappings = slices.DeleteFunc(report.Mappings, func(m audit.Mapping) bool { return m.Namespace != s.classNamespace })
	report.Clusters = slices.DeleteFunc(report.Clusters, func(u audit.Use) bool { return u.Namespace != s.namespace })
	report.Released = slices.DeleteFunc(report.Released, func(l audit.Leftover) bool { return l.Namespace != s.namespace })
	return report, code
}

func TestAudit(t *testing.T) {
	g := NewWithT(t)
	a := newAuditor(t, g)
	s := newScene(t, g)
	cluster := s.imported(g, "one")

	t.Run("a rightful user", func(t *testing.T) {
		g := NewWithT(t)
		report, code := a.report(g, s)
		g.Expect(code).To(BeNumerically("<", 2))
		g.Expect(report.Mappings).To(BeEmpty())
		g.Expect(report.Released).To(BeEmpty())
		g.Expect(report.Notes).To(BeEmpty())
		g.Expect(report.Clusters).To(HaveLen(1))
		g.Expect(report.Clusters[0].Created).NotTo(BeZero())
		g.Expect(report.Clusters[0]).To(And(HaveField("Name", "one"), HaveField("Class", "standard"),
			HaveField("ClassNamespace", s.classNamespace), HaveField("Asked", audit.AskedYes)))
	})
	t.Run("a paused one keeps, and is none", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
		g.Eventually(func(g Gomega) {
			report, code := a.report(g, s)
			g.Expect(code).To(Equal(1))
			g.Expect(report.Mappings).To(ConsistOf(audit.Mapping{Namespace: s.classNamespace, Name: s.namespace, KeptBy: []audit.Keeper{
				{Kind: "Cluster", Namespace: s.namespace, Name: "one", Why: "paused"},
				{Kind: "Fleet Cluster", Namespace: s.namespace, Name: "one", Why: "released"},
			}}))
		}).Should(Succeed())
		out, problems, code := a.run(g, "--kubeconfig", env.Kubeconfig)
		g.Expect(code).To(Equal(1))
		g.Expect(problems).To(ContainSubstring("have no rightful user"))
		g.Expect(out).To(MatchRegexp(`(?m)^%s +%s +as made +Cluster one \(paused\), Fleet Cluster one \(released\)$`, s.classNamespace, s.namespace))
	})
	t.Run("what is left when it is gone, and the command that deletes it", func(t *testing.T) {
		g := NewWithT(t)
		deleteNow(g, cluster)
		report, _ := a.report(g, s)
		g.Expect(report.Clusters).To(BeEmpty())
		g.Expect(report.Released).To(HaveLen(1))
		words := strings.Fields(report.Released[0].Delete)
		g.Expect(words[0]).To(Equal("kubectl"))
		_, err := env.Kubectl(ctx, words[1:]...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) {
			report, _ := a.report(g, s)
			g.Expect(report.Released).To(BeEmpty())
			g.Expect(report.Mappings).To(BeEmpty())
		}).Should(Succeed())
	})
	t.Run("what may not be read is said", func(t *testing.T) {
		g := NewWithT(t)
		out, problems, code := a.run(g, "--context=limited")
		g.Expect(code).To(Equal(0), problems)
		for _, kind := range []audit.Kind{audit.Configs, audit.Namespaces, audit.Clusters, audit.Classes, audit.FleetClusters, audit.Webhook} {
			g.Expect(out).To(ContainSubstring(fmt.Sprintf("note: %s: may not be read", kind)))
		}
		g.Expect(out).To(ContainSubstring("it cannot be said whether a mapping has a rightful user"))
		g.Expect(out).NotTo(ContainSubstring("BundleNamespaceMappings: may not"))
	})
	t.Run("what is wrong has another code", func(t *testing.T) {
		for _, args := range [][]string{{"--context=none"}, {"--kubeconfig=/does/not/exist"}, {"-o", "yaml"}, {"--nonsense"}, {"argument"}} {
			g := NewWithT(t)
			_, problems, code := a.run(g, args...)
			g.Expect(code).To(Equal(2), "%q: %s", args, problems)
			g.Expect(problems).NotTo(BeEmpty())
		}
	})
}
