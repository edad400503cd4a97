package integration

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack"
)

// helmPatience is longer than the program waits before it reads Secrets again, and longer than the garbage collector
// takes to discover new kinds.
const helmPatience = 90 * time.Second

var bindingLine = regexp.MustCompile(`kubectl (create rolebinding muster-helm-read-secrets \S+ \S+ \S+muster-helm)`)

// removeHelm removes the component helm. Its HelmChartProxies go first: they have a finalizer.
func removeHelm(t *testing.T) {
	if _, err := env.Kubectl(ctx, "delete", "helmchartproxies", "--all", "-A", "--timeout=120s"); err != nil {
		t.Error(err)
	}
	if err := env.Stop(ctx, "muster-helm"); err != nil {
		t.Error(err)
	}
	for _, folder := range []string{"../../manifests/helm-read-secrets", "../../manifests/helm"} { // Some tests apply the first.
		if _, err := env.Kubectl(ctx, "delete", "-k", folder, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	}
}

// startHelm starts the component helm, with a repository that has version 1.0.0 of chart web.
func startHelm(t *testing.T, g Gomega) *repository.Repository {
	charts := repository.New()
	t.Cleanup(charts.Close)
	g.Expect(charts.Publish("web", "1.0.0", map[string]string{"values.yaml": "{}"})).To(Succeed())
	g.Expect(env.StartComponent(ctx, "helm")).To(Succeed())
	t.Cleanup(func() { removeHelm(t) })
	return charts
}

// mayReadSecrets lets helm read the Secrets of a namespace.
func mayReadSecrets(g Gomega, namespace string) {
	_, err := env.Kubectl(ctx, "create", "rolebinding", "muster-helm-read-secrets", "-n", namespace,
		"--clusterrole=muster-helm-read-secrets", "--serviceaccount=muster-system:muster-helm")
	g.Expect(err).NotTo(HaveOccurred())
}

// By default the program may read no Secret, and says who can allow it, and how. It writes its own Secrets without
// reading them, and the garbage collector deletes those it no longer needs.
func TestHelmReadsSecretsWhereAllowed(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	charts := startHelm(t, g)
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
	// named is the Secret that the target reads values from.
	from := func(g Gomega) *fleetv1.SecretKeySelector {
		targets := bundleOf(g).Spec.Targets
		g.Expect(targets).To(HaveLen(1))
		g.Expect(targets[0].Helm).NotTo(BeNil())
		g.Expect(targets[0].Helm.ValuesFrom).To(HaveLen(1))
		return targets[0].Helm.ValuesFrom[0].SecretKeyRef
	}
	named := func(g Gomega) *corev1.Secret { return get(g, &corev1.Secret{}, s.namespace, from(g).Name) }
	written := func(g Gomega) string {
		its := named(g)
		g.Expect(its.Data).To(HaveLen(1))
		return string(its.Data[from(g).Key])
	}
	gone := func(g Gomega) {
		for _, name := range []string{"hcp-web.for.one", "hcp-web.for.one.1"} {
			err := admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &corev1.Secret{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
		}
	}
	read := func() { // A change of a Secret causes no event.
		g.Expect(admin.Patch(ctx, proxy.DeepCopy(), mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, time.Now().UnixNano())))).To(Succeed())
	}

	// The condition contains the command that an administrator must run.
	var command string
	g.Eventually(func(g Gomega) {
		message := ready(g)
		g.Expect(message).To(ContainSubstring("muster-helm may not get Secret " + s.namespace + "/values"))
		found := bindingLine.FindStringSubmatch(message)
		g.Expect(found).NotTo(BeNil(), message)
		command = found[1]
	}).Should(Succeed())
	_, err := env.Kubectl(ctx, strings.Fields(command)...)
	g.Expect(err).NotTo(HaveOccurred())
	read()
	g.Eventually(func(g Gomega) {
		g.Expect(written(g)).To(Equal("password: sesame"))
	}).WithTimeout(helmPatience).Should(Succeed())

	t.Run("it follows a change", func(t *testing.T) {
		g := NewWithT(t)
		values.Data["values.yaml"] = []byte("password: other")
		g.Expect(admin.Update(ctx, values)).To(Succeed())
		read()
		g.Eventually(func(g Gomega) {
			g.Expect(written(g)).To(Equal("password: other"))
			g.Expect(named(g).Name).To(Equal("hcp-web.for.one.1"), "what agents read stays as it is until they read something else")
		}).WithTimeout(helmPatience).Should(Succeed())
	})
	t.Run("someone else's Secret stays unchanged", func(t *testing.T) {
		g := NewWithT(t)
		foreign := &corev1.Secret{Data: map[string][]byte{"a": []byte("b")}}
		foreign.Namespace, foreign.Name = s.namespace, "hcp-other.for.one"
		g.Expect(admin.Create(ctx, foreign)).To(Succeed())
		other := &addonsv1.HelmChartProxy{Spec: *proxy.Spec.DeepCopy()}
		other.Namespace, other.Name = s.namespace, "other"
		g.Expect(admin.Create(ctx, other)).To(Succeed())
		g.Eventually(func(g Gomega) {
			condition := meta.FindStatusCondition(get(g, &addonsv1.HelmChartProxy{}, s.namespace, "other").Status.Conditions, "Ready")
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Message).To(ContainSubstring("hcp-other.for.one exists and is not Muster's"))
		}).Should(Succeed())
		g.Expect(admin.Delete(ctx, other)).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(get(g, &corev1.Secret{}, s.namespace, "hcp-other.for.one").Data).To(Equal(foreign.Data))
		}).Should(Succeed())
	})
	t.Run("created again, a HelmChartProxy takes over the Bundle of a deleted one", func(t *testing.T) {
		g := NewWithT(t)
		ours := map[string]string{"app.kubernetes.io/managed-by": "muster"}
		elsewhere := &fleetv1.Cluster{}
		elsewhere.Namespace, elsewhere.Name, elsewhere.Labels = s.namespace, "elsewhere", ours
		elsewhere.Annotations = map[string]string{"fleet.addons.cluster.x-k8s.io/released": "true"}
		g.Expect(admin.Create(ctx, elsewhere)).To(Succeed())
		left := &fleetv1.Bundle{}
		left.Namespace, left.Name, left.Labels = s.namespace, "hcp-again", maps.Clone(ours)
		left.Labels["helmchartproxy-name.fleet.addons.cluster.x-k8s.io"], left.Labels["helmchartproxy-namespace.fleet.addons.cluster.x-k8s.io"] = "again", s.namespace
		left.Annotations = map[string]string{
			"fleet.addons.cluster.x-k8s.io/helmchartproxy": s.namespace + "/again", "fleet.addons.cluster.x-k8s.io/helmchartproxy-deleted": "true",
		}
		left.Spec.Targets = []fleetv1.BundleTarget{{Name: "elsewhere", ClusterName: "elsewhere"}}
		g.Expect(admin.Create(ctx, left)).To(Succeed())
		// It selects no Cluster, so no HelmReleaseProxy names the Bundle.
		again := &addonsv1.HelmChartProxy{Spec: *proxy.Spec.DeepCopy()}
		again.Namespace, again.Name, again.Spec.ClusterSelector.MatchLabels = s.namespace, "again", map[string]string{"tier": "none"}
		g.Expect(admin.Create(ctx, again)).To(Succeed())
		g.Eventually(func(g Gomega) {
			its := get(g, &fleetv1.Bundle{}, s.namespace, "hcp-again")
			g.Expect(its.Annotations).NotTo(HaveKey("fleet.addons.cluster.x-k8s.io/helmchartproxy-deleted"))
			g.Expect(its.Spec.Targets).To(HaveLen(1), "the Cluster is still being moved")
		}).Should(Succeed())
		g.Expect(admin.Delete(ctx, again)).To(Succeed())
		g.Expect(admin.Delete(ctx, left)).To(Succeed())
	})
	t.Run("while it is moved, it stays with its Bundle", func(t *testing.T) {
		g := NewWithT(t)
		owner := bundleOf(g)
		g.Expect(owner.OwnerReferences).To(BeEmpty())
		g.Expect(named(g).OwnerReferences).To(HaveExactElements(HaveField("UID", owner.UID)))
		g.Expect(env.Stop(ctx, "muster-helm")).To(Succeed())
		// clusterctl move does this at the source.
		moved := mergePatch(`{"metadata":{"annotations":{"clusterctl.cluster.x-k8s.io/delete-for-move":""}}}`)
		release := get(g, &addonsv1.HelmReleaseProxy{}, s.namespace, "web-one")
		for _, its := range []client.Object{proxy.DeepCopy(), release} {
			g.Expect(admin.Patch(ctx, its, moved)).To(Succeed())
			g.Expect(admin.Delete(ctx, its)).To(Succeed())
			g.Expect(admin.Patch(ctx, its, mergePatch(`{"metadata":{"finalizers":null}}`))).To(Succeed())
		}
		g.Expect(env.Start(ctx, "muster-helm")).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(bundleOf(g).Spec.Targets).To(HaveLen(1))
			g.Expect(written(g)).To(Equal("password: other"))
		}).WithTimeout(5 * time.Second).Should(Succeed())
	})
	t.Run("it goes with its HelmChartProxy", func(t *testing.T) {
		g := NewWithT(t)
		again := &addonsv1.HelmChartProxy{Spec: proxy.Spec}
		again.Namespace, again.Name = s.namespace, "web"
		g.Expect(admin.Create(ctx, again)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(get(g, &addonsv1.HelmReleaseProxy{}, s.namespace, "web-one").Finalizers).NotTo(BeEmpty())
		}).Should(Succeed())
		g.Expect(admin.Delete(ctx, again)).To(Succeed())
		g.Eventually(gone).WithTimeout(helmPatience).Should(Succeed())
	})
}

