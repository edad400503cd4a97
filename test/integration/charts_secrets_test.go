package integration

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/repository"
)

// chartsPatience is longer than the program waits before it reads Secrets again, and than the garbage
// collector takes to hear of new kinds.
const chartsPatience = 90 * time.Second

var bindingLine = regexp.MustCompile(`kubectl (create rolebinding muster-charts-read-secrets \S+ \S+ \S+muster-charts)`)

// By default the program may read Secrets nowhere, and says who allows it how. It writes its own without
// reading them, and what it needs no more the garbage collector takes.
func TestChartsReadSecretsWhereAllowed(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	charts := repository.New()
	t.Cleanup(charts.Close)
	g.Expect(charts.Publish("web", "1.0.0", map[string]string{"values.yaml": "{}"})).To(Succeed())
	g.Expect(env.StartComponent(ctx, "helm")).To(Succeed())
	t.Cleanup(func() {
		if err := env.Stop(ctx, "muster-charts"); err != nil {
			t.Error(err)
		}
		if _, err := env.Kubectl(ctx, "delete", "-k", "../../manifests/helm", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	g.Expect(env.Restart(ctx, "kube-controller-manager")).To(Succeed()) // The garbage collector learns the new kinds.

	access := &corev1.Secret{Data: charts.Secret()}
	access.Namespace, access.Name = s.namespace, "repository"
	g.Expect(admin.Create(ctx, access)).To(Succeed())
	values := &corev1.Secret{Data: map[string][]byte{"values.yaml": []byte("password: sesame")}}
	values.Namespace, values.Name = s.namespace, "values"
	g.Expect(admin.Create(ctx, values)).To(Succeed())
	proxy := &addonsv1.HelmChartProxy{}
	proxy.Namespace, proxy.Name = s.namespace, "web"
	proxy.Spec = addonsv1.HelmChartProxySpec{
		RepoURL: charts.URL, ChartName: "web", Version: "1.0.0",
		Credentials: &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "repository"}, Key: "config.json"},
		TLSConfig:   &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: "repository"}},
		ValuesFrom:  []addonsv1.ValuesReference{{Kind: "Secret", Name: "values"}},
	}
	g.Eventually(func() error { return admin.Create(ctx, proxy) }).Should(Succeed())
	ready := func(g Gomega) string {
		condition := meta.FindStatusCondition(get(g, &addonsv1.HelmChartProxy{}, s.namespace, "web").Status.Conditions, "Ready")
		g.Expect(condition).NotTo(BeNil())
		return condition.Message
	}
	bundles := func(g Gomega) []fleetv1.Bundle {
		var all fleetv1.BundleList
		g.Expect(admin.List(ctx, &all, client.InNamespace(s.namespace), client.HasLabels{"helmchartproxy-name.fleet.addons.cluster.x-k8s.io"})).To(Succeed())
		return all.Items
	}
	bundleOf := func(g Gomega) *fleetv1.Bundle {
		all := bundles(g)
		g.Expect(all).To(HaveLen(1))
		return &all[0]
	}
	// named is the Secret that the Bundle reads values from.
	named := func(g Gomega) *corev1.Secret {
		from := bundleOf(g).Spec.Helm.ValuesFrom
		g.Expect(from).To(HaveLen(1))
		return get(g, &corev1.Secret{}, s.namespace, from[0].SecretKeyRef.Name)
	}
	written := func(g Gomega) string {
		its := named(g)
		g.Expect(its.Data).To(HaveLen(1))
		return string(its.Data[bundleOf(g).Spec.Helm.ValuesFrom[0].SecretKeyRef.Key])
	}
	gone := func(g Gomega) {
		for _, its := range bundles(g) { // Fleet, which does not run, takes over what is there.
			g.Expect(admin.Status().Patch(ctx, &its, mergePatch(fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, its.Generation)))).To(Succeed())
		}
		for _, name := range []string{"hcp-web.for-all", "hcp-web.for-all.1"} {
			err := admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &corev1.Secret{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
		}
	}
	look := func() { // No event tells of Secrets.
		g.Expect(admin.Patch(ctx, proxy.DeepCopy(), mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, time.Now().UnixNano())))).To(Succeed())
	}
	change := func(spec string) { g.Expect(admin.Patch(ctx, proxy.DeepCopy(), mergePatch(spec))).To(Succeed()) }

	// What the condition says is what an administrator runs.
	var command string
	g.Eventually(func(g Gomega) {
		message := ready(g)
		g.Expect(message).To(ContainSubstring("muster-charts may not get Secret " + s.namespace + "/values"))
		found := bindingLine.FindStringSubmatch(message)
		g.Expect(found).NotTo(BeNil(), message)
		command = found[1]
	}).Should(Succeed())
	_, err := env.Kubectl(ctx, strings.Fields(command)...)
	g.Expect(err).NotTo(HaveOccurred())
	look()
	g.Eventually(func(g Gomega) {
		g.Expect(written(g)).To(Equal("password: sesame"))
	}).WithTimeout(chartsPatience).Should(Succeed())

	t.Run("it follows a change", func(t *testing.T) {
		g := NewWithT(t)
		before := bundleOf(g).Annotations["fleet.addons.cluster.x-k8s.io/values-digest"]
		values.Data["values.yaml"] = []byte("password: other")
		g.Expect(admin.Update(ctx, values)).To(Succeed())
		look()
		g.Eventually(func(g Gomega) {
			g.Expect(written(g)).To(Equal("password: other"))
			g.Expect(named(g).Name).To(Equal("hcp-web.for-all.1"), "what agents read stays as it is until they read something else")
			g.Expect(bundleOf(g).Annotations["fleet.addons.cluster.x-k8s.io/values-digest"]).NotTo(Or(BeEmpty(), Equal(before)))
		}).WithTimeout(chartsPatience).Should(Succeed())
	})
	t.Run("what nobody needs any more goes", func(t *testing.T) {
		g := NewWithT(t)
		change(`{"spec":{"valuesFrom":null}}`)
		g.Eventually(gone).WithTimeout(chartsPatience).Should(Succeed())
	})
	t.Run("and comes back", func(t *testing.T) {
		g := NewWithT(t)
		change(`{"spec":{"valuesFrom":[{"kind":"Secret","name":"values"}]}}`)
		g.Eventually(func(g Gomega) { g.Expect(written(g)).To(Equal("password: other")) }).WithTimeout(chartsPatience).Should(Succeed())
	})
	t.Run("one of somebody else's stays as it is", func(t *testing.T) {
		g := NewWithT(t)
		foreign := &corev1.Secret{Data: map[string][]byte{"a": []byte("b")}}
		foreign.Namespace, foreign.Name = s.namespace, "hcp-other.for-all"
		g.Expect(admin.Create(ctx, foreign)).To(Succeed())
		other := &addonsv1.HelmChartProxy{Spec: *proxy.Spec.DeepCopy()}
		other.Namespace, other.Name = s.namespace, "other"
		g.Expect(admin.Create(ctx, other)).To(Succeed())
		g.Eventually(func(g Gomega) {
			condition := meta.FindStatusCondition(get(g, &addonsv1.HelmChartProxy{}, s.namespace, "other").Status.Conditions, "Ready")
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Message).To(ContainSubstring("hcp-other.for-all exists and is not Muster's"))
		}).Should(Succeed())
		g.Expect(admin.Delete(ctx, other)).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(get(g, &corev1.Secret{}, s.namespace, "hcp-other.for-all").Data).To(Equal(foreign.Data))
		}).Should(Succeed())
	})
	t.Run("while it is moved, it stays with its Bundle", func(t *testing.T) {
		g := NewWithT(t)
		var owner types.UID
		g.Eventually(func(g Gomega) { // The Bundle is there before the Secret says so.
			owner = bundleOf(g).UID
			g.Expect(named(g).OwnerReferences).To(ContainElement(HaveField("UID", owner)))
		}).Should(Succeed())
		change(`{"metadata":{"annotations":{"cluster.x-k8s.io/paused":""}}}`)
		g.Eventually(func(g Gomega) { g.Expect(bundleOf(g).OwnerReferences).To(BeEmpty()) }).Should(Succeed())
		g.Expect(env.Stop(ctx, "muster-charts")).To(Succeed())
		g.Expect(admin.Delete(ctx, proxy.DeepCopy())).To(Succeed())
		g.Eventually(func(g Gomega) { // The garbage collector has looked at it.
			g.Expect(named(g).OwnerReferences).To(HaveExactElements(HaveField("UID", owner)))
		}).WithTimeout(chartsPatience).Should(Succeed())
	})
	t.Run("it goes with its HelmChartProxy", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(env.Start(ctx, "muster-charts")).To(Succeed())
		g.Eventually(gone).WithTimeout(chartsPatience).Should(Succeed())
	})
}

