package main

// component is what people can choose to install or not. A row here is all that a new one
// needs to be in every channel: with byDefault in what each of them installs unasked, and
// listed in manifests/default; without, in a file of its own in a release. The chart has a
// switch `NAME.enabled` for either.
type component struct {
	name      string
	dir       string
	byDefault bool
	// doc is the sentence about it in the chart's values.
	doc string
}

var components = []component{
	{"networkPolicy", "manifests/network", true, "NetworkPolicies: who may connect to Muster's pods."},
	{"policies", "manifests/policy", true, "Admission policies that bound what the syncer's account can do, and keep others from forging what Muster wrote."},
	{"registrar", "manifests/registrar", false, "The registrar, for clusters that the management cluster cannot reach: their agents call."},
	{"installer", "manifests/installer", false, "The installer, which installs Fleet itself and sets it up. Its rights are near to cluster-admin."},
	{"charts", "manifests/helm", false, "The program that carries out HelmChartProxies, with their CRDs. It must not run beside cluster-api-addon-provider-helm."},
	{"chartsReadSecrets", "manifests/helm-read-secrets", false, "Lets the program that carries out HelmChartProxies read Secrets in all namespaces. Without it, it reads them where an administrator binds the ClusterRole muster-charts-read-secrets."},
	{"classLabels", "manifests/class-labels", false, "An admission policy by which the API server itself labels Clusters with their class, with or without the webhook. Needs Kubernetes 1.36."},
	{"mappingAuthors", "manifests/mapping-authors", false, "An admission policy by which only accounts with a right in all namespaces open the bundles of a namespace to others. Recommended where tenants may write BundleNamespaceMappings."},
	{"monitoring", "manifests/monitoring", false, "Alerts, ServiceMonitors and a Grafana dashboard, for clusters with the Prometheus Operator."},
}

// parts are what Muster cannot do without, each in a template of its own.
var parts = []string{"manifests/crd", "manifests/rbac", "certs", "manifests/webhook", "manifests/syncer"}

// defaults is what every channel installs unless told otherwise.
const defaults = "manifests/default"

// series are the minor releases, and the contract of Cluster API that each fulfils.
// clusterctl refuses a version that is of none of them.
var series = []releaseSeries{
	{Major: 0, Minor: 1, Contract: "v1beta2"},
}

const (
	// namespace is where manifests/ puts everything that is in one.
	namespace = "muster-system"
	// provider is Muster's name among Cluster API's providers, as on the labels of theirs.
	provider = "addon-muster"
	// logLevelArg is an argument of both Deployments.
	logLevelArg = "--log-level="
)