// A Secret with values that somebody has made immutable cannot be emptied. The HelmChartProxy is deleted all the same, an
// event on it names the Secret, and the deletion of the Bundle takes it.
func TestHelmLeavesImmutableSecrets(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	charts := startHelm(t, g)
	g.Expect(env.Restart(ctx, "kube-controller-manager")).To(Succeed()) // The garbage collector learns the new kinds.
	mayReadSecrets(g, s.namespace)

	access := &corev1.Secret{Data: charts.Secret()}
	access.Namespace, access.Name = s.namespace, "repository"
	values := &corev1.Secret{Data: map[string][]byte{"values.yaml": []byte("password: sesame")}}
	values.Namespace, values.Name = s.namespace, "values"
	proxy := &addonsv1.HelmChartProxy{}
	proxy.Namespace, proxy.Name = s.namespace, "web"
	proxy.Spec = addonsv1.HelmChartProxySpec{
		RepoURL: charts.URL, ChartName: "web", Version: "1.0.0",
		Credentials: &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "repository"}, Key: "config.json"},
		TLSConfig:   &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: "repository"}},
		ValuesFrom:  []addonsv1.ValuesReference{{Kind: "Secret", Name: "values"}},
	}
	for _, its := range []client.Object{access, values, proxy} {
		g.Eventually(func() error { return admin.Create(ctx, its) }).Should(Succeed())
	}
	written := named(&corev1.Secret{}, s.namespace, "hcp-web.for.one")
	g.Eventually(func(g Gomega) {
		g.Expect(get(g, &addonsv1.HelmChartProxy{}, s.namespace, "web").Status.Conditions).To(HaveEach(HaveField("Message", Not(ContainSubstring("may not")))))
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(written), written)).To(Succeed())
		g.Expect(get(g, &addonsv1.HelmReleaseProxy{}, s.namespace, "web-one").Annotations["fleet.addons.cluster.x-k8s.io/release"]).To(ContainSubstring("secret"))
	}).WithTimeout(helmPatience).Should(Succeed())
	g.Expect(admin.Patch(ctx, written, mergePatch(`{"immutable":true}`))).To(Succeed())

	g.Expect(admin.Delete(ctx, proxy)).To(Succeed())
	g.Eventually(func(g Gomega) {
		err := admin.Get(ctx, client.ObjectKeyFromObject(proxy), &addonsv1.HelmChartProxy{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
		var all eventsv1.EventList
		g.Expect(admin.List(ctx, &all, client.InNamespace(s.namespace))).To(Succeed())
		g.Expect(all.Items).To(ContainElement(And(HaveField("Reason", "SecretNotEmptied"),
			HaveField("Regarding.Name", "web"), HaveField("Note", ContainSubstring(s.namespace+"/hcp-web.for.one")))))
	}).Should(Succeed())
	g.Eventually(func(g Gomega) {
		err := admin.Get(ctx, client.ObjectKeyFromObject(written), written)
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
	}).WithTimeout(helmPatience).Should(Succeed())
}

// The token of helm writes no Secret that another program would take for its own.
func TestHelmToken(t *testing.T) {
	g := NewWithT(t)
	files := []string{
		"service_account.yaml", "role.yaml", "policy_values.yaml", "policy_bundles.yaml", "policy_releases.yaml",
		"addons.cluster.x-k8s.io_helmreleaseproxies.yaml",
	}
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
		digestKey, digestType = "muster-helm-digest-key", "fleet.addons.cluster.x-k8s.io/digest-key"
		valuesType            = "fleet.addons.cluster.x-k8s.io/helm-values"
	)
	namespace := newNamespace(t, g, "foreign", nil)
	thief := accountOf(g, "muster-helm")
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
	patch := func(s sample, object map[string]any) (int, string) {
		name := "/" + object["metadata"].(map[string]any)["name"].(string)
		return thief.send(g, s, attempt{method: http.MethodPatch, path: name, contentType: "application/merge-patch+json", query: url.Values{"dryRun": {"All"}}, body: object})
	}
	foreign, its := secretIn(namespace), secretIn("muster-system")
	configMaps := sample{"v1", "ConfigMap", "configmaps", namespace, ""}
	bundles := sample{fleetVersion, "Bundle", "bundles", namespace, ""}
	releases := sample{"addons.cluster.x-k8s.io/v1alpha1", "HelmReleaseProxy", "helmreleaseproxies", namespace, ""}
	of := func(s sample, name string, labels map[string]any, metadata, fields map[string]any) map[string]any {
		object := s.object(name, fields)
		object["metadata"].(map[string]any)["labels"] = labels
		maps.Copy(object["metadata"].(map[string]any), metadata)
		return object
	}
	handing := func(name string) map[string]any {
		return map[string]any{"spec": map[string]any{"targets": []any{map[string]any{
			"clusterName": "one", "downstreamResources": []any{map[string]any{"kind": "Secret", "name": name}}}}}}
	}
	configMap := func(name string, labels map[string]any, annotation string) map[string]any {
		return of(configMaps, name, labels, map[string]any{"annotations": map[string]any{annotation: "any"}}, nil)
	}
	release := func(name, finalizer, owner, cluster string) map[string]any {
		return of(releases, name, nil, map[string]any{
			"finalizers":      []any{finalizer},
			"ownerReferences": []any{map[string]any{"apiVersion": "addons.cluster.x-k8s.io/v1alpha1", "kind": owner, "name": "any", "uid": "any"}},
		}, map[string]any{"spec": map[string]any{
			"clusterRef": map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": cluster, "namespace": namespace, "name": "any"},
			"chartName":  "any", "repoURL": "https://charts.example.com", "releaseName": "any", "namespace": "default",
		}})
	}
	g.Eventually(func() string {
		_, answer := create(foreign, secret(foreign, "any", "Opaque", "a", nil))
		return answer
	}).Should(ContainSubstring("muster-helm may touch only"))
	key := &unstructured.Unstructured{Object: its.object(digestKey, nil)} // The program may have created it.
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, key))).To(Succeed())
	there := &unstructured.Unstructured{Object: secret(foreign, "hcp-there.for.one", valuesType, "00.yaml", own())}
	g.Expect(admin.Create(ctx, there)).To(Succeed())
	const ourAnnotation, ourFinalizer = "fleet.addons.cluster.x-k8s.io/helmchartproxy", "fleet.addons.cluster.x-k8s.io/helm"
	for _, object := range []map[string]any{
		configMap("hcp-there.for.one", own("example.com/label"), "example.com/annotation"), of(bundles, "hcp-there", own(), nil, nil),
		release("there", "example.com/finalizer", "HelmChartProxy", "Cluster"), release("edited", "example.com/finalizer", "HelmReleaseProxy", "Secret"),
	} {
		g.Eventually(func() error { return admin.Create(ctx, (&unstructured.Unstructured{Object: object}).DeepCopy()) }).Should(Succeed())
	}
	t.Cleanup(func() { // The deletion of its namespace must not wait for it.
		for _, name := range []string{"there", "edited"} {
			_, err := env.Kubectl(ctx, "patch", "helmreleaseproxies", name, "--namespace="+namespace, "--type=merge", `--patch={"metadata":{"finalizers":null}}`)
			g.Expect(err).NotTo(HaveOccurred())
		}
	})
	managed := map[string]any{"app.kubernetes.io/managed-by": "muster"}
	for name, test := range map[string]struct {
		send    func(sample, map[string]any) (int, string)
		in      sample
		object  map[string]any
		refused string
	}{
		"the key of digests":                  {create, its, secret(its, digestKey, digestType, "key", managed), ""},
		"the key in another namespace":        {create, foreign, secret(foreign, digestKey, digestType, "key", managed), "only in its own namespace"},
		"the key under another name":          {create, its, secret(its, digestKey, digestType, "server", managed), "only in its own namespace"},
		"the key with another label":          {create, its, secret(its, digestKey, digestType, "key", own("example.com/secret-type")), "no labels but"},
		"values":                              {create, foreign, secret(foreign, "hcp-x.for.one", valuesType, "00.yaml", own()), ""},
		"values with another label":           {create, foreign, secret(foreign, "hcp-x.for.one", valuesType, "00.yaml", own("example.com/secret-type")), "no labels but"},
		"values as before":                    {update, foreign, secret(foreign, "hcp-there.for.one", valuesType, "00.yaml", own()), ""},
		"another label for values":            {update, foreign, secret(foreign, "hcp-there.for.one", valuesType, "00.yaml", own("example.com/secret-type")), "no labels but"},
		"values that another one manages":     {update, foreign, secret(foreign, "hcp-there.for.one", valuesType, "00.yaml", map[string]any{"app.kubernetes.io/managed-by": "Helm"}), "no labels but"},
		"a ConfigMap":                         {create, configMaps, configMap("hcp-x.for.one", own(), ourAnnotation), ""},
		"a ConfigMap with another label":      {create, configMaps, configMap("hcp-x.for.one", own("example.com/label"), ourAnnotation), "no labels to ConfigMaps"},
		"a ConfigMap with another annotation": {create, configMaps, configMap("hcp-x.for.one", own(), "example.com/annotation"), "no annotations but"},
		"what others added to a ConfigMap":    {patch, configMaps, configMap("hcp-there.for.one", own("example.com/label"), "example.com/annotation"), ""},
		"more than others added to it":        {patch, configMaps, configMap("hcp-there.for.one", own("example.com/label"), "example.com/another"), "no annotations but"},
		"a Bundle":                            {patch, bundles, of(bundles, "hcp-there", own(), nil, nil), ""},
		"a Bundle without its labels":         {patch, bundles, of(bundles, "hcp-there", map[string]any{"app.kubernetes.io/managed-by": nil}, nil, nil), "may not take its labels off"},
		"a Bundle with its annotation":        {patch, bundles, of(bundles, "hcp-there", own(), map[string]any{"annotations": map[string]any{ourAnnotation: "any"}}, nil), ""},
		"a Bundle with another annotation":    {patch, bundles, of(bundles, "hcp-there", own(), map[string]any{"annotations": map[string]any{"example.com/annotation": "any"}}, nil), "may change no finalizers"},
		"a Bundle with a label of Fleet's":    {create, bundles, of(bundles, "hcp-another", own("fleet.cattle.io/repo-name"), nil, nil), "may change no finalizers"},
		"a Bundle with values":                {patch, bundles, of(bundles, "hcp-there", own(), nil, handing("hcp-there.for.one")), ""},
		"a Bundle that hands a Secret out":    {patch, bundles, of(bundles, "hcp-there", own(), nil, handing("cloud-credentials")), "may have Fleet copy only objects"},
		"a Secret for all its targets": {patch, bundles, of(bundles, "hcp-there", own(), nil, map[string]any{"spec": map[string]any{
			"downstreamResources": []any{map[string]any{"kind": "Secret", "name": "hcp-there.for.one"}}}}), "may have Fleet copy only objects"},
		"a Bundle that never ends":        {patch, bundles, of(bundles, "hcp-there", own(), map[string]any{"finalizers": []any{"example.com/finalizer"}}, nil), "may change no finalizers"},
		"a release":                       {create, releases, release("another", ourFinalizer, "HelmChartProxy", "Cluster"), ""},
		"a release that never ends":       {create, releases, release("another", "example.com/finalizer", "HelmChartProxy", "Cluster"), "no other finalizer"},
		"a release that others finalize":  {patch, releases, release("there", "example.com/finalizer", "HelmChartProxy", "Cluster"), ""},
		"a release that others finalized": {patch, releases, of(releases, "there", nil, map[string]any{"finalizers": []any{}}, nil), "no other finalizer"},
		"a release that others edited":    {patch, releases, release("edited", "example.com/finalizer", "HelmReleaseProxy", "Secret"), ""},
		"a release of something else":     {create, releases, release("another", ourFinalizer, "HelmReleaseProxy", "Cluster"), "only HelmChartProxies owners"},
		"a release on something else":     {create, releases, release("another", ourFinalizer, "HelmChartProxy", "Secret"), "only Clusters"},
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
	// So the program finds out whether a Secret exists, and learns nothing else about it.
	for name, want := range map[string]int{"hcp-there.for.one": http.StatusConflict, "hcp-gone.for.one": http.StatusNotFound} {
		object := foreign.object(name, nil)
		object["metadata"].(map[string]any)["resourceVersion"] = "9223372036854775807"
		code, answer := update(foreign, object)
		g.Expect(code).To(Equal(want), answer)
		g.Expect(answer).NotTo(ContainSubstring("00.yaml"))
	}
}

