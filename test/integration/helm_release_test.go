package integration

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack"
)

// contest is a Cluster for whose release kube-system/ccm several HelmChartProxies ask, each by a label of its name.
type contest struct {
	scene
	charts   *repository.Repository
	cluster  *clusterv1.Cluster
	platform string
}

func newContest(t *testing.T, g Gomega, labels ...string) contest {
	c := contest{scene: newScene(t, g), platform: newNamespace(t, g, "platform", nil)}
	c.cluster = c.imported(g, "one", labels...)
	c.charts = startHelm(t, g)
	c.charts.Open()
	return c
}

// proxy returns a HelmChartProxy of the contest.
func (c contest) proxy(namespace, name string) *addonsv1.HelmChartProxy {
	of := named(&addonsv1.HelmChartProxy{}, namespace, name)
	of.Spec = addonsv1.HelmChartProxySpec{
		RepoURL: c.charts.URL, ChartName: "web", Version: "1.0.0", TLSConfig: &addonsv1.TLSConfig{InsecureSkipTLSVerify: true},
		ReleaseName: "ccm", ReleaseNamespace: "kube-system", ValuesTemplate: "owner: " + name,
	}
	of.Spec.ClusterSelector.MatchLabels = map[string]string{name: "yes"}
	if namespace != c.namespace {
		of.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: c.namespace}}
	}
	return of
}

func (c contest) asks(g Gomega, namespace, name string) *addonsv1.HelmChartProxy {
	of := c.proxy(namespace, name)
	g.Eventually(func() error { return admin.Create(ctx, of) }).Should(Succeed())
	return of
}

// bundle returns the Bundle of a HelmChartProxy; nil if there is none.
func (c contest) bundle(g Gomega, of *addonsv1.HelmChartProxy) *fleetv1.Bundle {
	var all fleetv1.BundleList
	g.Expect(admin.List(ctx, &all, client.InNamespace(c.namespace), client.MatchingLabels(plan.Labels(client.ObjectKeyFromObject(of))))).To(Succeed())
	if len(all.Items) == 0 {
		return nil
	}
	g.Expect(all.Items).To(HaveLen(1))
	return &all.Items[0]
}

func (c contest) hasTarget(g Gomega, of *addonsv1.HelmChartProxy) bool {
	its := c.bundle(g, of)
	return its != nil && len(its.Spec.Targets) > 0
}

// says returns the message of a HelmReleaseProxy about the release, empty if it is content, and expects its HelmChartProxy
// not to be Ready over it.
func (c contest) says(g Gomega, of *addonsv1.HelmChartProxy) string {
	var all addonsv1.HelmReleaseProxyList
	g.Expect(admin.List(ctx, &all, client.InNamespace(of.Namespace), client.MatchingLabels{addonsv1.HelmChartProxyLabel: of.Name})).To(Succeed())
	g.Expect(all.Items).To(HaveLen(1))
	condition := meta.FindStatusCondition(all.Items[0].Status.Conditions, addonsv1.ReadyCondition)
	g.Expect(condition).NotTo(BeNil())
	if condition.Reason != "ReleaseTaken" {
		return ""
	}
	g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
	ready := meta.FindStatusCondition(get(g, &addonsv1.HelmChartProxy{}, of.Namespace, of.Name).Status.Conditions, addonsv1.ReadyCondition)
	g.Expect(ready).To(HaveField("Status", metav1.ConditionFalse))
	if !c.hasTarget(g, of) { // Otherwise it says that Fleet, which does not run, has yet to take the Bundle over.
		g.Expect(ready).To(And(HaveField("Reason", "ReleaseTaken"), HaveField("Message", ContainSubstring(condition.Message))))
	}
	return condition.Message
}

