package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/table"
	"github.com/muster-fleet/muster/test/stack"
)

// heard collects the warnings of an API server.
type heard struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader is called for each warning.
func (h *heard) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, text)
}

func (h *heard) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.all
	h.all = nil
	return all
}

// The shipped CRDs and webhooks do what docs/internals/conformance.md says of each field. The API server stores an accepted
// object as it was written, with the defaults of cluster-api-addon-provider-helm.
func TestHelmChartProxyFields(t *testing.T) {
	g := NewWithT(t)
	rows, err := table.Read(table.Page)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.StartComponent(ctx, "helm")).To(Succeed())
	t.Cleanup(func() { removeHelm(t) })
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	warnings := &heard{}
	config.WarningHandler = warnings
	api, err := fixture.ClientOf(config)
	g.Expect(err).NotTo(HaveOccurred())
	namespace := newNamespace(t, g, "fields", nil)
	g.Eventually(func() error { return api.Create(ctx, written(g, namespace, "there", nil)) }).Should(Succeed())

	count := 0
	for _, row := range rows {
		if row.Table != table.Spec {
			continue
		}
		count++
		t.Run(row.What, func(t *testing.T) {
			g := NewWithT(t)
			spec, err := table.Parse(row.What)
			g.Expect(err).NotTo(HaveOccurred())
			proxy := written(g, namespace, "new", spec)
			warnings.take()
			err = api.Create(ctx, proxy, client.DryRunAll)
			refused := strings.Join(warnings.take(), "\n")
			if row.Verdict == table.Refused {
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "got %v", err)
				g.Expect(err).To(MatchError(ContainSubstring(row.Quoted()[0])))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			if row.Verdict == table.Warned {
				g.Expect(refused).To(ContainSubstring(row.Quoted()[0]))
			} else {
				g.Expect(refused).To(BeEmpty())
			}
			want := written(g, namespace, "new", spec)
			defaults(want)
			// In lists, want has floats and the stored object has integers, so the test compares them as JSON.
			stored, err := json.Marshal(proxy.Object["spec"])
			g.Expect(err).NotTo(HaveOccurred())
			expected, err := json.Marshal(want.Object["spec"])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(stored).To(MatchJSON(expected))
		})
	}
	g.Expect(count).NotTo(BeZero())

	for _, change := range [][2]string{{"", "Continuous"}, {"Continuous", "InstallOnce"}, {"InstallOnce", ""}} {
		name := "once-" + strings.ToLower(change[0])
		proxy := written(g, namespace, strings.TrimSuffix(name, "-"), map[string]any{"reconcileStrategy": change[0]})
		g.Expect(api.Create(ctx, proxy)).To(Succeed())
		g.Expect(api.Patch(ctx, proxy, mergePatch(fmt.Sprintf(`{"spec":{"reconcileStrategy":%q}}`, change[1])))).
			To(MatchError(ContainSubstring("spec.reconcileStrategy: Invalid value: %q: field is immutable", change[1])))
	}

	// The API server refuses a selector that takes minutes to check before it calls a webhook that fails closed.
	selector := map[string]any{"matchExpressions": []any{map[string]any{"key": "a", "operator": "In", "values": slices.Repeat([]any{"?"}, 25_000)}}}
	g.Expect(api.Create(ctx, written(g, namespace, "large", map[string]any{"clusterSelector": selector}))).
		To(MatchError(And(ContainSubstring("spec.clusterSelector.matchExpressions: Invalid value"), ContainSubstring("must have at most 1024 values in all"))))

	// kubectl and clusterctl read these columns and labels of the CRDs.
	out, err := env.Kubectl(ctx, "-n", namespace, "get", "hcp", "there", "-o", "wide")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(out)).To(ContainElements("NAME", "READY", "REASON", "MESSAGE", "VERSION", "CLUSTERS", "ROLLOUT", "AGE"))
	out, err = env.Kubectl(ctx, "get", "crd", "-l", "visualizer.cluster.x-k8s.io", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(And(ContainSubstring("helmchartproxies"), ContainSubstring("helmreleaseproxies")))
	out, err = env.Kubectl(ctx, "get", "crd", "-l", "clusterctl.cluster.x-k8s.io/move-hierarchy=true", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(ContainSubstring("helmchartproxies"))
	out, err = env.Kubectl(ctx, "get", "crd", "helmreleaseproxies.addons.cluster.x-k8s.io", "-o", "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(Equal("Cluster Ready Reason Message Status Revision Age"))
}

// written is a HelmChartProxy as a user writes it.
func written(g Gomega, namespace, name string, more map[string]any) *unstructured.Unstructured {
	proxy := object(g, fmt.Sprintf(`{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: HelmChartProxy, metadata: {namespace: %s, name: %s},
spec: {clusterSelector: {}, chartName: nginx, repoURL: "https://charts.example.com"}}`, namespace, name))
	spec := proxy.Object["spec"].(map[string]any)
	for field, value := range more {
		spec[field] = inIntegers(value)
	}
	return proxy
}

// inIntegers returns a value with integers as an API server returns them.
func inIntegers(value any) any {
	switch typed := value.(type) {
	case map[string]any:
		for key, its := range typed {
			typed[key] = inIntegers(its)
		}
	case float64:
		return int64(typed)
	}
	return value
}

// defaults sets the same defaults as cluster-api-addon-provider-helm, but for an empty namespace, and wait with atomic: these
// apply without being written.
func defaults(proxy *unstructured.Unstructured) {
	within := func(parent map[string]any, key string) map[string]any {
		child, _ := parent[key].(map[string]any)
		if child == nil {
			child = map[string]any{}
			parent[key] = child
		}
		return child
	}
	unless := func(parent map[string]any, key string, value any) {
		if _, found := parent[key]; !found {
			parent[key] = value
		}
	}
	spec := within(proxy.Object, "spec")
	options := within(spec, "options")
	unless(spec, "namespace", "default")
	unless(options, "timeout", "10m0s")
	unless(options, "enableClientCache", false)
	if options["install"] != nil {
		unless(within(options, "install"), "createNamespace", true)
	}
	if options["upgrade"] != nil {
		unless(within(options, "upgrade"), "maxHistory", int64(10))
	}
}

// applyHelm applies the component helm until the test ends, without its webhook, because no program serves it.
func applyHelm(t *testing.T, g Gomega) {
	t.Helper()
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	component := filepath.Join(root, "manifests", "helm")
	_, err = env.Kubectl(ctx, "apply", "--server-side", "-k", component)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "-k", component, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	_, err = env.Kubectl(ctx, "delete", "validatingwebhookconfiguration/muster-helm-validating-webhook")
	g.Expect(err).NotTo(HaveOccurred())
}

// Even without the webhook, a HelmChartProxy delivers nothing that its author has no right to: no Secret or ConfigMap
// that they may not get, and nothing to Clusters of other namespaces.
func TestAuthorsOfHelmChartProxies(t *testing.T) {
	g := NewWithT(t)
	applyHelm(t, g)
	own, other := newNamespace(t, g, "charts", nil), newNamespace(t, g, "charts-other", nil)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-proxies}
rules: [{apiGroups: [addons.cluster.x-k8s.io], resources: [helmchartproxies], verbs: [get, create, update, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: proxies}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-proxies}
subjects: [{kind: User, name: dora}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-proxies}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-proxies}
subjects: [{kind: User, name: platform}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: %[1]s, name: reads}
rules:
- {apiGroups: [""], resources: [secrets], resourceNames: [mine], verbs: [get]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [mine], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: reads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads}
subjects: [{kind: User, name: dora}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: %[2]s, name: reads}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [shared], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[2]s, name: reads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads}
subjects: [{kind: User, name: dora}]
`, own, other))).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "clusterrolebinding/test-proxies", "clusterrole/test-proxies"); err != nil {
			t.Error(err)
		}
	})

	dora, platform := tenant(g, "dora"), tenant(g, "platform")
	proxy := func(name, fields string) *unstructured.Unstructured {
		return object(g, fmt.Sprintf(`{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: HelmChartProxy, metadata: {namespace: %s, name: %s},
spec: {clusterSelector: {}, chartName: web, repoURL: "https://charts.example.com"%s}}`, own, name, fields))
	}
	g.Eventually(func() error { return dora.Create(ctx, proxy("there", "")) }).Should(Succeed())
	// A refusal shows that the policy is in force.
	g.Eventually(func() error { return dora.Create(ctx, proxy("try", ", namespaceSelector: {}"), client.DryRunAll) }).
		Should(MatchError(ContainSubstring("ValidatingAdmissionPolicy 'muster-helm-authors'")))

	sixteen := func(last string) string {
		text := ", valuesFrom: ["
		for range 15 {
			text += "{kind: Secret, name: mine}, "
		}
		return text + last + "]"
	}
	for name, test := range map[string]struct{ fields, refused string }{
		"nothing":                           {"", ""},
		"namespaces":                        {", namespaceSelector: {matchLabels: {a: b}}", "spec.namespaceSelector deploys to Clusters of other namespaces"},
		"credentials of its own":            {", credentials: {key: a, secret: {name: mine}}", ""},
		"credentials of its own, by name":   {fmt.Sprintf(", credentials: {key: a, secret: {name: mine, namespace: %s}}", own), ""},
		"other credentials of its own":      {", credentials: {key: a, secret: {name: theirs}}", "spec.credentials.secret names a Secret"},
		"credentials of another namespace":  {fmt.Sprintf(", credentials: {key: a, secret: {name: mine, namespace: %s}}", other), "spec.credentials.secret names a Secret"},
		"credentials that are shared":       {fmt.Sprintf(", credentials: {key: a, secret: {name: shared, namespace: %s}}", other), ""},
		"an authority of its own":           {", tlsConfig: {caSecret: {name: mine}}", ""},
		"an authority of another namespace": {fmt.Sprintf(", tlsConfig: {caSecret: {name: mine, namespace: %s}}", other), "spec.tlsConfig.caSecret names a Secret"},
		"no authority":                      {", tlsConfig: {insecureSkipTLSVerify: true}", ""},
		"values":                            {", valuesFrom: [{kind: Secret, name: mine}, {kind: ConfigMap, name: mine}]", ""},
		"values of a Secret":                {", valuesFrom: [{kind: ConfigMap, name: mine}, {kind: Secret, name: theirs}]", "spec.valuesFrom[0] or [1] names"},
		"values of a ConfigMap":             {", valuesFrom: [{kind: Secret, name: mine}, {kind: Secret, name: mine}, {kind: ConfigMap, name: theirs}]", "spec.valuesFrom[2] or [3] names"},
		"as much as there can be":           {sixteen("{kind: Secret, name: mine}") + fmt.Sprintf(", tlsConfig: {caSecret: {name: mine}}, credentials: {key: a, secret: {name: shared, namespace: %s}}", other), ""},
		"the last of many":                  {sixteen("{kind: Secret, name: theirs}"), "spec.valuesFrom[14] or [15] names"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			there := proxy("there", test.fields)
			current := proxy("there", "")
			g.Expect(dora.Get(ctx, client.ObjectKeyFromObject(current), current)).To(Succeed())
			there.SetResourceVersion(current.GetResourceVersion())
			for _, err := range []error{dora.Create(ctx, proxy("new", test.fields), client.DryRunAll), dora.Update(ctx, there, client.DryRunAll)} {
				if test.refused == "" {
					g.Expect(err).NotTo(HaveOccurred())
					continue
				}
				g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
				g.Expect(err).To(MatchError(And(ContainSubstring("muster-helm-authors"), ContainSubstring(test.refused))))
			}
		})
	}

	// A user with the right in all namespaces may select in all. Another user may change the labels of that
	// HelmChartProxy, but no part of its spec.
	g.Eventually(func() error { return platform.Create(ctx, proxy("wide", ", namespaceSelector: {}")) }).Should(Succeed())
	wide := func() *unstructured.Unstructured {
		return target("addons.cluster.x-k8s.io/v1alpha1", "HelmChartProxy", own, "wide")
	}
	g.Expect(dora.Patch(ctx, wide(), mergePatch(`{"metadata":{"labels":{"a":"b"}}}`))).To(Succeed())
	g.Expect(dora.Patch(ctx, wide(), mergePatch(`{"spec":{"repoURL":"https://charts.example.net"}}`))).
		To(MatchError(ContainSubstring("spec.namespaceSelector deploys to Clusters of other namespaces")))
}

// The changes of long lists are JSON patches with indexes. Who has read an earlier list must not change the wrong item.
func TestPatchesOfListsThatHaveChanged(t *testing.T) {
	g := NewWithT(t)
	file := "../../manifests/helm/addons.cluster.x-k8s.io_helmchartproxies.yaml"
	_, err := env.Kubectl(ctx, "apply", "-f", file)
	g.Expect(err).NotTo(HaveOccurred())
	deleteByKubectl(t, "-f", file)
	namespace := newNamespace(t, g, "lists", nil)
	matching := func(names ...string) (all []corev1.ObjectReference) {
		for _, name := range names {
			all = append(all, corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Namespace: namespace, Name: name})
		}
		return all
	}
	proxy := named(&addonsv1.HelmChartProxy{}, namespace, "web")
	proxy.Spec.ChartName, proxy.Spec.RepoURL = "web", "https://charts.example.com"
	g.Eventually(func(g Gomega) { create(g, proxy) }).Should(Succeed())
	writes := store.New(admin, admin, namespace, clock.RealClock{})
	set := func(have *addonsv1.HelmChartProxy, names ...string) error {
		want := have.DeepCopy()
		want.Status.MatchingClusters = matching(names...)
		return writes.SetStatus(ctx, have, want)
	}
	read := func() *addonsv1.HelmChartProxy { return get(g, &addonsv1.HelmChartProxy{}, namespace, "web") }
	g.Expect(set(read(), "a", "b", "d")).To(Succeed())
	before := read()
	g.Expect(set(before, "a", "b", "c", "d")).To(Succeed())
	g.Expect(read().Status.MatchingClusters).To(Equal(matching("a", "b", "c", "d")))
	g.Expect(store.IsBehind(set(before, "b", "d"))).To(BeTrue()) // An earlier list, of which every index exists.
	g.Expect(read().Status.MatchingClusters).To(Equal(matching("a", "b", "c", "d")))
	g.Expect(set(read(), "a")).To(Succeed())
	g.Expect(store.IsBehind(set(before, "b"))).To(BeTrue()) // An index does not exist any more.
	g.Expect(read().Status.MatchingClusters).To(Equal(matching("a")))
	g.Expect(set(read(), "a", "b")).To(Succeed())
	want := before.DeepCopy()
	want.Status.ObservedGeneration = 7
	g.Expect(writes.SetStatus(ctx, before, want)).To(Succeed()) // The list is not sent.
	g.Expect(read().Status.MatchingClusters).To(Equal(matching("a", "b")))
	g.Expect(read().Status.ObservedGeneration).To(Equal(int64(7)))
}

// The same holds for the targets of Bundles, but their status does not matter. A refusal is not a change by others.
func TestPatchesOfBundlesThatHaveChanged(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "targets", nil)
	writes := store.New(admin, admin, namespace, clock.RealClock{})
	targets := func(names ...string) (all []fleetv1.BundleTarget) {
		for _, name := range names {
			all = append(all, fleetv1.BundleTarget{Name: name, ClusterName: name})
		}
		return all
	}
	bundle := named(&fleetv1.Bundle{}, namespace, "web")
	bundle.Spec.Targets = targets("a", "b", "d")
	create(g, bundle)
	update := func(have *fleetv1.Bundle, names ...string) error {
		return writes.UpdateBundle(ctx, have, func(its *fleetv1.Bundle) { its.Spec.Targets = targets(names...) })
	}
	there := func() *fleetv1.Bundle { return get(g, &fleetv1.Bundle{}, namespace, "web") }
	earlier := there()
	g.Expect(update(earlier, "a", "b", "c", "d")).To(Succeed())
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("c%03d", i)
	}
	for _, names := range [][]string{{"b", "d"}, {"x"}, many, nil} { // A few changes, all targets, and none.
		err := update(earlier, names...)
		g.Expect(store.IsBehind(err)).To(BeTrue(), "%v", err)
		g.Expect(there().Spec.Targets).To(Equal(targets("a", "b", "c", "d")))
	}
	// Other changes do not matter, and change nothing else.
	earlier = there()
	g.Expect(admin.Patch(ctx, earlier.DeepCopy(), mergePatch(`{"metadata":{"labels":{"theirs":"yes"}},"status":{"observedGeneration":2}}`))).To(Succeed())
	g.Expect(update(earlier, many...)).To(Succeed())
	g.Expect(there().Spec.Targets).To(Equal(targets(many...)))
	g.Expect(there().Labels).To(HaveKeyWithValue("theirs", "yes"))
	g.Expect(writes.UpdateBundle(ctx, there(), func(its *fleetv1.Bundle) {
		its.Labels, its.Spec.Helm, its.Spec.Targets = map[string]string{"a/b": "d"}, &fleetv1.HelmOptions{Version: "1"}, nil
	})).To(Succeed())
	g.Expect(there().Labels).To(Equal(map[string]string{"a/b": "d"}))
	g.Expect(there().Spec.Helm.Version).To(Equal("1"))
	g.Expect(there().Spec.Targets).To(BeEmpty())

	// A write that the API server refuses is not one that is behind.
	refused := admin.Patch(ctx, there(), mergePatch(`{"metadata":{"labels":{"refused":"/"}}}`))
	g.Expect(apierrors.IsInvalid(refused)).To(BeTrue(), "%v", refused)
	refused = writes.UpdateBundle(ctx, there(), func(its *fleetv1.Bundle) { its.Labels["refused"] = "/" })
	g.Expect(apierrors.IsInvalid(refused)).To(BeTrue(), "%v", refused)
	g.Expect(store.IsBehind(refused)).To(BeFalse())
	gone := there()
	g.Expect(admin.Delete(ctx, gone.DeepCopy())).To(Succeed())
	g.Expect(update(gone, "a")).To(Succeed())
	create(g, named(&fleetv1.Bundle{}, namespace, "web"))
	g.Expect(store.IsBehind(update(gone, "a"))).To(BeTrue(), "it was made anew")
}