// Whoever has the token of charts writes no Secret that another program would take for its own.
func TestChartsToken(t *testing.T) {
	g := NewWithT(t)
	files := []string{"service_account.yaml", "role.yaml", "policy_values.yaml"}
	for _, file := range files {
		_, err := env.Kubectl(ctx, "apply", "-f", "../../manifests/helm/"+file)
		g.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(func() {
		for _, file := range files {
			if _, err := env.Kubectl(ctx, "delete", "-f", "../../manifests/helm/"+file, "--ignore-not-found"); err != nil {
				t.Error(err)
			}
		}
	})
	const (
		digestKey, digestType = "muster-charts-digest-key", "fleet.addons.cluster.x-k8s.io/digest-key"
		valuesType            = "fleet.addons.cluster.x-k8s.io/helm-values"
	)
	namespace := newNamespace(t, g, "foreign", nil)
	thief := accountOf(g, "muster-charts")
	own := func(more ...string) map[string]any {
		labels := map[string]any{
			"app.kubernetes.io/managed-by": "muster", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io": "x",
			"helmchartproxy-namespace.fleet.addons.cluster.x-k8s.io": namespace,
		}
		for _, key := range more {
			labels[key] = "cluster"
		}
		return labels
	}
	secret := func(s sample, name, kind, key string, labels map[string]any) map[string]any {
		object := s.object(name, map[string]any{"type": kind, "stringData": map[string]any{key: "x"}})
		object["metadata"].(map[string]any)["labels"] = labels
		return object
	}
	create := func(s sample, object map[string]any) (int, string) {
		return thief.send(g, s, attempt{method: http.MethodPost, contentType: "application/json", query: url.Values{"dryRun": {"All"}}, body: object})
	}
	update := func(s sample, object map[string]any) (int, string) {
		name := "/" + object["metadata"].(map[string]any)["name"].(string)
		return thief.send(g, s, attempt{method: http.MethodPut, path: name, contentType: "application/json", query: url.Values{"dryRun": {"All"}}, body: object})
	}
	foreign, its := secretIn(namespace), secretIn("muster-system")
	g.Eventually(func() string {
		_, answer := create(foreign, secret(foreign, "any", "Opaque", "a", nil))
		return answer
	}).Should(ContainSubstring("muster-charts may touch only"))
	key := &unstructured.Unstructured{Object: its.object(digestKey, nil)} // The program may have made it.
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, key))).To(Succeed())
	there := &unstructured.Unstructured{Object: secret(foreign, "hcp-there.for-all", valuesType, "00.yaml", own())}
	g.Expect(admin.Create(ctx, there)).To(Succeed())
	managed := map[string]any{"app.kubernetes.io/managed-by": "muster"}
	for name, test := range map[string]struct {
		send    func(sample, map[string]any) (int, string)
		in      sample
		object  map[string]any
		refused string
	}{
		"the key of digests":              {create, its, secret(its, digestKey, digestType, "key", managed), ""},
		"the key in another namespace":    {create, foreign, secret(foreign, digestKey, digestType, "key", managed), "only in its own namespace"},
		"the key under another name":      {create, its, secret(its, digestKey, digestType, "server", managed), "only in its own namespace"},
		"the key with another label":      {create, its, secret(its, digestKey, digestType, "key", own("example.com/secret-type")), "no labels but"},
		"values":                          {create, foreign, secret(foreign, "hcp-x.for-all", valuesType, "00.yaml", own()), ""},
		"values with another label":       {create, foreign, secret(foreign, "hcp-x.for-all", valuesType, "00.yaml", own("example.com/secret-type")), "no labels but"},
		"values as before":                {update, foreign, secret(foreign, "hcp-there.for-all", valuesType, "00.yaml", own()), ""},
		"another label for values":        {update, foreign, secret(foreign, "hcp-there.for-all", valuesType, "00.yaml", own("example.com/secret-type")), "no labels but"},
		"values that another one manages": {update, foreign, secret(foreign, "hcp-there.for-all", valuesType, "00.yaml", map[string]any{"app.kubernetes.io/managed-by": "Helm"}), "no labels but"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			code, answer := test.send(test.in, test.object)
			if test.refused == "" {
				g.Expect(code).To(Or(Equal(http.StatusOK), Equal(http.StatusCreated)), answer)
				return
			}
			g.Expect(code).To(Equal(http.StatusForbidden), answer)
			g.Expect(answer).To(ContainSubstring(test.refused))
		})
	}
}
