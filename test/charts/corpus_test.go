package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/fixture"
)

// projectChart is a chart of another project. The zip of a Go module holds all files of its repository,
// and the sum that go.sum would have.
type projectChart struct {
	name, module, sum, dir string
	// deployment is one of its Deployments. Nothing runs its image here, so values ask for no replicas.
	deployment string
	// values are a template: %s is an annotation of that Deployment's Pods.
	values string
}

var corpus = []projectChart{
	{
		name: "metrics-server", module: "sigs.k8s.io/metrics-server@v0.9.0", sum: "h1:nlqqZ2H0Xfko8eJC/1qaNVVT17hu4rxndkOi22KTZ4w=", dir: "charts/metrics-server",
		deployment: "metrics-server", values: "replicas: 0\napiService: {create: false}\npodAnnotations: {who: %s}\n",
	},
	{
		name: "ingress-nginx", module: "k8s.io/ingress-nginx@v0.0.0-20240708192948-52c50467d67d", sum: "h1:tZui5g6S4GO1hxLm6yrEoIXLkl4QfeGytlmZqZ+DmdQ=", dir: "charts/ingress-nginx",
		deployment: "ingress-nginx-controller",
		values:     "controller: {replicaCount: 0, podAnnotations: {who: %s}, service: {type: ClusterIP}, admissionWebhooks: {enabled: false}}\n",
	},
}

var chartVersion = regexp.MustCompile(`(?m)^version:.*$`)

// publish adds the chart to the repository in some versions, all with the same templates.
func (c *projectChart) publish(t *testing.T, versions ...string) (archives map[string]string) {
	g := NewWithT(t)
	command := exec.CommandContext(ctx, "go", "mod", "download", "-json", c.module)
	command.Dir, command.Env = t.TempDir(), append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := command.Output()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	var module struct{ Dir, Sum string }
	g.Expect(json.Unmarshal(out, &module)).To(Succeed())
	g.Expect(module.Sum).To(Equal(c.sum))
	archives = map[string]string{}
	for _, version := range versions {
		var packed bytes.Buffer
		zipper := gzip.NewWriter(&packed)
		writer := tar.NewWriter(zipper)
		root := filepath.Join(module.Dir, filepath.FromSlash(c.dir))
		g.Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			relative := strings.TrimPrefix(filepath.ToSlash(strings.TrimPrefix(path, root)), "/")
			if relative == "Chart.yaml" {
				content = chartVersion.ReplaceAll(content, []byte("version: "+version))
			}
			if err := writer.WriteHeader(&tar.Header{Name: c.name + "/" + relative, Mode: 0o644, Size: int64(len(content))}); err != nil {
				return err
			}
			_, err = writer.Write(content)
			return err
		})).To(Succeed())
		g.Expect(writer.Close()).To(Succeed())
		g.Expect(zipper.Close()).To(Succeed())
		charts.PublishArchive(c.name, version, packed.Bytes())
		archives[version] = filepath.Join(t.TempDir(), c.name+"-"+version+".tgz")
		g.Expect(os.WriteFile(archives[version], packed.Bytes(), 0o600)).To(Succeed())
	}
	return archives
}

func (c *projectChart) proxy(release, version string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s}
spec:
  clusterSelector: {matchLabels: {corpus: %[2]s}}
  repoURL: %s
  chartName: %[2]s
  releaseName: %[4]s
  version: %[5]q
  namespace: %[2]s
  credentials: {secret: {name: repository}, key: config.json}
  tlsConfig: {caSecret: {name: repository}}
  valuesTemplate: |
    %[6]s
