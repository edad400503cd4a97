package helm

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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/fixture"
)

// projectChart is a chart of another project. The zip of a Go module holds all files of its repository, and sum
// is its checksum, as in go.sum.
type projectChart struct {
	name, module, sum, dir string
	// deployment is one of its Deployments, if it has any.
	deployment string
	// values is a template: %s is an annotation of that Deployment's Pods. No node runs their images, so the
	// values ask for zero replicas where Helm waits for them.
	values string
}

var corpus = []projectChart{
	{ // Its objects' names do not begin with the release's.
		name: "metrics-server", module: "sigs.k8s.io/metrics-server@v0.9.0", sum: "h1:nlqqZ2H0Xfko8eJC/1qaNVVT17hu4rxndkOi22KTZ4w=", dir: "charts/metrics-server",
		deployment: "metrics-server", values: "replicas: 0\napiService: {create: false}\npodAnnotations: {who: %s}\n",
	},
	{ // Hooks before and after an install and an upgrade.
		name: "ingress-nginx", module: "k8s.io/ingress-nginx@v0.0.0-20240708192948-52c50467d67d", sum: "h1:tZui5g6S4GO1hxLm6yrEoIXLkl4QfeGytlmZqZ+DmdQ=", dir: "charts/ingress-nginx",
		deployment: "ingress-nginx-controller", values: "controller: {replicaCount: 0, podAnnotations: {who: %s}}\n",
	},
	{ // Subcharts, CRDs in templates, hooks after an upgrade and before the deletion, lookup.
		name: "kyverno", module: "github.com/kyverno/kyverno@v1.19.1", sum: "h1:/MkgFii3/VlQfKR1JpC9tVwNNVNQTt2S4U6qCsafsTU=", dir: "charts/kyverno",
		deployment: "kyverno-admission-controller", // The chart refuses the number 0.
		values:     "admissionController: {replicas: '0', podAnnotations: {who: %s}}\nbackgroundController: {replicas: '0'}\ncleanupController: {replicas: '0'}\nreportsController: {replicas: '0'}\n",
	},
	{ // CRDs in templates, a hook after the install, kubeVersion, 1.5 MiB.
		name: "cert-manager", module: "github.com/cert-manager/cert-manager@v1.21.2", sum: "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=", dir: "deploy/charts/cert-manager",
		deployment: "cert-manager", values: "crds: {enabled: true, keep: false}\nreplicaCount: 0\nwebhook: {replicaCount: 0}\ncainjector: {replicaCount: 0}\npodAnnotations: {who: %s}\n",
	},
	{ // Subcharts, one of them an archive; CRDs in their templates.
		name: "metallb", module: "go.universe.tf/metallb@v0.16.2", sum: "h1:RCSAGoZmqcvTg0e56+Okbwz8iTuQVX30JpKX5mYEPUM=", dir: "charts/metallb",
		deployment: "metallb-controller", values: "controller: {podAnnotations: {who: %s}}\n",
	},
	{ // CRDs in crds, a schema of its values.
		name: "external-dns", module: "sigs.k8s.io/external-dns@v0.22.0", sum: "h1:+ASJ3KF7DLqHo2LsG8Qinuh2J389MS86I19i/r8ewUc=", dir: "charts/external-dns",
		deployment: "external-dns", values: "policy: sync\npodAnnotations: {who: %s}\n",
	},
	{ // The first version of Chart.yaml.
		name: "descheduler", module: "sigs.k8s.io/descheduler@v0.36.0", sum: "h1:fBemfJD1RhmbsdH94lKwGMOwQcbsrw67A5IK2c2fANA=", dir: "charts/descheduler",
		deployment: "descheduler", values: "kind: Deployment\npodAnnotations: {who: %s}\n",
	},
	{ // A hook before the deletion, CRDs in crds, 1.5 MiB.
		name: "tigera-operator", module: "github.com/projectcalico/calico@v1.11.0-cni-plugin.0.20250813170300-a0db560f0520", sum: "h1:TXnPEzx4pLWgwzCetIO/VJuz4iBZZrOdNSv16a50YqE=",
		dir: "charts/tigera-operator", deployment: "tigera-operator", values: "podAnnotations: {who: %s}\n",
	},
	{ // Certificates made by the templates, lookup, 2 MiB.
		name: "cilium", module: "github.com/cilium/cilium@v1.20.2", sum: "h1:dqiEGIcXc+gqCLYG/l7VCFJ8GHyb4HUrwbZOpkX5dL8=", dir: "install/kubernetes/cilium",
		deployment: "cilium-operator", // Its values.yaml has nulls, which Helm 4 leaves out, and so Fleet.
		values: "operator: {replicas: 0, podAnnotations: {who: %s}}\nnodeSelector: {nowhere: here}\nenvoy: {enabled: false}\n" +
			"debug: {verbose: ''}\nnodePort: {addresses: []}\npolicyCIDRMatchMode: []\nk8s: {apiServerURLs: ''}\n",
	},
	{ // Nothing but CRDs in templates.
		name: "fleet-crd", module: "github.com/rancher/fleet@v0.16.0", sum: "h1:F2TGCISi1mvvgJ5UFkHj/YY4WYLa37MrJspru6eKoaA=", dir: "charts/fleet-crd",
		values: "who: %s\n",
	},
}

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
	root := filepath.Join(module.Dir, filepath.FromSlash(c.dir))
	for _, version := range versions {
		var packed bytes.Buffer
		zipper := gzip.NewWriter(&packed)
		writer := tar.NewWriter(zipper)
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
				if content, err = released(content, root, version); err != nil {
					return err
				}
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

// released sets the version in a Chart.yaml, and drops the dependencies that the repository does not hold.
func released(content []byte, root, version string) ([]byte, error) {
	var its map[string]any
	if err := yaml.Unmarshal(content, &its); err != nil {
		return nil, err
	}
	its["version"] = version
	if all, _ := its["dependencies"].([]any); all != nil {
		its["dependencies"] = slices.DeleteFunc(all, func(one any) bool {
			held, _ := filepath.Glob(filepath.Join(root, "charts", fmt.Sprint(one.(map[string]any)["name"])+"*"))
			return len(held) == 0
		})
	}
	return yaml.Marshal(its)
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

// deployed is a chart on two clusters: by a HelmChartProxy on one, by Helm on the other.
type deployed struct {
	*projectChart
	program               string
	archives              map[string]string
	release, version, who string
	clients               map[cluster]client.Client
	// known holds all objects that Helm creates or once created: true for objects of a release, false for
	// hooks.
	known map[object]bool
	// refused says that Helm refused the last operation: Fleet must refuse it, too.
	refused bool
	gone    bool
}

type object struct {
	kind            schema.GroupVersionKind
	namespace, name string
}

func (o object) String() string { return o.kind.Kind + " " + o.name }

func (d *deployed) helm(args ...string) error {
	command := exec.CommandContext(ctx, d.program, append(args, "--kubeconfig", env.HostedKubeconfig(two.namespace, two.name), "-n", d.name)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w: %s", args[0], err, out)
	}
	return nil
}

func (d *deployed) upgrade() error {
	values := filepath.Join(os.TempDir(), d.name+"-values.yaml")
	if err := os.WriteFile(values, fmt.Appendf(nil, d.values, d.who), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(values) }()
	if err := d.helm("upgrade", "--install", "--create-namespace", d.release, d.archives[d.version], "-f", values); err != nil {
		return err
	}
	for _, what := range []string{"manifest", "hooks"} {
		out, err := exec.CommandContext(ctx, d.program, "get", what, d.release, "--kubeconfig", env.HostedKubeconfig(two.namespace, two.name), "-n", d.name).Output()
		if err != nil {
			return err
		}
		for _, document := range strings.Split(string(out), "\n---") {
			its := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &its.Object); err != nil {
				return err
			}
			if its.GetKind() != "" {
				d.known[object{its.GroupVersionKind(), its.GetNamespace(), its.GetName()}] = what == "manifest"
			}
		}
	}
	return nil
}

func (d *deployed) uninstall() error { return d.helm("uninstall", d.release, "--wait") }

// get reads an object of the chart; nil if there is none.
func (d *deployed) get(g Gomega, on cluster, its object) map[string]any {
	read := &unstructured.Unstructured{}
	read.SetGroupVersionKind(its.kind)
	key := client.ObjectKey{Namespace: its.namespace, Name: its.name}
	if namespaced, err := d.clients[on].IsObjectNamespaced(read); err == nil && !namespaced {
		key.Namespace = ""
	} else if key.Namespace == "" {
		key.Namespace = d.name
	}
	err := d.clients[on].Get(ctx, key, read)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil
	}
	g.Expect(err).NotTo(HaveOccurred())
	return comparable(read)
}

