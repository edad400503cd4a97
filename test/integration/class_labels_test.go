package integration

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// withClassLabels installs the component until the test ends. It returns when the API server
// labels Clusters.
func withClassLabels(t *testing.T, g Gomega, namespace string) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "--ignore-not-found", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels"); err != nil {
			t.Error(err)
		}
	})
	g.Expect(env.StartComponent(ctx, "class-labels")).To(Succeed())
	g.Eventually(func(g Gomega) {
		probe := fixture.Cluster(namespace, "probe", "probe", "")
		g.Expect(admin.Create(ctx, probe, client.DryRunAll)).To(Succeed())
		g.Expect(probe.Labels).To(HaveKey(stamp.ClassNameLabel))
	}).Should(Succeed())
}

// classLabels are those of a class, beside others.
func classLabels(class, namespace string, others map[string]string) map[string]string {
	labels := map[string]string{
		"clusterclass-name.fleet.addons.cluster.x-k8s.io":      class,
		"clusterclass-namespace.fleet.addons.cluster.x-k8s.io": namespace,
	}
	maps.Copy(labels, others)
	return labels
}

// Without the webhook the API server alone labels Clusters with their class, on every change
// that concerns it, and leaves to the syncer what it cannot do: to shorten a name. What is
// forged stays only if it may be that.
func TestClassLabelsWithoutTheWebhook(t *testing.T) {
	g := NewWithT(t)
	namespace, classNamespace := newNamespace(t, g, "labels", nil), newNamespace(t, g, "classes", nil)
	stop(t, g, syncerProcess)
	stop(t, g, webhookProcess)
	withoutWebhooks(t, g)
	withClassLabels(t, g, namespace)

	const tooLong = "a-class-whose-name-is-longer-than-the-63-characters-of-a-label-value"
	for name, test := range map[string]struct {
		class, classNamespace string
		labels, want          map[string]string
	}{
		"of its own namespace":             {"standard", "", nil, classLabels("standard", namespace, nil)},
		"of another namespace":             {"standard", classNamespace, nil, classLabels("standard", classNamespace, nil)},
		"labels of its own":                {"standard", "", map[string]string{"a/b": "c"}, classLabels("standard", namespace, map[string]string{"a/b": "c"})},
		"forged labels":                    {"standard", "", classLabels("other", classNamespace, nil), classLabels("standard", namespace, nil)},
		"forged labels, no class":          {"", "", classLabels("other", classNamespace, map[string]string{"a": "b"}), map[string]string{"a": "b"}},
		"a class with dots":                {"standard.v1", "", nil, classLabels("standard.v1", namespace, nil)},
		"63 characters":                    {tooLong[:62] + "x", "", nil, classLabels(tooLong[:62]+"x", namespace, nil)},
		"64 characters":                    {tooLong[:63] + "x", "", nil, map[string]string{stamp.ClassNamespaceLabel: namespace}},
		"64 characters, labels of another": {tooLong, "", classLabels("other", classNamespace, nil), map[string]string{stamp.ClassNamespaceLabel: namespace}},
		"64 characters, shortened":         {tooLong, "", classLabels(tooLong[:54]+"-0123abcd", classNamespace, nil), classLabels(tooLong[:54]+"-0123abcd", namespace, nil)},
		"shortened, but of another":        {tooLong, "", classLabels("other-0123abcd", namespace, nil), map[string]string{stamp.ClassNamespaceLabel: namespace}},
		"no class, no labels":              {"", "", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := fixture.Cluster(namespace, "", test.class, test.classNamespace)
			cluster.GenerateName = "cluster-" // As with a name: no label depends on it.
			cluster.Labels = test.labels
			if test.class == "" {
				cluster.Spec.Topology = clusterv1.Topology{}
			}
			g.Expect(admin.Create(ctx, cluster)).To(Succeed())
			g.Expect(get(g, &clusterv1.Cluster{}, namespace, cluster.Name).Labels).To(Equal(test.want))
		})
	}

	t.Run("it follows the class", func(t *testing.T) {
		g := NewWithT(t)
		cluster := fixture.Cluster(namespace, "follows", "standard", classNamespace)
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		for _, step := range []struct {
			patch string
			want  map[string]string
		}{
			{`{"metadata": {"labels": null}}`, classLabels("standard", classNamespace, nil)},
			{`{"metadata": {"labels": {"env": "prod", "clusterclass-name.fleet.addons.cluster.x-k8s.io": "forged"}}}`,
				classLabels("standard", classNamespace, map[string]string{"env": "prod"})},
			{`{"spec": {"topology": {"classRef": {"name": "large"}}}}`, classLabels("large", classNamespace, map[string]string{"env": "prod"})},
			{`{"spec": {"topology": {"classRef": {"namespace": null}}}}`, classLabels("large", namespace, map[string]string{"env": "prod"})},
			// What was right before is wrong now, and only a hash would be right.
			{fmt.Sprintf(`{"spec": {"topology": {"classRef": {"name": %q}}}}`, tooLong), map[string]string{"env": "prod", stamp.ClassNamespaceLabel: namespace}},
			{`{"spec": {"topology": {"classRef": {"name": "small"}}}}`, classLabels("small", namespace, map[string]string{"env": "prod"})},
			{`{"spec": {"topology": null}}`, map[string]string{"env": "prod"}},
		} {
			g.Expect(admin.Patch(ctx, cluster, mergePatch(step.patch))).To(Succeed())
			g.Expect(get(g, &clusterv1.Cluster{}, namespace, "follows").Labels).To(Equal(step.want), step.patch)
		}
	})
}