`, team, c.name, charts.URL, release, version, strings.ReplaceAll(fmt.Sprintf(c.values, "{{ .Cluster.metadata.labels.who }}"), "\n", "\n    "))
}

// helm is what people use without Fleet, on the cluster two.
type helm struct {
	program  string
	archives map[string]string
	chart    *projectChart
}

func (h *helm) run(args ...string) (string, error) {
	command := exec.CommandContext(ctx, h.program, append(args, "--kubeconfig", env.HostedKubeconfig(two.namespace, two.name), "-n", h.chart.name)...)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (h *helm) upgrade(t *testing.T, release, version, who string) (string, error) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, fmt.Appendf(nil, h.chart.values, who), 0o600); err != nil {
		return "", err
	}
	return h.run("upgrade", "--install", "--create-namespace", release, h.archives[version], "-f", values)
}

// objects returns what belongs to the release on both clusters, without what differs for other reasons.
func (h *helm) objects(g Gomega, release string) (fleets, helms map[string]map[string]any) {
	manifest, err := h.run("get", "manifest", release)
	g.Expect(err).NotTo(HaveOccurred(), manifest)
	fleets, helms = map[string]map[string]any{}, map[string]map[string]any{}
	for _, document := range strings.Split(manifest, "\n---") {
		object := &unstructured.Unstructured{}
		g.Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
		if object.GetKind() == "" {
			continue
		}
		kind := object.GetKind()
		if group := object.GroupVersionKind().Group; group != "" {
			kind += "." + group
		}
		namespace := object.GetNamespace()
		if namespace == "" {
			namespace = h.chart.name
		}
		for on, all := range map[cluster]map[string]map[string]any{one: fleets, two: helms} {
			out, err := on.kubectl("-n", namespace, "get", kind, object.GetName(), "-o", "json", "--ignore-not-found")
			g.Expect(err).NotTo(HaveOccurred(), out)
			if out != "" {
				all[kind+" "+object.GetName()] = comparable(g, out)
			}
		}
	}
	g.Expect(helms).NotTo(BeEmpty())
	return fleets, helms
}

// comparable drops what two clusters never have in common, and what Fleet adds to all objects.
func comparable(g Gomega, out string) map[string]any {
	object := &unstructured.Unstructured{}
	g.Expect(json.Unmarshal([]byte(out), &object.Object)).To(Succeed())
	delete(object.Object, "status")
	spec, _, _ := unstructured.NestedMap(object.Object, "spec")
	for _, field := range []string{"clusterIP", "clusterIPs"} {
		delete(spec, field)
	}
	if spec != nil {
		object.Object["spec"] = spec
	}
	strip := func(all map[string]string) map[string]string {
		for key := range all {
			if strings.HasPrefix(key, "objectset.rio.cattle.io/") || strings.HasPrefix(key, "deployment.kubernetes.io/") || key == "deprecated.daemonset.template.generation" {
				delete(all, key)
			}
		}
		return all
	}
	kept := map[string]any{"name": object.GetName(), "labels": strip(object.GetLabels()), "annotations": strip(object.GetAnnotations())}
	object.Object["metadata"] = kept
	return object.Object
}

func (c *projectChart) who(on cluster) string {
	out, _ := on.kubectl("-n", c.name, "get", "deployment", c.deployment, "-o", "jsonpath={.spec.template.metadata.annotations.who} {.spec.template.metadata.labels} {.metadata.labels}", "--ignore-not-found")
	return out
}

// differences says in short how what Fleet has deployed differs from what Helm has.
func differences(fleets, helms map[string]map[string]any) (all []string) {
	for name, want := range helms {
		have, found := fleets[name]
		if !found {
			all = append(all, name+" is missing")
		} else if diff := cmp.Diff(want, have); diff != "" {
			all = append(all, name+" differs:\n"+diff)
		}
	}
	slices.Sort(all)
	return all
}

// TestCorpus installs charts of other projects, by a HelmChartProxy on one cluster and by Helm on the
// other, and compares what is there after each change.
func TestCorpus(t *testing.T) {
	g := NewWithT(t)
	program, err := fixture.Program("tools/helm3", "helm.sh/helm/v3/cmd/helm", t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, repositorySecret())).To(Succeed())
	for i := range corpus {
		chart := &corpus[i]
		t.Run(chart.name, func(t *testing.T) {
			chart.compare(t, &helm{program: program, chart: chart, archives: chart.publish(t, "1.0.0", "1.1.0", "1.2.0")})
		})
	}
}

func (c *projectChart) compare(t *testing.T, helm *helm) {
	g := NewWithT(t)
	one.label(g, "corpus="+c.name)
	one.label(g, "who=first")
	t.Cleanup(func() { one.label(NewWithT(t), "corpus-"); one.label(NewWithT(t), "who-") })
	same := func(name, release, version, who string, change func(g Gomega)) bool {
		return t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			out, err := helm.upgrade(t, release, version, who)
			g.Expect(err).NotTo(HaveOccurred(), out)
			begin := time.Now()
			change(g)
			g.Eventually(func(g Gomega) {
				fleets, helms := helm.objects(g, release)
				g.Expect(differences(fleets, helms)).To(BeEmpty(), told(proxy(g, c.name)))
			}).WithTimeout(90 * time.Second).WithPolling(2 * time.Second).Should(Succeed())
			t.Logf("same after %s", time.Since(begin).Round(time.Second))
			g.Eventually(func(g Gomega) { isReady(g, c.name) }).Should(Succeed())
			t.Logf("ready after %s", time.Since(begin).Round(time.Second))
		})
	}
	if !same("install", c.name, "1.0.0", "first", func(g Gomega) { g.Expect(env.Apply(ctx, c.proxy(c.name, "1.0.0"))).To(Succeed()) }) {
		return
	}
	same("a value", c.name, "1.0.0", "second", func(g Gomega) { one.label(g, "who=second") })
	same("upgrade", c.name, "1.1.0", "second", func(g Gomega) { patch(g, c.name, `{"spec":{"version":"1.1.0"}}`) })
	t.Run("a value whose first try is refused", func(t *testing.T) { c.refused(t, helm) })
	for _, on := range []cluster{one, two} {
		_, err := on.kubectl("-n", c.name, "scale", "deployment", c.deployment, "--replicas=3")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = on.kubectl("-n", c.name, "patch", "deployment", c.deployment, "--type=merge", "-p", `{"spec":{"template":{"metadata":{"annotations":{"who":"somebody"}}}}}`)
		g.Expect(err).NotTo(HaveOccurred())
	}
	// Fleet's agent applies without force, and retries; it does not say why.
	t.Run("upgrade of what others have changed", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, c.name, `{"spec":{"version":"1.2.0"}}`)
		g.Eventually(func(g Gomega) {
			g.Expect(told(proxy(g, c.name))).To(ContainSubstring("Fleet's agent has not deployed this yet"))
		}).WithTimeout(60 * time.Second).Should(Succeed())
		g.Consistently(func(g Gomega) { isNotReady(g, c.name) }).WithTimeout(20 * time.Second).Should(Succeed())
	})
	out, err := helm.run("uninstall", c.name)
	g.Expect(err).NotTo(HaveOccurred(), out)
	// Fleet's agent may install the new release before it has uninstalled the old one, and does not retry.
	t.Run("another release name", func(t *testing.T) {
		g := NewWithT(t)
		out, err := helm.upgrade(t, "renamed", "1.2.0", "third")
		g.Expect(err).NotTo(HaveOccurred(), out)
		patch(g, c.name, `{"spec":{"releaseName":"renamed"}}`)
		g.Eventually(func(g Gomega) {
			if strings.Contains(told(proxy(g, c.name)), "exists and cannot be imported into the current release") {
				return
			}
			fleets, helms := helm.objects(g, "renamed")
			g.Expect(differences(fleets, helms)).To(BeEmpty())
			isReady(g, c.name)
		}).WithTimeout(90 * time.Second).WithPolling(2 * time.Second).Should(Succeed())
	})
	deselected := func(name string) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, helms := helm.objects(g, "renamed")
			one.label(g, "corpus-")
			g.Eventually(func(g Gomega) {
				for its := range helms {
					kind, object, _ := strings.Cut(its, " ")
					out, err := one.kubectl("-n", c.name, "get", kind, object, "-o", "name", "--ignore-not-found")
					g.Expect(err == nil && out != "").To(BeFalse(), "%s is left", its)
				}
			}).WithTimeout(90 * time.Second).WithPolling(2 * time.Second).Should(Succeed())
		})
	}
	deselected("deselected")
	same("selected again", "renamed", "1.2.0", "third", func(g Gomega) { one.label(g, "corpus="+c.name) })
	deselected("deselected at last")
}

func isNotReady(g Gomega, name string) {
	its := proxy(g, name)
	g.Expect(meta.IsStatusConditionTrue(its.Status.Conditions, "Ready")).To(BeFalse(), told(its))
}

const refusal = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refuse-third}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE, UPDATE]}]}
  validations: [{expression: "!('who' in object.spec.template.metadata.?annotations.orValue({})) || object.spec.template.metadata.annotations.who != 'third'", message: "nobody is third"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refuse-third}
spec: {policyName: refuse-third, validationActions: [Deny]}
`

