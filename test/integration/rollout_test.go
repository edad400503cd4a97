package integration

import (
	"fmt"
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const charts = "addons.cluster.x-k8s.io"

// rollout runs `kubectl muster rollout` as a user, and returns its output and its exit code.
func rollout(g Gomega, user string, args ...string) (string, int) {
	cmd := exec.Command(env.Program("kubectl-muster"), append([]string{"rollout", "--kubeconfig", env.Kubeconfig, "--as", user}, args...)...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		g.Expect(err).NotTo(HaveOccurred())
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// A user who may patch a HelmChartProxy, but lacks the verb promote, can neither approve a change nor resume a halted
// rollout. Annotations on a HelmReleaseProxy do not help, either.
func TestPromoters(t *testing.T) {
	g := NewWithT(t)
	applyHelm(t, g)
	namespace := newNamespace(t, g, "rollout", nil)
	grant(t, g, namespace, "paula", may(charts, "helmchartproxies", "get", "patch", "promote"), may(charts, "helmreleaseproxies", "get", "patch"))
	grant(t, g, namespace, "peter", may(charts, "helmchartproxies", "get", "patch"), may(charts, "helmreleaseproxies", "get", "patch"))
	paula, peter := tenant(g, "paula"), tenant(g, "peter")
	const approved, retry = "fleet.addons.cluster.x-k8s.io/rollout-approved", "fleet.addons.cluster.x-k8s.io/rollout-retry"

	web := func() client.Object { return target(charts+"/v1alpha1", "HelmChartProxy", namespace, "web") }
	g.Eventually(func() error {
		return admin.Create(ctx, object(g, fmt.Sprintf(`{apiVersion: %s/v1alpha1, kind: HelmChartProxy, metadata: {namespace: %s, name: web},
spec: {clusterSelector: {}, chartName: web, repoURL: "https://charts.example.com", rollout: {stages: [{name: all, percent: 100, approval: Manual}]}}}`, charts, namespace)))
	}).Should(Succeed())
	plays := func(reason, message, approval, failing string) { // Helm does not run.
		status := fmt.Sprintf(`{"status":{"matchingClusters":[],"observedGeneration":1,
"conditions":[{"type":"RolloutCompleted","status":"False","reason":%q,"message":%q,"observedGeneration":1,"lastTransitionTime":"2026-11-22T11:48:00Z"}],
"rollout":{"stage":"all","stages":[{"name":"all","clusters":1,"updated":0,"held":1}],"approval":%q,"retry":%q}}}`, reason, message, approval, failing)
		g.Expect(admin.Status().Patch(ctx, web(), mergePatch(status))).To(Succeed())
	}
	annotations := func() map[string]string {
		its := web()
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(its), its)).To(Succeed())
		return its.GetAnnotations()
	}
	// A refusal shows that the policies are in force.
	byHand := mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{%q:"0123"}}}`, approved))
	g.Eventually(func() error { return peter.Patch(ctx, web(), byHand, client.DryRunAll) }).Should(MatchError(ContainSubstring("muster-helm-promote")))

	plays("WaitingForApproval", "stage all, 0 of 1 updated: approve the change for team/one", "4567", "")
	out, code := rollout(g, "peter", "status", namespace+"/web")
	g.Expect(code).To(Equal(3), out)
	g.Expect(out).To(ContainSubstring("rollout promote " + namespace + "/web --approval=4567"))
	out, code = rollout(g, "peter", "promote", namespace+"/web")
	g.Expect(code).To(Equal(2), out)
	g.Expect(out).To(And(ContainSubstring("muster-helm-promote"), ContainSubstring("ask for a Role with the verbs get, patch and promote")))
	out, code = rollout(g, "paula", "promote", "web", "-n", namespace, "--approval=0123")
	g.Expect(code).To(Equal(1), out)
	g.Expect(annotations()).NotTo(HaveKey(approved))
	out, code = rollout(g, "paula", "promote", "web", "-n", namespace, "--approval=4567")
	g.Expect(code).To(Equal(0), out)
	g.Expect(out).To(ContainSubstring("approve the change for team/one"))
	g.Expect(annotations()).To(HaveKeyWithValue(approved, "4567"))
	// Changes that do not affect the rollout are allowed.
	g.Expect(peter.Patch(ctx, web(), mergePatch(`{"metadata":{"annotations":{"note":"mine"}}}`))).To(Succeed())

	plays("Halted", "stage all, 0 of 1 updated: no longer ready while its stage was soaking: team/one", "", "89ab")
	out, code = rollout(g, "peter", "retry", namespace+"/web")
	g.Expect(code).To(Equal(2), out)
	g.Expect(annotations()).NotTo(HaveKey(retry))
	out, code = rollout(g, "paula", "retry", namespace+"/web")
	g.Expect(code).To(Equal(0), out)
	g.Expect(annotations()).To(HaveKeyWithValue(retry, "89ab"))

	// Muster lets each release move by these annotations.
	release := func() client.Object { return target(charts+"/v1alpha1", "HelmReleaseProxy", namespace, "web-one") }
	create(g, object(g, fmt.Sprintf(`{apiVersion: %s/v1alpha1, kind: HelmReleaseProxy, metadata: {namespace: %s, name: web-one, annotations: {fleet.addons.cluster.x-k8s.io/release: "{}"}},
spec: {clusterRef: {kind: Cluster, namespace: %[2]s, name: one}, chartName: web, repoURL: "https://charts.example.com", namespace: default}}`, charts, namespace)))
	for _, key := range []string{"rollout-granted", "rollout-approved", "rollout-retry", "release", "bundle"} {
		for _, value := range []string{`"89ab"`, "null"} {
			if key != "release" && value == "null" {
				continue // The annotation is not there.
			}
			change := mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/%s":%s}}}`, key, value))
			err := peter.Patch(ctx, release(), change, client.DryRunAll)
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", key, err)
			g.Expect(err).To(MatchError(ContainSubstring("muster-helm-grants")), key)
			g.Expect(paula.Patch(ctx, release(), change, client.DryRunAll)).To(Succeed(), key)
		}
	}
	g.Expect(peter.Patch(ctx, release(), mergePatch(`{"metadata":{"annotations":{"note":"mine"}}}`))).To(Succeed())

	// The Cluster of a HelmReleaseProxy cannot be changed: with two HelmReleaseProxies for one release, the end of one would
	// uninstall it.
	for _, field := range []string{"name", "namespace"} {
		err := peter.Patch(ctx, release(), mergePatch(fmt.Sprintf(`{"spec":{"clusterRef":{"%s":"other"}}}`, field)))
		g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%s: %v", field, err)
		g.Expect(err).To(MatchError(ContainSubstring("spec.clusterRef: Invalid value")))
		g.Expect(err).To(MatchError(ContainSubstring("field is immutable")))
	}
	g.Expect(peter.Patch(ctx, release(), mergePatch(`{"spec":{"clusterRef":{"apiVersion":"cluster.x-k8s.io/v1beta1"}}}`))).To(Succeed())
}