// With the webhook each Cluster is stamped as without the policy: what either does, the other
// leaves as it is.
func TestClassLabelsBesideTheWebhook(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	stop(t, g, syncerProcess)
	clusters := map[string]*clusterv1.Cluster{
		"own":      fixture.Cluster(s.namespace, "own", "standard", ""),
		"other":    fixture.Cluster(s.namespace, "other", "standard", s.classNamespace),
		"too long": fixture.Cluster(s.namespace, "too-long", strings.Repeat("long.", 14)+"name", ""),
		"forged":   fixture.Cluster(s.namespace, "forged", "standard", ""),
		"none":     fixture.Cluster(s.namespace, "none", "", ""),
	}
	clusters["forged"].Labels = classLabels("forged", "forged", nil)
	clusters["none"].Spec.Topology = clusterv1.Topology{}
	clusters["none"].Labels = classLabels("forged", "forged", map[string]string{"env": "prod"})
	dry := func(g Gomega) map[string]*clusterv1.Cluster {
		seen := map[string]*clusterv1.Cluster{}
		for name, cluster := range clusters {
			cluster = cluster.DeepCopy()
			g.Expect(admin.Create(ctx, cluster, client.DryRunAll)).To(Succeed())
			seen[name] = cluster
		}
		return seen
	}
	alone := dry(g)
	for name := range clusters {
		g.Expect(stamp.PinOf(alone[name].Annotations).IsComplete()).To(BeTrue(), "%s is not stamped by the webhook", name)
	}
	withClassLabels(t, g, s.namespace)

	together := dry(g)
	for name := range clusters {
		g.Expect(together[name].Labels).To(Equal(alone[name].Labels), name)
		g.Expect(together[name].Annotations).To(Equal(alone[name].Annotations), name)
	}

	// The webhook's labels of a class whose name does not fit stay through later changes.
	cluster := clusters["too long"]
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"metadata": {"labels": {"env": "prod"}}}`))).To(Succeed())
	g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, alone["too long"].Labels[stamp.ClassNameLabel]))
}

// withoutWebhooks takes Muster's webhooks from the API server until the test ends, as where
// they are not installed.
func withoutWebhooks(t *testing.T, g Gomega) {
	t.Helper()
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	g.Expect(admin.List(ctx, &mutating)).To(Succeed())
	g.Expect(admin.List(ctx, &validating)).To(Succeed())
	var taken []client.Object
	for i := range mutating.Items {
		taken = append(taken, &mutating.Items[i])
	}
	for i := range validating.Items {
		taken = append(taken, &validating.Items[i])
	}
	for _, configuration := range taken {
		if !strings.HasPrefix(configuration.GetName(), "muster-") {
			continue
		}
		g.Expect(admin.Delete(ctx, configuration.DeepCopyObject().(client.Object))).To(Succeed())
		t.Cleanup(func() {
			configuration.SetResourceVersion("")
			configuration.SetUID("")
			if err := admin.Create(ctx, configuration); err != nil {
				t.Error(err)
			}
		})
	}
}