// deploys plays Fleet, which deploys the release of a HelmChartProxy. The finalizer plays its agent, which uninstalls.
func (c contest) deploys(g Gomega, of *addonsv1.HelmChartProxy) *fleetv1.BundleDeployment {
	bundle, namespace := c.bundle(g, of), named(&corev1.Namespace{}, "", stamp.FleetNamespace(c.namespace, "one"))
	g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, namespace))).To(Succeed())
	its := named(&fleetv1.BundleDeployment{}, namespace.Name, bundle.Name)
	its.Labels, its.Finalizers = maps.Clone(bundle.Labels), []string{"example.com/agent"}
	maps.Copy(its.Labels, map[string]string{
		fleetv1.BundleLabel: bundle.Name, fleetv1.BundleNamespaceLabel: bundle.Namespace, fleetv1.ClusterLabel: "one", fleetv1.ClusterNamespaceLabel: bundle.Namespace,
	})
	create(g, its)
	g.Expect(admin.Status().Patch(ctx, its, mergePatch(`{"status":{"release":"kube-system/ccm:1"}}`))).To(Succeed())
	return its
}

func restartHelm(g Gomega) {
	g.Expect(env.Kill(ctx, "muster-helm")).To(Succeed())
	g.Expect(env.Start(ctx, "muster-helm")).To(Succeed())
}

// A release on a Cluster belongs to the HelmChartProxy that has it. Others wait, and get it when the target and the
// BundleDeployment of the first are gone: the platform's before the tenant's. A restart changes nothing.
func TestReleaseTaken(t *testing.T) {
	g := NewWithT(t)
	c := newContest(t, g, "stable", "ci", "platform")
	stable := c.asks(g, c.namespace, "stable")
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, stable)).To(BeTrue()) }).WithTimeout(helmPatience).Should(Succeed())
	deployment := c.deploys(g, stable)

	ci, platform := c.asks(g, c.namespace, "ci"), c.asks(g, c.platform, "platform")
	waits := func(g Gomega) {
		g.Expect(c.says(g, ci)).To(HavePrefix("HelmChartProxy stable has release kube-system/ccm"))
		g.Expect(c.says(g, platform)).To(And(HavePrefix("another HelmChartProxy has"), Not(ContainSubstring("stable"))))
		g.Expect([]bool{c.hasTarget(g, ci), c.hasTarget(g, platform)}).To(HaveEach(false))
	}
	g.Eventually(waits).WithTimeout(helmPatience).MustPassRepeatedly(20).Should(Succeed())
	restartHelm(g)
	g.Eventually(func(g Gomega) {
		waits(g)
		g.Expect(c.hasTarget(g, stable)).To(BeTrue())
	}).MustPassRepeatedly(20).Should(Succeed())

	patch(g, c.cluster, entry("labels", "stable", "null"))
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, stable)).To(BeFalse()) }).WithTimeout(helmPatience).Should(Succeed())
	g.Expect(admin.Delete(ctx, deployment.DeepCopy())).To(Succeed()) // The agent has yet to uninstall the release.
	restartHelm(g)
	g.Eventually(waits).MustPassRepeatedly(20).Should(Succeed())

	patch(g, deployment, `{"metadata":{"finalizers":null}}`)
	gone := time.Now()
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, platform)).To(BeTrue()) }).WithTimeout(helmPatience).Should(Succeed())
	t.Logf("the next one got it after %s", time.Since(gone).Round(time.Millisecond))
	g.Eventually(func(g Gomega) {
		g.Expect(c.says(g, platform)).To(BeEmpty())
		g.Expect(c.says(g, ci)).To(HavePrefix("another HelmChartProxy "))
		g.Expect(c.hasTarget(g, ci)).To(BeFalse(), "a tenant's takes nothing from the platform's")
	}).MustPassRepeatedly(20).Should(Succeed())

	g.Expect(admin.Delete(ctx, platform)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(c.hasTarget(g, ci)).To(BeTrue())
		g.Expect(c.says(g, ci)).To(BeEmpty())
	}).WithTimeout(helmPatience).Should(Succeed())
}

