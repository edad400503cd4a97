package helm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
)

const ingressTemplate = `
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Values.controller.name }}-ingress"}
data:
  version: {{ .Chart.Version | quote }}
  allow: {{ .Values.controller.allow | quote }}
  password: {{ .Values.password | default "none" | b64enc | quote }}
`

// TestGuide applies the object of docs/guides/charts.md and runs its commands.
func TestGuide(t *testing.T) {
	g := NewWithT(t)
	for _, version := range []string{"1.0.0", "1.0.1", "1.1.0"} {
		g.Expect(charts.Publish("ingress", version, map[string]string{"a.yaml": ingressTemplate})).To(Succeed())
	}
	all, err := fixture.Commands("guides/charts.md")
	g.Expect(err).NotTo(HaveOccurred())
	commands := all["charts"]
	g.Expect(commands).To(HaveLen(8))
	shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(shell.Home, "ca.crt"), charts.CA, 0o600)).To(Succeed())
	run := func(g Gomega, step string) string {
		g.Expect(commands).To(HaveKey(step))
		login := "USERNAME='" + repository.Username + "' PASSWORD='" + repository.Password + "'\n"
		_, out, err := shell.Run(ctx, env.Kubeconfig, login+commands[step])
		t.Logf("%s\n%s", strings.TrimSpace(commands[step]), out)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	says := func(g Gomega, key string, want string, on ...cluster) {
		for _, its := range on {
			g.Eventually(func(g Gomega) {
				g.Expect(its.data(g, "ingress", its.name+"-ingress", key)).To(Equal(want), its.String())
			}).Should(Succeed())
		}
	}
	// Other tests use their own Secret of this name.
	_, err = env.Kubectl(ctx, "-n", team, "delete", "secret", "repository", "--ignore-not-found")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(env.Apply(ctx, repositorySecret())).To(Succeed()) })

	run(g, "secret")
	blocks, err := fixture.Guide("charts.md", 3)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blocks[1]).To(ContainSubstring("repoURL: https://charts.example.com "))
	g.Expect(env.Apply(ctx, strings.Replace(blocks[1], "https://charts.example.com", charts.URL, 1))).To(Succeed())
	out := run(g, "select")
	g.Expect(out).To(MatchRegexp(`helmchartproxy\S+/ingress +True +Ready`))
	for _, its := range []cluster{one, two} {
		g.Expect(out).To(MatchRegexp(`helmreleaseproxy\S+/ingress-` + its.name + ` +` + its.name + ` +True +Ready +deployed +\d`))
	}
	says(g, "version", "1.0.1", one, two)
	says(g, "allow", "10.200.0.0/16", one)
	says(g, "allow", "10.201.0.0/16", two)

	run(g, "values")
	says(g, "password", "c2VzYW1l", one, two)
	run(g, "agent")
	g.Eventually(func(g Gomega) { g.Expect(downloads(g, "ingress")).To(Equal("Agent")) }).Should(Succeed())
	run(g, "upgrade")
	says(g, "version", "1.1.0", one, two)
	g.Eventually(func(g Gomega) { isReady(g, "ingress") }).WithTimeout(4 * time.Minute).Should(Succeed())
	run(g, "pause")
	g.Expect(run(g, "look")).To(And(ContainSubstring("MESSAGE"), ContainSubstring("HelmReleaseProxySpecsUpToDate"), ContainSubstring("hcp-ingress-")))
	run(g, "remove")
	says(g, "version", "", one, two)
	_, err = env.Kubectl(ctx, "-n", team, "delete", "secret", "ingress-values")
	g.Expect(err).NotTo(HaveOccurred())
}
