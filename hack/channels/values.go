package main

// Values are the chart's values. Names, documentation, types and limits in values.yaml,
// values.schema.json and the chart's README come from here; the defaults come from manifests/. The
// switches of the components are added to these.
type Values struct {
	// Where the images come from. For a mirror, set the registry.
	Image ImageValues `json:"image"`
	// Secrets with credentials for the registry, in the release's namespace.
	ImagePullSecrets []NameValues `json:"imagePullSecrets"`
	// The least severe level that the programs log.
	LogLevel string `json:"logLevel" enum:"debug,info,warn,error"`
	// The nodes on which the pods may run.
	NodeSelector map[string]string `json:"nodeSelector"`
	// The taints of nodes that the pods tolerate.
	Tolerations []TolerationValues `json:"tolerations"`
	// The webhook, which decides when a Cluster is applied.
	Webhook ProgramValues `json:"webhook"`
	// The syncer, which keeps Fleet's objects in line.
	Syncer ProgramValues `json:"syncer"`
	// The registrar, for clusters whose agents register themselves.
	Registrar ProgramValues `json:"registrar"`
	// The installer, which installs Fleet itself.
	Installer ProgramValues `json:"installer"`
	// The program that downloads charts and deploys HelmChartProxies.
	Helm ProgramValues `json:"helm"`
	// The certificates, from cert-manager.
	Certificates CertificateValues `json:"certificates"`
	// The CRD of FleetAddonConfigs.
	CRDs CRDValues `json:"crds"`
}

// ImageValues say where images come from: REGISTRY/REPOSITORY/muster-PROGRAM:TAG.
type ImageValues struct {
	// The host, with a port if it has one.
	Registry string `json:"registry" pattern:"^[a-z0-9.-]+(:[0-9]+)?$"`
	// The path on it, up to the names of the images; empty for none.
	Repository string `json:"repository" pattern:"^([a-z0-9]+([._/-]+[a-z0-9]+)*)?$"`
	// The version of the images; the chart's appVersion if empty.
	Tag string `json:"tag" pattern:"^[A-Za-z0-9_.-]*$"`
	// When nodes pull images; Kubernetes' default for the tag if empty.
	PullPolicy string `json:"pullPolicy" enum:",Always,IfNotPresent,Never"`
}

// NameValues name an object.
type NameValues struct {
	// The name.
	Name string `json:"name" required:"true" pattern:"."`
}

// TolerationValues are a toleration, as in a pod.
type TolerationValues struct {
	// The taint's key; all keys if empty, with the operator Exists.
	Key string `json:"key"`
	// How key and value are compared.
	Operator string `json:"operator" enum:"Exists,Equal"`
	// The taint's value.
	Value string `json:"value"`
	// The tolerated effect; all effects if empty.
	Effect string `json:"effect" enum:",NoSchedule,PreferNoSchedule,NoExecute"`
	// For how long NoExecute is tolerated.
	TolerationSeconds int `json:"tolerationSeconds" minimum:"0"`
}

// ProgramValues are the values of one Deployment.
type ProgramValues struct {
	// The number of pods.
	Replicas int `json:"replicas" minimum:"1"`
	// The resources that a pod requests, and its limits.
	Resources ResourceValues `json:"resources"`
	// More arguments, as in docs/reference.md: --NAME=VALUE.
	ExtraArgs []string `json:"extraArgs" pattern:"^--[a-z]"`
}

// ResourceValues are requests and limits.
type ResourceValues struct {
	// The resources reserved for a pod.
	Requests RequestValues `json:"requests" required:"true"`
	// The most that a pod may use.
	Limits LimitValues `json:"limits" required:"true"`
}

// RequestValues are the reserved resources.
type RequestValues struct {
	// Processor time, as a quantity.
	CPU string `json:"cpu" pattern:"^[0-9]+(\\.[0-9]+)?m?$"`
	// Memory, as a quantity.
	Memory string `json:"memory" pattern:"^[0-9]+(Mi|Gi)$"`
}

// LimitValues are the limits of a pod.
type LimitValues struct {
	// Memory, in Mi or Gi. The Go runtime's limit is nine tenths of it.
	Memory string `json:"memory" required:"true" pattern:"^[1-9][0-9]*(Mi|Gi)$"`
}

// CertificateValues say who issues certificates.
type CertificateValues struct {
	// Your own issuer, instead of a CA only for Muster.
	IssuerRef IssuerValues `json:"issuerRef"`
}

// IssuerValues refer to an issuer.
type IssuerValues struct {
	// The issuer's name; empty for a CA of Muster's own.
	Name string `json:"name"`
	// The issuer's kind. An Issuer is in the release's namespace.
	Kind string `json:"kind" pattern:"."`
	// The issuer's API group.
	Group string `json:"group" pattern:"."`
}

// CRDValues configure the CRD.
type CRDValues struct {
	// Whether the release installs and upgrades the CRD.
	Enabled bool `json:"enabled"`
	// Whether the CRD, and with it the FleetAddonConfig, stays when the release is uninstalled.
	Keep bool `json:"keep"`
}