// comparable drops fields that always differ between two clusters, and fields that Fleet adds to all objects.
func comparable(its *unstructured.Unstructured) map[string]any {
	if its.GetKind() == "Job" { // Its selector contains its UID.
		return map[string]any{"name": its.GetName()}
	}
	delete(its.Object, "status")
	for _, field := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort"} {
		unstructured.RemoveNestedField(its.Object, "spec", field)
	}
	if ports, found, _ := unstructured.NestedSlice(its.Object, "spec", "ports"); found && its.GetKind() == "Service" {
		for _, port := range ports {
			delete(port.(map[string]any), "nodePort")
		}
		its.Object["spec"].(map[string]any)["ports"] = ports
	}
	if its.GetKind() == "Secret" { // Certificates that the templates make.
		data, _, _ := unstructured.NestedMap(its.Object, "data")
		for key := range data {
			data[key] = "hidden"
		}
		its.Object["data"] = data
	}
	strip := func(all map[string]string) map[string]string {
		for key := range all {
			if strings.HasPrefix(key, "objectset.rio.cattle.io/") || strings.HasPrefix(key, "deployment.kubernetes.io/") || key == "deprecated.daemonset.template.generation" {
				delete(all, key)
			}
		}
		return all
	}
	its.Object["metadata"] = map[string]any{"name": its.GetName(), "labels": strip(its.GetLabels()), "annotations": strip(its.GetAnnotations())}
	return its.Object
}

