// Command channels generates, from manifests/, the files for each way to install Muster: `channels chart`
// the Helm chart, which is committed; `channels dist [FOLDER]` the files of a release, into dist/ unless a
// folder is given. `channels verify` checks that each way, with its defaults, installs the objects of
// manifests/default.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// addonComponentsFile is the file that clusterctl and the Cluster API Operator install.
const addonComponentsFile = "addon-components.yaml"

func main() {
	if err := run(".", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
}

// run executes a command line for the tree at root.
func run(root string, args []string) error {
	switch {
	case slices.Equal(args, []string{"verify"}):
		return verify(root)
	case slices.Equal(args, []string{"chart"}):
		files, err := generatedChart(root)
		if err != nil {
			return err
		}
		return write(root, files)
	case len(args) > 0 && len(args) <= 2 && args[0] == "dist":
		files, err := released(root)
		if err != nil {
			return err
		}
		return write(append(args, filepath.Join(root, "dist"))[1], files)
	}
	return errors.New("say what to do: chart, dist [FOLDER] or verify")
}

func write(dir string, files map[string]string) error {
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// shippedObjects returns the objects of manifests/default, and the images that they name.
func shippedObjects(root string) ([]*unstructured.Unstructured, image, error) {
	objects, err := kustomize(root, defaults)
	if err != nil {
		return nil, image{}, err
	}
	from, err := imageOf(objects)
	return objects, from, err
}

// generatedChart returns the generated files of the chart, by their path from the root.
func generatedChart(root string) (map[string]string, error) {
	objects, from, err := shippedObjects(root)
	if err != nil {
		return nil, err
	}
	return chart(root, objects, from)
}

// released returns the files of a release, by their name.
func released(root string) (map[string]string, error) {
	objects, from, err := shippedObjects(root)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, dir := range singleFiles() {
		content, err := build(root, dir)
		if err != nil {
			return nil, err
		}
		files[name] = string(content)
	}
	components, err := addonComponents(objects)
	if err != nil {
		return nil, err
	}
	files[addonComponentsFile] = components
	if files["metadata.yaml"], err = metadata(from.tag); err != nil {
		return nil, err
	}
	files["capi-operator.yaml"], err = operatorManifest(components, files["metadata.yaml"], from.tag)
	return files, err
}

// singleFiles returns the kustomizations that ship as one file each, for kubectl.
func singleFiles() map[string]string {
	files := map[string]string{"install.yaml": defaults}
	for _, c := range components {
		if !c.byDefault {
			files[strings.ToLower(c.name)+".yaml"] = c.dir
		}
	}
	return files
}

// component is an optional part. A new one needs only a row here to be in every channel: with byDefault, each
// channel installs it by default, and manifests/default must list it; otherwise a release has a file
// for it. In the chart, `NAME.enabled` switches either kind on or off.
type component struct {
	name      string
	dir       string
	byDefault bool
	// doc describes it in the chart's values.
	doc string
}

var components = []component{
	{"networkPolicy", "manifests/network", true, "NetworkPolicies that limit who may connect to Muster's pods."},
	{"policies", "manifests/policy", true, "Admission policies that limit what the syncer's account can do, and keep others from forging Muster's labels and annotations."},
	{"registrar", "manifests/registrar", false, "The registrar, for clusters that the management cluster cannot reach: their agents register themselves."},
	{"installer", "manifests/installer", false, "The installer, which installs and configures Fleet itself. Its rights are close to cluster-admin."},
	{"helm", "manifests/helm", false, "The program that deploys HelmChartProxies, with their CRDs. It must not run at the same time as cluster-api-addon-provider-helm."},
	{"helmReadSecrets", "manifests/helm-read-secrets", false, "Lets the program that deploys HelmChartProxies read Secrets in all namespaces. Otherwise it reads them only where an administrator binds the ClusterRole muster-helm-read-secrets."},
	{"classLabels", "manifests/class-labels", false, "An admission policy with which the API server itself labels Clusters with their class, with or without the webhook. Needs Kubernetes 1.36."},
	{"mappingAuthors", "manifests/mapping-authors", false, "An admission policy that lets only accounts with a right in all namespaces give other namespaces access to a namespace's bundles. Recommended if tenants may write BundleNamespaceMappings."},
	{"monitoring", "manifests/monitoring", false, "Alerts, ServiceMonitors and a Grafana dashboard, for clusters with the Prometheus Operator."},
}

// parts are the required parts of Muster, each with its own template.
var parts = []string{"manifests/crd", "manifests/rbac", "certs", "manifests/webhook", "manifests/syncer"}

// defaults is the kustomization that every channel installs by default.
const defaults = "manifests/default"

// series are the minor releases, with the Cluster API contract of each. clusterctl refuses a version of any
// other series.
var series = []releaseSeries{
	{Major: 0, Minor: 1, Contract: "v1beta2"},
}

const (
	// namespace is the namespace of all namespaced objects in manifests/.
	namespace = "muster-system"
	// provider is Muster's name among Cluster API's providers, as on their labels.
	provider = "addon-muster"
	// logLevelArg is an argument of both Deployments.
	logLevelArg = "--log-level="
)

// chartFile returns Chart.yaml for a version. kubeVersion is the first in which ValidatingAdmissionPolicies and
// the match conditions of webhooks are stable.
func chartFile(version string) string {
	return fmt.Sprintf(`# Generated by hack/channels. Do not edit.
apiVersion: v2
name: muster
description: Imports Cluster API clusters into Rancher Fleet.
type: application
version: %s
appVersion: %s
kubeVersion: ">= 1.30.0-0"
home: https://github.com/muster-fleet/muster
sources: [https://github.com/muster-fleet/muster]
keywords: [cluster-api, fleet, gitops]
annotations: {artifacthub.io/license: Apache-2.0}
`, strings.TrimPrefix(version, "v"), version)
}

func readme(values string) string {
	return `<!-- Generated by hack/channels. Do not edit. -->
# Muster's Helm chart

Muster imports Cluster API clusters into Rancher Fleet. The chart needs cert-manager in the cluster; Cluster API and Fleet may follow later. [Installing Muster](../../docs/install.md#helm) says how to install, upgrade and uninstall it.

With its defaults the chart installs the objects of ` + "`manifests/default`" + `, except for the Namespace, which Helm creates. A cluster can have only one Muster: the chart refuses a second release. It also refuses values that are not in [values.schema.json](values.schema.json).

` + values
}