// Where two have a release already, as an earlier version allowed, nothing is taken from either, and both say so. When one
// goes, the other goes on.
func TestReleaseTakenByTwo(t *testing.T) {
	g := NewWithT(t)
	c := newContest(t, g, "stable", "ci")
	stable := c.asks(g, c.namespace, "stable")
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, stable)).To(BeTrue()) }).WithTimeout(helmPatience).Should(Succeed())

	g.Expect(env.Stop(ctx, "muster-helm")).To(Succeed())
	ci := c.proxy(c.namespace, "ci")
	ci.Finalizers = []string{plan.Finalizer}
	g.Expect(admin.Create(ctx, ci)).To(Succeed())
	key := client.ObjectKeyFromObject(c.cluster)
	bundle := plan.NewBundle(ci, c.namespace, plan.BundleName(ci, key, 0), plan.Chart{Version: "1.0.0"}, "")
	bundle.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}}
	release := named(&addonsv1.HelmReleaseProxy{}, c.namespace, "ci-one")
	release.Labels, release.Finalizers = map[string]string{addonsv1.HelmChartProxyLabel: "ci"}, ci.Finalizers
	release.Annotations = map[string]string{plan.BundleAnnotation: bundle.Name, plan.RecordAnnotation: plan.Record{FleetCluster: "one", Installed: true}.String()}
	release.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(ci, addonsv1.GroupVersion.WithKind("HelmChartProxy"))}
	release.Spec.ClusterRef = corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: key.Namespace, Name: key.Name}
	release.Spec.ChartName, release.Spec.RepoURL, release.Spec.ReleaseName, release.Spec.ReleaseNamespace = "web", c.charts.URL, "ccm", "kube-system"
	create(g, bundle, release)
	g.Expect(env.Start(ctx, "muster-helm")).To(Succeed())

	g.Eventually(func(g Gomega) {
		g.Expect(c.says(g, ci)).To(HavePrefix("HelmChartProxy stable has release kube-system/ccm on this Cluster, too"))
		g.Expect(c.says(g, stable)).To(HavePrefix("HelmChartProxy ci has release kube-system/ccm on this Cluster, too"))
		g.Expect([]bool{c.hasTarget(g, ci), c.hasTarget(g, stable)}).To(HaveEach(true))
		g.Expect(c.bundle(g, ci).Spec.Targets[0].DownstreamResources).NotTo(BeEmpty(), "it goes on with its values")
	}).WithTimeout(helmPatience).MustPassRepeatedly(20).Should(Succeed())

	patch(g, c.cluster, entry("labels", "ci", "null"))
	g.Eventually(func(g Gomega) {
		err := admin.Get(ctx, client.ObjectKeyFromObject(release), &addonsv1.HelmReleaseProxy{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
		g.Expect(c.hasTarget(g, ci)).To(BeFalse())
		g.Expect(c.says(g, stable)).To(BeEmpty())
		g.Expect(c.hasTarget(g, stable)).To(BeTrue())
	}).WithTimeout(helmPatience).Should(Succeed())
}

// plays lets Fleet, which does not run, take the Bundle of a HelmChartProxy over, and its agent deploy the release.
func (c contest) plays(t *testing.T, g Gomega, of *addonsv1.HelmChartProxy) {
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, of)).To(BeTrue()) }).WithTimeout(helmPatience).Should(Succeed())
	c.deploysOn(t, g, of, c.bundle(g, of).Spec.Targets[0])
	g.Eventually(func(g Gomega) {
		bundle := c.bundle(g, of)
		g.Expect(admin.Status().Patch(ctx, bundle, mergePatch(fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, bundle.Generation)))).To(Succeed())
		ready := meta.FindStatusCondition(get(g, &addonsv1.HelmChartProxy{}, of.Namespace, of.Name).Status.Conditions, addonsv1.ReadyCondition)
		g.Expect(ready).To(HaveField("Status", metav1.ConditionTrue))
	}).WithPolling(time.Second).MustPassRepeatedly(4).WithTimeout(helmPatience).Should(Succeed())
}

