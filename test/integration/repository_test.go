package integration

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/helm/repository"
)

// helmLimit is the memory limit of helm's container, in MiB.
const helmLimit = 512

// endless is a repository and a registry whose lists and manifests are much too long.
func endless(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/index.yaml":
		text := bytes.Repeat([]byte(" - version: 1\n"), 2700)
		_, _ = io.WriteString(w, "apiVersion: v1\nentries:\n w:\n")
		for range 1000 {
			_, _ = w.Write(text)
		}
	case strings.HasSuffix(r.URL.Path, "/tags/list"):
		if page := len(r.URL.Query().Get("page")); page < 2 {
			w.Header().Set("Link", fmt.Sprintf(`<?page=%s>; rel="next"`, strings.Repeat("x", page+1)))
		}
		_, _ = io.WriteString(w, `{"tags":["1.0.0"`+strings.Repeat(`,"1.0.0"`, 500_000)+`]}`)
	default:
		manifest := `{"layers":[{}` + strings.Repeat(`,{}`, 80_000) + `]}`
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Content-Length", fmt.Sprint(len(manifest)))
		w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(manifest))))
		_, _ = io.WriteString(w, manifest)
	}
}

// One namespace names repositories with much too long lists. The program says what is wrong with them, stays far below its
// memory limit, and installs and deletes the HelmChartProxies of another namespace.
func TestEndlessRepositories(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	bad := httptest.NewUnstartedServer(http.HandlerFunc(endless))
	bad.Config.ErrorLog = log.New(io.Discard, "", 0)
	bad.StartTLS()
	t.Cleanup(bad.Close)
	charts := repository.New()
	t.Cleanup(charts.Close)
	charts.Open()
	g.Expect(charts.Publish("web", "1.0.0", map[string]string{"values.yaml": "{}"})).To(Succeed())
	g.Expect(env.StartComponent(ctx, "helm")).To(Succeed())
	t.Cleanup(func() { removeHelm(t) })
	helm := pidOf("muster-helm")
	g.Expect(usage.ResetPeak(helm)).To(Succeed())

	attacker := newNamespace(t, g, "attacker", nil)
	installed := func(namespace, name, url, chart, version string) *addonsv1.HelmChartProxy {
		its := &addonsv1.HelmChartProxy{}
		its.Namespace, its.Name = namespace, name
		its.Spec = addonsv1.HelmChartProxySpec{RepoURL: url, ChartName: chart, Version: version, TLSConfig: &addonsv1.TLSConfig{InsecureSkipTLSVerify: true}}
		g.Eventually(func() error { return admin.Create(ctx, its) }).Should(Succeed())
		return its
	}
	registry := strings.Replace(bad.URL, "https://", "oci://", 1)
	said := map[string]string{
		"index":    "lists more than 100000 versions of the chart: name an exact version",
		"newest":   "lists more than 100000 versions of the chart: name an exact version",
		"tags":     "lists more than 100000 versions of the chart: name an exact version",
		"manifest": "has more than 16 layers",
	}
	installed(attacker, "index", bad.URL, "w", "1.x")
	installed(attacker, "newest", bad.URL+"/", "w", "")
	installed(attacker, "tags", registry, "w", "1.x")
	for i := range 3 {
		name := fmt.Sprint("tags-", i)
		said[name] = said["tags"]
		installed(attacker, name, registry, name, "1.x")
	}
	installed(attacker, "manifest", registry, "w", "1.0.0")

	web := installed(s.namespace, "web", charts.URL, "web", "1.0.x")
	g.Eventually(func(g Gomega) {
		var bundles fleetv1.BundleList
		g.Expect(admin.List(ctx, &bundles, client.InNamespace(s.namespace), client.HasLabels{"helmchartproxy-name.fleet.addons.cluster.x-k8s.io"})).To(Succeed())
		g.Expect(bundles.Items).To(HaveLen(1))
		g.Expect(bundles.Items[0].Spec.Targets).To(HaveLen(1))
	}).WithTimeout(helmPatience).Should(Succeed())
	g.Eventually(func(g Gomega) {
		for name, want := range said {
			ready := meta.FindStatusCondition(get(g, &addonsv1.HelmChartProxy{}, attacker, name).Status.Conditions, "Ready")
			g.Expect(ready).NotTo(BeNil())
			g.Expect(ready.Message).To(ContainSubstring(want))
		}
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	g.Expect(admin.Delete(ctx, web)).To(Succeed())
	g.Eventually(func() error { return admin.Get(ctx, client.ObjectKeyFromObject(web), web) }).WithTimeout(helmPatience).
		Should(MatchError(ContainSubstring("not found")))
	for name := range said {
		g.Expect(admin.Delete(ctx, named(&addonsv1.HelmChartProxy{}, attacker, name))).To(Succeed())
		g.Eventually(func() error {
			return admin.Get(ctx, client.ObjectKey{Namespace: attacker, Name: name}, &addonsv1.HelmChartProxy{})
		}).WithTimeout(helmPatience).Should(MatchError(ContainSubstring("not found")))
	}
	memory, err := usage.MemoryOf(helm)
	g.Expect(err).NotTo(HaveOccurred(), "the program was killed")
	g.Expect(pidOf("muster-helm")).To(Equal(helm), "the program was killed")
	t.Logf("the program held at most %.0f MiB", memory.Peak)
	g.Expect(memory.Peak).To(BeNumerically("<", helmLimit/4), fmt.Sprint("of ", helmLimit))
}
