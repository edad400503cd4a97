package integration

import (
	"bytes"
	"encoding/json"
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
)

// auditor runs the built command. Its kubeconfig has a context for an administrator, and one, "limited", for a user
// who may only list mappings.
type auditor struct{ program, kubeconfig string }

func newAuditor(t *testing.T, g Gomega) auditor {
	t.Helper()
	a := auditor{env.Program("kubectl-muster"), filepath.Join(t.TempDir(), "kubeconfig")}
	config, err := clientcmd.LoadFromFile(env.Kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	current := config.Contexts[config.CurrentContext]
	limited := config.AuthInfos[current.AuthInfo].DeepCopy()
	limited.Impersonate = "limited"
	config.AuthInfos["limited"] = limited
	config.Contexts["limited"] = &api.Context{Cluster: current.Cluster, AuthInfo: "limited"}
	g.Expect(clientcmd.WriteToFile(*config, a.kubeconfig)).To(Succeed())
	grant(t, g, "", "limited", may("fleet.cattle.io", "bundlenamespacemappings", "list"))
	return a
}

// run returns the command's output and its exit code.
func (a auditor) run(args ...string) (stdout, stderr string, code int) {
	cmd := exec.Command(a.program, append([]string{"audit"}, args...)...)
	cmd.Env = []string{"KUBECONFIG=" + a.kubeconfig}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); cmd.ProcessState == nil {
		return "", err.Error(), -1
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

// report returns the part of the report on one scene: other tests leave objects, too.
func (a auditor) report(g Gomega, s scene) (report audit.Report, code int) {
	out, problems, code := a.run("-o", "json")
	g.Expect(json.Unmarshal([]byte(out), &report)).To(Succeed(), problems)
	report.Mappings = slices.DeleteFunc(report.Mappings, func(m audit.Mapping) bool { return m.Namespace != s.classNamespace })
	report.Clusters = slices.DeleteFunc(report.Clusters, func(u audit.Use) bool { return u.Namespace != s.namespace })
	report.Released = slices.DeleteFunc(report.Released, func(l audit.Leftover) bool { return l.Namespace != s.namespace })
	return report, code
}

func TestAudit(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a := newAuditor(t, g)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	// A Cluster that uses the class rightfully.
	report, code := a.report(g, s)
	g.Expect(code).To(BeNumerically("<", 2))
	g.Expect(report).To(And(HaveField("Mappings", BeEmpty()), HaveField("Released", BeEmpty()), HaveField("Notes", BeEmpty()),
		HaveField("Clusters", ConsistOf(And(HaveField("Name", "one"), HaveField("Class", "standard"), HaveField("Created", Not(BeZero())),
			HaveField("ClassNamespace", s.classNamespace), HaveField("Asked", audit.AskedYes))))))

	// A paused Cluster keeps the mapping, but is no user of it.
	pause(g, cluster)
	g.Eventually(func(g Gomega) {
		report, code := a.report(g, s)
		g.Expect(code).To(Equal(1))
		g.Expect(report.Mappings).To(ConsistOf(audit.Mapping{Namespace: s.classNamespace, Name: s.namespace, RetainedBy: []audit.Retainer{
			{Kind: "Cluster", Namespace: s.namespace, Name: "one", Why: "paused"},
			{Kind: "Fleet Cluster", Namespace: s.namespace, Name: "one", Why: "released"},
		}}))
	}).Should(Succeed())
	out, problems, code := a.run("--kubeconfig", env.Kubeconfig)
	g.Expect(code).To(Equal(1))
	g.Expect(problems).To(ContainSubstring("have no rightful user"))
	g.Expect(out).To(MatchRegexp(`(?m)^%s +%s +as made +Cluster one \(paused\), Fleet Cluster one \(released\)$`, s.classNamespace, s.namespace))

	// The mapping outlives its Cluster; the report names it, and the command that deletes it.
	deleteNow(g, cluster)
	report, _ = a.report(g, s)
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

	// The report names the kinds that it could not read.
	out, problems, code = a.run("--context=limited")
	g.Expect(code).To(Equal(0), problems)
	for _, kind := range []audit.Kind{audit.Configs, audit.Namespaces, audit.Clusters, audit.Classes, audit.FleetClusters, audit.Webhook} {
		g.Expect(out).To(ContainSubstring(fmt.Sprintf("note: %s: may not be read", kind)))
	}
	g.Expect(out).To(And(ContainSubstring("unknown: whether a mapping has a rightful user"), Not(ContainSubstring("BundleNamespaceMappings: may not"))))

	// Errors have another exit code.
	for _, args := range [][]string{{"--context=none"}, {"--kubeconfig=/does/not/exist"}, {"-o", "xml"}, {"--nonsense"}, {"argument"}} {
		_, problems, code := a.run(args...)
		g.Expect(code).To(Equal(2), "%q: %s", args, problems)
		g.Expect(problems).NotTo(BeEmpty())
	}
}