// A restart writes no status: of a release that is Ready, of one in a rollout, of one whose values cannot be rendered, of one that
// waits for Fleet, and of one whose Bundle has the name of somebody else's. A HelmChartProxy that is applied with the restart shows that the program has begun.
func TestRestartWritesNoStatus(t *testing.T) {
	g := NewWithT(t)
	c := newContest(t, g, "plain", "staged", "broken", "waits", "taken", "canary")
	for _, name := range []string{"plain", "staged", "broken", "waits", "taken"} {
		of := c.proxy(c.namespace, name)
		of.Spec.ReleaseName = name
		switch name {
		case "staged":
			of.Spec.Rollout = &addonsv1.RolloutStrategy{}
		case "broken":
			of.Spec.ValuesTemplate = `{{ fail "no" }}`
		case "taken":
			create(g, named(&fleetv1.Bundle{}, c.namespace, plan.BundleName(of, client.ObjectKeyFromObject(c.cluster), 0)))
		}
		g.Eventually(func() error { return admin.Create(ctx, of) }).Should(Succeed())
		if name == "plain" || name == "staged" {
			c.plays(t, g, of)
		}
	}
	// These are the versions of all objects with a status of muster-helm, but of those of the canary.
	versions := func(g Gomega) map[string]string {
		all := map[string]string{}
		var proxies addonsv1.HelmChartProxyList
		var releases addonsv1.HelmReleaseProxyList
		g.Expect(admin.List(ctx, &proxies, client.InNamespace(c.namespace))).To(Succeed())
		g.Expect(admin.List(ctx, &releases, client.InNamespace(c.namespace))).To(Succeed())
		for _, its := range proxies.Items {
			all["HelmChartProxy "+its.Name] = fmt.Sprintf("%s %v", its.ResourceVersion, its.Status.Conditions)
		}
		for _, its := range releases.Items {
			all["HelmReleaseProxy "+its.Name] = fmt.Sprintf("%s %v", its.ResourceVersion, its.Status.Conditions)
		}
		maps.DeleteFunc(all, func(name, _ string) bool { return strings.Contains(name, "canary") })
		return all
	}
	settled := func(g Gomega) (last map[string]string) {
		g.Eventually(func(g Gomega) {
			before := last
			last = versions(g)
			g.Expect(last).To(And(HaveLen(10), Equal(before)))
		}).WithPolling(3 * time.Second).WithTimeout(time.Minute).Should(Succeed())
		return last
	}
	before := settled(g)
	for _, says := range []string{"{Ready True ", "{RolloutCompleted True ", " ValueParsingFailed ", " PreparingToHelmInstall ", "exists and is not Muster's"} {
		g.Expect(fmt.Sprint(before)).To(ContainSubstring(says))
	}
	g.Expect(env.Kill(ctx, "muster-helm")).To(Succeed())
	canary := c.proxy(c.namespace, "canary")
	canary.Spec.ReleaseName = canary.Name
	g.Eventually(func() error { return admin.Create(ctx, canary) }).Should(Succeed())
	g.Expect(env.Start(ctx, "muster-helm")).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, canary)).To(BeTrue()) }).WithTimeout(helmPatience).Should(Succeed())
	g.Expect(settled(g)).To(Equal(before))
}