// refused changes a value, which an admission policy of the cluster refuses at first.
func (c *projectChart) refused(t *testing.T, helm *helm) {
	g := NewWithT(t)
	_, err := env.HostedKubectlInput(ctx, one.namespace, one.name, refusal, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		out, err := one.kubectl("-n", c.name, "patch", "deployment", c.deployment, "--dry-run=server", "--type=merge", "-p", `{"spec":{"template":{"metadata":{"annotations":{"who":"third"}}}}}`)
		g.Expect(err).To(HaveOccurred(), out)
	}).Should(Succeed())
	one.label(g, "who=third")
	t.Run("it says why", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			isNotReady(g, c.name)
			g.Expect(told(proxy(g, c.name))).To(ContainSubstring("nobody is third"))
		}).WithTimeout(60 * time.Second).Should(Succeed())
		g.Consistently(func(g Gomega) { isNotReady(g, c.name) }).WithTimeout(15 * time.Second).Should(Succeed())
	})
	_, err = env.HostedKubectlInput(ctx, one.namespace, one.name, refusal, "delete", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Run("it follows once nothing refuses it", func(t *testing.T) {
		g := NewWithT(t)
		out, err := helm.upgrade(t, c.name, "1.1.0", "third")
		g.Expect(err).NotTo(HaveOccurred(), out)
		g.Eventually(func(g Gomega) { g.Expect(c.who(one)).To(HavePrefix("third ")) }).WithTimeout(3 * time.Minute).Should(Succeed())
		g.Eventually(func(g Gomega) { isReady(g, c.name) }).Should(Succeed())
	})
}