// The CRD has the defaults that the webhook of an earlier version set. Its configuration, which `kubectl apply` leaves behind,
// refuses nothing. A HelmChartProxy that was stored without defaults, because that webhook was down, is not rewritten.
func TestDefaultsOfHelmChartProxies(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.StartComponent(ctx, "helm")).To(Succeed())
	t.Cleanup(func() { removeHelm(t) })
	configure(t, g, "{}")
	namespace := newNamespace(t, g, "undefaulted", nil)
	proxy := func(name string) *addonsv1.HelmChartProxy {
		its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		its.Spec.ClusterSelector.MatchLabels = map[string]string{"charts": "none"}
		its.Spec.RepoURL, its.Spec.ChartName, its.Spec.Version = "https://charts.example.com", "any", "1.0.0"
		return its
	}
	g.Expect(env.Stop(ctx, "muster-helm")).To(Succeed()) // Otherwise it sets the finalizer before the defaults are back.
	crd := object(g, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: helmchartproxies.addons.cluster.x-k8s.io}}`)
	const at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/"
	g.Expect(admin.Patch(ctx, crd, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"`+at+`namespace/default"},
{"op":"remove","path":"`+at+`options/default"},{"op":"remove","path":"`+at+`options/properties/timeout/default"}]`)))).To(Succeed())
	g.Eventually(func(g Gomega) { // API servers take a moment to notice.
		its := proxy("old")
		g.Expect(admin.Create(ctx, its, client.DryRunAll)).To(Succeed())
		g.Expect(its.Spec.Options.Timeout).To(BeNil())
	}).Should(Succeed())
	g.Expect(admin.Create(ctx, proxy("old"))).To(Succeed())

	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = env.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", filepath.Join(root, "manifests/helm/addons.cluster.x-k8s.io_helmchartproxies.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	of := get(g, &admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-helm-validating-webhook").Webhooks[0].ClientConfig
	of.Service.Path = ptr.To(admission.DefaultChartPath)
	create(g, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "muster-helm-mutating-webhook"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		Name: "default.helmchartproxies.addons.cluster.x-k8s.io", AdmissionReviewVersions: []string{"v1"}, ClientConfig: of,
		FailurePolicy: ptr.To(admissionregistrationv1.Fail), SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
		Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE"}, Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"addons.cluster.x-k8s.io"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"helmchartproxies"},
		}}},
	}}})
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "mutatingwebhookconfiguration", "muster-helm-mutating-webhook"); err != nil {
			t.Error(err)
		}
	})
	g.Eventually(func(g Gomega) {
		its := proxy("new")
		g.Expect(admin.Create(ctx, its, client.DryRunAll)).To(Succeed())
		g.Expect(its.Spec.Options.Timeout).To(HaveField("Duration", 10*time.Minute))
		g.Expect(its.Spec.ReleaseNamespace).To(Equal("default"))
	}).Should(Succeed())
	g.Expect(env.Start(ctx, "muster-helm")).To(Succeed())
	g.Eventually(func(g Gomega) {
		its := get(g, &addonsv1.HelmChartProxy{}, namespace, "old")
		g.Expect(its.Finalizers).To(ContainElement("fleet.addons.cluster.x-k8s.io/helm"))
		g.Expect(its.Generation).To(BeEquivalentTo(1))
	}).Should(Succeed())
}