// A new version reaches many releases without a conflict: the HelmChartProxy changes their specs while their values are written, Fleet
// has yet to deploy them, and their status says so.
func TestVersionWithoutConflicts(t *testing.T) {
	const count = 12
	g := NewWithT(t)
	c := newContest(t, g, "web")
	for i := 1; i < count; i++ {
		c.imported(g, fmt.Sprintf("c%d", i), "web")
	}
	g.Expect(c.charts.Publish("web", "1.1.0", map[string]string{"values.yaml": "{}"})).To(Succeed())
	of := c.asks(g, c.namespace, "web")
	g.Eventually(func(g Gomega) {
		its := c.bundle(g, of)
		g.Expect(its).NotTo(BeNil())
		g.Expect(its.Spec.Targets).To(HaveLen(count))
	}).WithTimeout(helmPatience).Should(Succeed())
	releases := func(g Gomega) []addonsv1.HelmReleaseProxy {
		var all addonsv1.HelmReleaseProxyList
		g.Expect(admin.List(ctx, &all, client.InNamespace(c.namespace))).To(Succeed())
		g.Expect(all.Items).To(HaveLen(count))
		return all.Items
	}
	for _, its := range c.bundle(g, of).Spec.Targets {
		c.deploysOn(t, g, of, its)
	}
	g.Eventually(func(g Gomega) {
		for _, its := range releases(g) {
			g.Expect(plan.IsReady(&its)).To(BeTrue(), its.Name)
		}
	}).WithTimeout(helmPatience).Should(Succeed())
	tail, err := env.AuditTail()
	g.Expect(err).NotTo(HaveOccurred())
	patch(g, of, `{"spec":{"version":"1.1.0","valuesTemplate":"owner: the new version"}}`)
	g.Eventually(func(g Gomega) {
		for _, its := range releases(g) {
			ready := meta.FindStatusCondition(its.Status.Conditions, addonsv1.ReadyCondition)
			g.Expect(its.Spec.Version).To(Equal("1.1.0"))
			g.Expect(plan.RecordOf(&its).Revision).To(Equal(1))
			g.Expect(ready).To(And(HaveField("Reason", "HelmReleasePending"), HaveField("ObservedGeneration", its.Generation)))
		}
	}).WithTimeout(helmPatience).Should(Succeed())
	counts := map[string]int{}
	g.Eventually(func(g Gomega) { // The log may be behind.
		events, err := tail.Read(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-helm"), Where: isWrite})
		g.Expect(err).NotTo(HaveOccurred())
		for _, its := range events {
			counts[fmt.Sprintf("%s %s/%s %d", its.Verb, its.Resource, its.Subresource, its.Code)]++
		}
		g.Expect(counts).To(HaveKeyWithValue("patch helmreleaseproxies/ 200", BeNumerically(">=", 2*count)))
	}).Should(Succeed())
	t.Logf("the writes: %v", counts)
	for what := range counts {
		g.Expect(what).NotTo(HaveSuffix(" 409"))
	}
}

// deploysOn plays Fleet and its agent, which have deployed the target of a HelmChartProxy.
func (c contest) deploysOn(t *testing.T, g Gomega, of *addonsv1.HelmChartProxy, target fleetv1.BundleTarget) {
	bundle, namespace := c.bundle(g, of), named(&corev1.Namespace{}, "", stamp.FleetNamespace(c.namespace, target.ClusterName))
	g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, namespace))).To(Succeed())
	its := named(&fleetv1.BundleDeployment{}, namespace.Name, bundle.Name)
	its.Labels = maps.Clone(bundle.Labels)
	maps.Copy(its.Labels, map[string]string{
		fleetv1.BundleLabel: bundle.Name, fleetv1.BundleNamespaceLabel: bundle.Namespace, fleetv1.ClusterLabel: target.ClusterName, fleetv1.ClusterNamespaceLabel: bundle.Namespace,
	})
	its.Spec.DeploymentID, its.Spec.StagedDeploymentID, its.Spec.Options.DownstreamResources = "x", "x", target.DownstreamResources
	create(g, its)
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(admin.Delete(ctx, its))).To(Succeed()) }) // The HelmChartProxy waits for it.
	g.Expect(admin.Status().Patch(ctx, its, mergePatch(`{"status":{"release":"kube-system/ccm:1","appliedDeploymentID":"x","ready":true,"nonModified":true}}`))).To(Succeed())
}