// listed returns the releases and the CRDs on a cluster.
func (d *deployed) listed(g Gomega, on cluster) (all []string) {
	out, err := exec.CommandContext(ctx, d.program, "list", "-a", "-o", "json", "--kubeconfig", env.HostedKubeconfig(on.namespace, on.name), "-n", d.name).Output()
	g.Expect(err).NotTo(HaveOccurred())
	var releases []struct{ Name, Status, Chart string }
	g.Expect(json.Unmarshal(out, &releases)).To(Succeed())
	for _, its := range releases {
		all = append(all, "release "+its.Name+" "+its.Status+" "+its.Chart)
	}
	crds := &metav1.PartialObjectMetadataList{}
	crds.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinitionList"})
	g.Expect(d.clients[on].List(ctx, crds)).To(Succeed())
	for i := range crds.Items {
		all = append(all, "CustomResourceDefinition "+crds.Items[i].Name)
	}
	return all
}

// differences summarizes how the objects that Fleet deployed differ from Helm's.
func (d *deployed) differences(g Gomega) (all []string) {
	for its := range d.known {
		fleets, helms := d.get(g, one, its), d.get(g, two, its)
		switch {
		case fleets == nil && helms == nil:
		case fleets == nil:
			all = append(all, its.String()+" is missing")
		case helms == nil:
			all = append(all, its.String()+" is left")
		default:
			if diff := cmp.Diff(helms, fleets); diff != "" {
				all = append(all, its.String()+" differs:\n"+diff)
			}
		}
	}
	fleets, helms := d.listed(g, one), d.listed(g, two)
	for _, its := range fleets {
		if !slices.Contains(helms, its) {
			all = append(all, its+" is only Fleet's")
		}
	}
	for _, its := range helms {
		if !slices.Contains(fleets, its) {
			all = append(all, its+" is only Helm's")
		}
	}
	if d.gone {
		for _, kind := range []string{"ConfigMap", "Secret"} {
			copied := &metav1.PartialObjectMetadataList{}
			copied.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind + "List"})
			g.Expect(d.clients[one].List(ctx, copied, client.InNamespace(d.name))).To(Succeed())
			for i := range copied.Items {
				if strings.HasPrefix(copied.Items[i].Name, "hcp-") {
					all = append(all, kind+" "+copied.Items[i].Name+" is left")
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// evidence returns the conditions of Muster's and Fleet's objects for the release.
func (d *deployed) evidence() string {
	var all []string
	for _, kind := range []string{"hcp", "hrp", "bundledeployments.fleet.cattle.io"} {
		args := []string{"get", kind, "-A", "-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} deletion={.metadata.deletionTimestamp} spec={.spec.deploymentID} applied={.status.appliedDeploymentID} {range .status.conditions[*]}{.type}={.status} {.message}; {end}{"\n"}{end}`}
		out, _ := env.Kubectl(ctx, args...)
		for line := range strings.Lines(out) {
			if strings.Contains(line, d.name) {
				all = append(all, line)
			}
		}
	}
	return strings.Join(all, "")
}

// operation is an action of a user, on both clusters.
type operation struct {
	name string
	// do changes the wanted state; then Helm runs, and Fleet follows.
	do func(g Gomega, d *deployed)
	// helm runs Helm as a user would; the default is helm upgrade --install.
	helm func(d *deployed) error
}

var operations = []operation{
	{name: "install", do: func(g Gomega, d *deployed) {
		one.label(g, "who="+d.who)
		one.label(g, "corpus="+d.name)
		g.Expect(env.Apply(ctx, d.proxy(d.release, d.version))).To(Succeed())
	}},
	{name: "a value", do: func(g Gomega, d *deployed) { d.value(g, "second") }},
	{name: "upgrade", do: func(g Gomega, d *deployed) { d.to(g, "1.1.0") }},
	{name: "changed by others, upgrade", do: func(g Gomega, d *deployed) { d.changedByOthers(g); d.to(g, "1.2.0") }},
	{name: "refused at first", do: func(g Gomega, d *deployed) { d.refusedAtFirst(g) }},
	{
		name: "renamed",
		do:   func(g Gomega, d *deployed) { patch(g, d.name, `{"spec":{"releaseName":"renamed"}}`) },
		helm: func(d *deployed) error {
			if err := d.uninstall(); err != nil {
				return err
			}
			d.release = "renamed"
			return d.upgrade()
		},
	},
	{name: "deselected", do: func(g Gomega, d *deployed) { one.label(g, "corpus-") }, helm: (*deployed).leave},
	{name: "in the way of others", do: func(g Gomega, d *deployed) {
		d.foreign(g, "create")
		one.label(g, "corpus="+d.name)
	}},
	{name: "deselected so", do: func(g Gomega, d *deployed) { one.label(g, "corpus-") }, helm: func(d *deployed) error {
		if d.taken() == "" {
			return d.leave()
		}
		d.gone = true
		return nil
	}},
	{name: "selected again", do: func(g Gomega, d *deployed) {
		one.label(g, "corpus="+d.name)
		if d.taken() != "" {
			d.says(g, "cannot be imported into the current release")
		}
		d.foreign(g, "delete")
	}},
	{name: "deleted", do: func(g Gomega, d *deployed) {
		deleteProxy(g, team, d.name)
		g.Eventually(func(g Gomega) {
			g.Expect(made(g, d.name, "bundles.fleet.cattle.io,bundledeployments.fleet.cattle.io,configmaps,secrets,hrp")).To(BeEmpty())
		}).Should(Succeed())
	}, helm: (*deployed).leave},
}

func (d *deployed) leave() error {
	d.gone = true
	return d.uninstall()
}

func (d *deployed) value(g Gomega, who string) {
	d.who = who
	one.label(g, "who="+who)
}

func (d *deployed) to(g Gomega, version string) {
	d.version = version
	patch(g, d.name, fmt.Sprintf(`{"spec":{"version":%q}}`, version))
}

// says waits until the HelmChartProxy is not Ready, and its conditions contain the text.
func (d *deployed) says(g Gomega, text string) {
	g.Eventually(func(g Gomega) {
		its := proxy(g, d.name)
		g.Expect(meta.IsStatusConditionTrue(its.Status.Conditions, "Ready")).To(BeFalse(), told(its))
		g.Expect(told(its)).To(ContainSubstring(text))
	}).WithTimeout(time.Minute).Should(Succeed(), d.evidence)
}

// changedByOthers scales the Deployment and applies an annotation, on both clusters.
func (d *deployed) changedByOthers(g Gomega) {
	if d.deployment == "" {
		return
	}
	for _, on := range []cluster{one, two} {
		_, err := on.kubectl("-n", d.name, "scale", "deployment", d.deployment, "--replicas=3")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = env.HostedKubectlInput(ctx, on.namespace, on.name, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: %s, name: %s},
  spec: {template: {metadata: {annotations: {who: somebody}}}}}`, d.name, d.deployment), "apply", "--server-side", "--force-conflicts", "--field-manager=somebody", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
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

// refusedAtFirst changes a value, which an admission policy of the cluster refuses at first.
func (d *deployed) refusedAtFirst(g Gomega) {
	if d.deployment == "" {
		return
	}
	_, err := env.HostedKubectlInput(ctx, one.namespace, one.name, refusal, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() {
		_, err = env.HostedKubectlInput(ctx, one.namespace, one.name, refusal, "delete", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}()
	g.Eventually(func(g Gomega) {
		out, err := one.kubectl("-n", d.name, "patch", "deployment", d.deployment, "--dry-run=server", "--type=merge", "-p", `{"spec":{"template":{"metadata":{"annotations":{"who":"third"}}}}}`)
		g.Expect(err).To(HaveOccurred(), out)
	}).Should(Succeed())
	d.value(g, "third")
	d.says(g, "nobody is third")
	g.Consistently(func(g Gomega) {
		its := proxy(g, d.name)
		g.Expect(meta.IsStatusConditionTrue(its.Status.Conditions, "Ready")).To(BeFalse(), told(its))
	}).WithTimeout(8 * time.Second).Should(Succeed())
}

// taken returns the name of a ServiceAccount of the last release, whose names sort last or are always the same;
// empty if the chart has none.
func (d *deployed) taken() (name string) {
	for its, releases := range d.known {
		if releases && its.kind.Kind == "ServiceAccount" && (its.namespace == "" || its.namespace == d.name) {
			name = max(name, its.name)
		}
	}
	return name
}

// foreign creates or deletes a foreign object with the name of one of the chart's objects.
func (d *deployed) foreign(g Gomega, verb string) {
	if d.taken() == "" {
		return
	}
	for _, on := range []cluster{one, two} {
		_, err := on.kubectl("-n", d.name, verb, "serviceaccount", d.taken())
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// run runs an operation on both clusters, and returns the result.
func (d *deployed) run(t *testing.T, its *operation) (result string) {
	g := NewWithT(t)
	begin := time.Now()
	d.gone = false
	its.do(g, d)
	asked := time.Now()
	byHelm := d.upgrade
	if its.helm != nil {
		byHelm = func() error { return its.helm(d) }
	}
	err := byHelm()
	d.refused = err != nil
	helms := time.Since(asked)
	var left []string
	ended := time.Now().Add(soon)
	for {
		polled := NewGomega(func(message string, _ ...int) { left = append(left, message) })
		left = nil
		found := d.differences(polled)
		if left = append(left, found...); len(left) == 0 {
			if d.refused {
				d.says(polled, d.words(err))
			} else if its.name != "deleted" {
				isReady(polled, d.name)
			}
		}
		if len(left) == 0 || time.Now().After(ended) {
			break
		}
		time.Sleep(time.Second)
	}
	took := fmt.Sprintf("%.0f s (%.0f s)", time.Since(begin).Seconds(), helms.Seconds())
	if len(left) > 0 {
		t.Errorf("differs:\n%.6000s\nhelm: %v\n%s", strings.Join(left, "\n"), err, d.evidence())
		return took + " differs: " + strings.SplitN(left[0], "\n", 2)[0]
	}
	if d.refused {
		return took + " refused by both"
	}
	return took + " same"
}

// words returns the part of Helm's error that Fleet must pass on.
func (d *deployed) words(err error) string {
	for _, words := range []string{"cannot be imported into the current release", "nobody is third"} {
		if strings.Contains(err.Error(), words) {
			return words
		}
	}
	return err.Error()
}

// TestCorpus installs charts of other projects, with a HelmChartProxy on one cluster and with Helm on the
// other, and compares the two clusters after each operation.
func TestCorpus(t *testing.T) {
	g := NewWithT(t)
	program, err := fixture.Program("tools/helm3", "helm.sh/helm/v3/cmd/helm", t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, repositorySecret())).To(Succeed())
	clients := map[cluster]client.Client{}
	for _, on := range []cluster{one, two} {
		clients[on] = on.client(g)
		t.Cleanup(endJobs(clients[on]))
	}
	var table strings.Builder
	t.Cleanup(func() {
		t.Logf("chart by operation: seconds until Fleet is where Helm is and Ready (Helm's own)\n%s", table.String())
	})
	for i := range corpus {
		t.Run(corpus[i].name, func(t *testing.T) {
			d := &deployed{
				projectChart: &corpus[i], program: program, archives: corpus[i].publish(t, "1.0.0", "1.1.0", "1.2.0"),
				release: corpus[i].name, version: "1.0.0", who: "first", clients: clients, known: map[object]bool{},
			}
			t.Cleanup(func() { one.label(NewWithT(t), "corpus-"); one.label(NewWithT(t), "who-") })
			fmt.Fprintf(&table, "%s\n", d.name)
			for j := range operations {
				result := "stopped"
				t.Run(operations[j].name, func(t *testing.T) {
					defer func() { fmt.Fprintf(&table, "  %-28s %s\n", operations[j].name, result) }()
					result = d.run(t, &operations[j])
					t.Log(result)
				})
			}
		})
	}
}
