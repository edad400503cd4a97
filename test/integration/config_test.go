package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/authority/authoritytest"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// strictly writes as kubectl does: the API server refuses unknown fields.
func strictly() client.Client { return client.WithFieldValidation(admin, "Strict") }

// invalidConfig is a FleetAddonConfig that is refused. TestValidateConfigRefuses in internal/admission covers the
// webhook's rules; a few cases here show that the API server calls the webhook.
type invalidConfig struct {
	name, yaml string
	// messages are parts of the refusal: the field's path, and what to do.
	messages []string
	// structural means that the CRD refuses it, for every user, even when the webhook is down.
	structural bool
}

func invalidConfigs() []invalidConfig {
	const (
		oneServer = "set exactly one of inferLocal and custom: inferLocal takes the management cluster's own address, custom takes yours; remove the other"
		oneOf     = "set exactly one of followLatest and version: followLatest installs the newest release, version the one you name"
		needValue = "an expression with operator In or NotIn needs at least one entry in values; to match any value use Exists or DoesNotExist"
		noValue   = "an expression with operator Exists or DoesNotExist takes no values; remove them or use In or NotIn"
		operator  = "operator must be one of In, NotIn, Exists, DoesNotExist"
		url       = "must be an absolute https URL with a host and without user, query or fragment, for example https://rancher.example.com:6443"
		pointer   = "must be a JSON pointer that starts with '/', for example /ControlPlane/spec/kubeadmConfigSpec/files"
		semver    = "must be a semantic version, for example 0.16.0, or a range, for example 0.16.x"
	)
	structural := func(name, spec string, messages ...string) invalidConfig {
		return invalidConfig{name, configYAML(spec), messages, true}
	}
	byWebhook := func(name, spec string, messages ...string) invalidConfig {
		return invalidConfig{name, configYAML(spec), messages, false}
	}
	return []invalidConfig{
		{"another name", strings.Replace(configYAML("{}"), "name: fleet-addon-config", "name: mine", 1),
			[]string{"metadata.name: the only FleetAddonConfig is named fleet-addon-config; rename this one"}, true},
		structural("both inferLocal and custom", `{config: {server: {inferLocal: true, custom: {apiServerUrl: "https://a"}}}}`, "spec.config.server", oneServer),
		structural("neither inferLocal nor custom", `{config: {server: {}}}`, "spec.config.server", oneServer),
		structural("inferLocal and the shorthand", `{config: {server: {inferLocal: true, apiServerUrl: "https://a"}}}`, "spec.config.server", oneServer),
		structural("custom and the shorthand", `{config: {server: {custom: {}, apiServerUrl: "https://a"}}}`, "spec.config.server", "move apiServerUrl and apiServerCaConfigRef into custom"),
		structural("an http URL", `{config: {server: {custom: {apiServerUrl: "http://a"}}}}`, "spec.config.server.custom.apiServerUrl", url),
		structural("no URL", `{config: {server: {custom: {apiServerUrl: "rancher"}}}}`, "spec.config.server.custom.apiServerUrl", url),
		structural("a URL without host", `{config: {server: {custom: {apiServerUrl: "https://:6443"}}}}`, "spec.config.server.custom.apiServerUrl", url),
		structural("a URL with a query", `{config: {server: {apiServerUrl: "https://a?b=c"}}}`, "spec.config.server.apiServerUrl", url),
		structural("a URL with a user", `{config: {server: {apiServerUrl: "https://u:p@a"}}}`, "spec.config.server.apiServerUrl", url),
		structural("a URL with a fragment", `{config: {server: {apiServerUrl: "https://a#b"}}}`, "spec.config.server.apiServerUrl", url),
		structural("a CA of another kind", `{config: {server: {custom: {apiServerCaConfigRef: {kind: Service, name: a, namespace: b}}}}}`, "spec.config.server.custom.apiServerCaConfigRef.kind", "kind must be ConfigMap or Secret"),

		structural("In without values", `{cluster: {selector: {matchExpressions: [{key: a, operator: In}]}}}`, "spec.cluster.selector.matchExpressions", needValue),
		structural("NotIn with no values", `{cluster: {namespaceSelector: {matchExpressions: [{key: a, operator: NotIn, values: []}]}}}`, "spec.cluster.namespaceSelector.matchExpressions", needValue),
		structural("Exists with values", `{cluster: {selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}}`, "spec.cluster.selector.matchExpressions", noValue),
		structural("DoesNotExist with values", `{cluster: {namespaceSelector: {matchExpressions: [{key: a, operator: DoesNotExist, values: [b]}]}}}`, "spec.cluster.namespaceSelector.matchExpressions", noValue),
		structural("an unknown operator", `{cluster: {selector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}}`, "spec.cluster.selector.matchExpressions", operator),
		structural("a selector without operator", `{cluster: {selector: {matchExpressions: [{key: a}]}}}`, "spec.cluster.selector.matchExpressions[0].operator", "Required value"),
		structural("a label that YAML reads as a bool", `{cluster: {selector: {matchLabels: {import: true}}}}`, "spec.cluster.selector.matchLabels.import", "must be of type string"),
		structural("a selector with too many values", `{cluster: {agentInitiatedSelector: {matchExpressions: [{key: a, operator: In, values: [`+strings.Repeat("b, ", 1000)+`b]}, {key: a, operator: NotIn, values: [`+strings.Repeat("c, ", 30)+`c]}]}}}`, "spec.cluster.agentInitiatedSelector.matchExpressions", "must have at most 1024 values in all"),
		structural("a selector with too many expressions", `{cluster: {selector: {matchExpressions: [`+strings.Repeat("{key: a, operator: Exists}, ", 64)+`{key: a, operator: Exists}]}}}`, "spec.cluster.selector.matchExpressions", "must have at most 64 expressions"),

		structural("a prefix in upper case", `{cluster: {naming: {prefix: Capi-}}}`, "spec.cluster.naming.prefix", "must start with a lower-case letter or digit and hold only lower-case letters, digits and '-'", "for example capi-"),
		structural("a prefix with a dot", `{cluster: {naming: {prefix: capi.}}}`, "spec.cluster.naming.prefix", "for example capi-"),
		structural("a prefix with a dash first", `{cluster: {naming: {prefix: -capi}}}`, "spec.cluster.naming.prefix", "for example capi-"),
		structural("a prefix that is too long", `{cluster: {naming: {prefix: `+strings.Repeat("p", 63)+`}}}`, "spec.cluster.naming.prefix", "may not be more than 62"),
		structural("a suffix with a dash last", `{cluster: {naming: {suffix: fleet-}}}`, "spec.cluster.naming.suffix", "must end with a lower-case letter or digit", "for example -fleet"),
		structural("a suffix with a dot", `{cluster: {naming: {suffix: .fleet}}}`, "spec.cluster.naming.suffix", "for example -fleet"),
		byWebhook("no room between prefix and suffix", `{cluster: {naming: {prefix: `+strings.Repeat("p", 62)+`, suffix: s}}}`, "spec.cluster.naming: Invalid value", "leave no room for a name in the 63 characters"),

		structural("an agentNamespace in upper case", `{cluster: {agentNamespace: Fleet}}`, "spec.cluster.agentNamespace", "must be a namespace name", "for example fleet-addon-agent"),
		structural("an agentNamespace with a dot", `{cluster: {agentNamespace: fleet.system}}`, "spec.cluster.agentNamespace", "must be a namespace name"),
		structural("an agentNamespace that is too long", `{cluster: {agentNamespace: `+strings.Repeat("n", 64)+`}}`, "spec.cluster.agentNamespace", "may not be more than 63"),
		structural("an environment variable without name", `{cluster: {agentEnvVars: [{value: b}]}}`, "spec.cluster.agentEnvVars[0].name", "Required value"),
		structural("a pull secret without name", `{cluster: {agentPullSecrets: [{}]}}`, "spec.cluster.agentPullSecrets[0].name", "Required value"),
		structural("a pull secret that can be none", `{cluster: {agentPullSecrets: [{name: a}, {name: A_b}]}}`, "spec.cluster.agentPullSecrets[1].name", "must be the name of a Secret"),
		structural("too many pull secrets", `{cluster: {agentPullSecrets: [`+strings.Repeat("{name: a}, ", 16)+`{name: a}]}}`, "spec.cluster.agentPullSecrets", "must have at most 16 items"),
		structural("an unknown onDeselect", `{cluster: {onDeselect: Orphan}}`, "spec.cluster.onDeselect", `supported values: "Keep", "Delete"`),
		structural("no JSON pointer", `{cluster: {templateValues: {exclude: [ControlPlane/spec]}}}`, "spec.cluster.templateValues.exclude[0]", pointer),
		structural("a JSON pointer with a bad escape", `{cluster: {templateValues: {exclude: [/a~2b]}}}`, "spec.cluster.templateValues.exclude[0]", pointer),
		structural("too many pointers", `{cluster: {templateValues: {exclude: [`+strings.Repeat("/a, ", 128)+`/a]}}}`, "spec.cluster.templateValues.exclude", "must have at most 128 items"),
		structural("an excluded key that is none", `{cluster: {copy: {exclude: ["example.com/a*"]}}}`, "spec.cluster.copy.exclude[0]", "must be the key of a label or annotation"),
		structural("an excluded key of Muster's", `{cluster: {copy: {exclude: [a, fleet.addons.cluster.x-k8s.io/*]}}}`, "spec.cluster.copy.exclude[1]", "is one of Muster's, Fleet's or Rancher's own keys"),
		structural("an excluded key of Fleet's", `{cluster: {copy: {exclude: [fleet.cattle.io/cluster]}}}`, "spec.cluster.copy.exclude[0]", "is one of Muster's, Fleet's or Rancher's own keys"),
		structural("too many excluded keys", `{cluster: {copy: {exclude: [`+strings.Repeat("a, ", 128)+`a]}}}`, "spec.cluster.copy.exclude", "must have at most 128 items"),
		structural("an unknown policy", `{policy: {crossNamespaceClass: Deny}}`, "spec.policy.crossNamespaceClass", `supported values: "Enforce", "Warn", "Off"`),
		structural("an unknown verb of the policy", `{policy: {crossNamespaceClassVerb: list}}`, "spec.policy.crossNamespaceClassVerb", `supported values: "get", "use"`),
		structural("a policy that YAML reads as false", `{policy: {crossNamespaceClass: Off}}`, "spec.policy.crossNamespaceClass", "must be of type string"),
		structural("a string for a bool", `{cluster: {enabled: "yes"}}`, "spec.cluster.enabled", "must be of type boolean"),

		structural("both followLatest and version", `{install: {followLatest: true, version: 0.16.0}}`, "spec.install", oneOf),
		structural("neither followLatest nor version", `{install: {}}`, "spec.install", oneOf),
		structural("a version that is none", `{install: {version: latest}}`, "spec.install.version", semver),
		structural("a version of four parts", `{install: {version: "0.16.0.1"}}`, "spec.install.version", semver),
		structural("half a range of versions", `{install: {version: ">="}}`, "spec.install.version", semver),
		byWebhook("a version of an operator there is not", `{install: {version: "!>0.16.0"}}`, "spec.install.version: Invalid value", semver),
		structural("a repository without scheme", `{install: {followLatest: true, repository: rancher.github.io}}`, "spec.install.repository", "must be a URL that starts with https://, http:// or oci://"),

		byWebhook("several at once", `{cluster: {agentTolerations: [{}], selector: {matchLabels: {a: "b c"}}}, install: {version: 0.11.0}}`,
			"spec.cluster.agentTolerations[0].operator", "spec.cluster.selector.matchLabels", "spec.install.version"),
		structural("a field there is not", `{cluster: {selectors: {}}}`, `unknown field "spec.cluster.selectors"`),
	}
}

func (c invalidConfig) isRefused(t *testing.T) {
	g := NewWithT(t)
	err := strictly().Create(ctx, object(g, c.yaml), client.DryRunAll)
	for _, part := range c.messages {
		g.Expect(err).To(MatchError(ContainSubstring(part)))
	}
}

func TestConfigInvalidIsRefused(t *testing.T) {
	noConfig(t)
	for _, config := range invalidConfigs() {
		t.Run(config.name, config.isRefused)
	}
}

// The CRD refuses its cases without the webhook. While the webhook is down, the API server refuses all other changes,
// with a message that says so.
func TestConfigInvalidIsRefusedWithoutTheWebhook(t *testing.T) {
	g := NewWithT(t)
	noConfig(t)
	restart := stop(t, g, webhookProcess)
	defer restart()
	valid := func() error { return strictly().Create(ctx, object(g, configYAML(`{}`)), client.DryRunAll) }
	g.Expect(valid()).To(MatchError(ContainSubstring(`failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`)))

	webhooks := get(g, &admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook")
	i := slices.IndexFunc(webhooks.Webhooks, func(its admissionregistrationv1.ValidatingWebhook) bool {
		return its.Name == "config.fleet.addons.cluster.x-k8s.io"
	})
	policy := func(value string) {
		g.Expect(admin.Patch(ctx, webhooks, client.RawPatch("application/json-patch+json",
			fmt.Appendf(nil, `[{"op":"replace","path":"/webhooks/%d/failurePolicy","value":%q}]`, i, value)))).To(Succeed())
	}
	policy("Ignore")
	t.Cleanup(func() { policy("Fail") })
	g.Eventually(valid).Should(Succeed(), "the API server should let FleetAddonConfigs pass without the webhook")
	for _, config := range invalidConfigs() {
		if config.structural {
			t.Run(config.name, config.isRefused)
			continue
		}
		g.Expect(strictly().Create(ctx, object(g, config.yaml), client.DryRunAll)).To(Succeed(), "%s: the CRD refuses it, so it is structural", config.name)
	}
}

// caapfConfigs are the specs of the FleetAddonConfigs in CAAPF's documentation, its tests, its own writes, and
// Rancher Turtles.
func caapfConfigs() map[string]string {
	const (
		server     = `server: {apiServerUrl: "https://public-url.io", apiServerCaConfigRef: {apiVersion: v1, kind: ConfigMap, name: kube-root-ca.crt, namespace: default}}`
		gates      = `experimentalOciStorage: true, experimentalHelmOps: true`
		rancher    = `configMap: {ref: {apiVersion: v1, kind: ConfigMap, name: rancher-config, namespace: cattle-system}}`
		everything = `clusterClass: {patchResource: true, setOwnerReferences: true}, cluster: {patchResource: true, setOwnerReferences: true,
			applyClassGroup: true, hostNetwork: true`
		turtles = `{matchLabels: {cluster-api.cattle.io/rancher-auto-import: "true"},
			matchExpressions: [{key: cluster-api.cattle.io/disable-fleet-auto-import, operator: DoesNotExist}]}`
	)
	return map[string]string{
		"nothing":                          `{}`,
		"the readme: an alpha of Fleet":    `{config: {server: {inferLocal: true}}, install: {version: v0.12.0-alpha.6}}`,
		"the readme: fields of the server": `{config: {` + server + `}, install: {version: v0.12.0-alpha.6}}`,
		"the guide: the newest Fleet":      `{config: {server: {inferLocal: true}}, install: {followLatest: true}}`,
		"the guide: fields of the server":  `{config: {` + server + `}, install: {followLatest: true}}`,
		"the guide: feature gates":         `{config: {featureGates: {` + gates + `}}}`,
		"the guide: gates beside Rancher":  `{config: {featureGates: {` + gates + `, ` + rancher + `}}}`,
		"bootstrapLocalCluster":            `{config: {bootstrapLocalCluster: true}}`,
		"the ConfigMap without the gates":  `{config: {featureGates: {` + rancher + `}}}`,
		"one gate":                         `{config: {featureGates: {experimentalHelmOps: true}}}`,
		"the other gate":                   `{config: {featureGates: {experimentalOciStorage: true}}}`,
		"inferLocal":                       `{config: {server: {inferLocal: true}}}`,
		"a URL":                            `{config: {server: {custom: {apiServerUrl: "https://fleet.example.com"}}}}`,
		"a CA without a URL":               `{config: {server: {custom: {apiServerCaConfigRef: {apiVersion: v1, kind: ConfigMap, name: fleet-server-ca, namespace: fleet-system}}}}}`,
		"agentEnvVars":                     `{cluster: {agentEnvVars: [{name: HTTP_PROXY, value: "http://proxy.example.com:8080"}, {name: NO_PROXY, value: "localhost,127.0.0.1,.svc"}]}}`,
		"agentNamespace":                   `{cluster: {agentNamespace: fleet-agents}}`,
		"agentTolerations": `{cluster: {agentTolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 600},
			{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 600}]}}`,
		"applyClassGroup":               `{cluster: {applyClassGroup: true}}`,
		"hostNetwork":                   `{cluster: {hostNetwork: true}}`,
		"namespaceSelector":             `{cluster: {namespaceSelector: {matchLabels: {import: "true"}}}}`,
		"selector":                      `{cluster: {selector: {matchLabels: {import: "true"}}}}`,
		"a prefix":                      `{cluster: {naming: {prefix: capi-}}}`,
		"a suffix":                      `{cluster: {naming: {suffix: -fleet}}}`,
		"patchResource":                 `{cluster: {patchResource: true}}`,
		"setOwnerReferences":            `{cluster: {setOwnerReferences: false}}`,
		"patchResource of classes":      `{clusterClass: {patchResource: true}}`,
		"setOwnerReferences of classes": `{clusterClass: {setOwnerReferences: false}}`,
		"followLatest":                  `{install: {followLatest: true}}`,
		"a version":                     `{install: {version: 0.12.0}}`,
		"its own tests": `{config: {server: {inferLocal: true}}, install: {version: v0.14.2-rc.2}, ` + everything +
			`, selector: {matchLabels: {import: ""}}, namespaceSelector: {matchLabels: {import: ""}}}}`,
		"Turtles, where Rancher is installed": `{config: {featureGates: {` + gates + `, ` + rancher + `}}, ` + everything +
			`, agentNamespace: cattle-fleet-system, selector: ` + turtles + `, namespaceSelector: ` + turtles + `}}`,
		"selectors that select all": `{` + everything + `, agentNamespace: cattle-fleet-system, selector: {}, namespaceSelector: {}}}`,
		"sections written as null":  `{cluster: null, clusterClass: null, config: null, install: null}`,
		"fields written as null": `{cluster: {agentEnvVars: null, agentNamespace: null, agentTolerations: null, applyClassGroup: null, hostNetwork: null,
			namespaceSelector: null, naming: {prefix: null, suffix: null}, patchResource: null, selector: null, setOwnerReferences: null},
			clusterClass: {patchResource: null, setOwnerReferences: null},
			config: {bootstrapLocalCluster: null, featureGates: {configMap: null, ` + gates + `}, server: null}, install: null}`,
	}
}

// Every FleetAddonConfig of CAAPF is accepted, even when unknown fields are refused, and means the same when it is
// read again. TestFrom in internal/settings covers what each means.
func TestConfigOfCAAPFIsAccepted(t *testing.T) {
	for name, spec := range caapfConfigs() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			noConfig(t)
			want := &addonsv1.FleetAddonConfig{}
			g.Expect(yaml.UnmarshalStrict([]byte(configYAML(spec)), want)).To(Succeed())
			makeAuthorities(t, g, want.Spec.Config)
			written := object(g, configYAML(spec))
			g.Expect(strictly().Create(ctx, written.DeepCopy())).To(Succeed())

			config := readConfig(g)
			if want.Spec.Config != nil && want.Spec.Config.FeatureGates != nil { // A gate that is missing is enabled.
				want.Spec.Config.FeatureGates.ExperimentalOCIStorage, want.Spec.Config.FeatureGates.ExperimentalHelmOps = ptr.To(true), ptr.To(true)
			}
			if want.Spec.Install != nil {
				want.Spec.Install.Mode = addonsv1.InstallApply
			}
			meaning, err := settings.From(want)
			g.Expect(err).NotTo(HaveOccurred())
			got, err := settings.From(config)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cmp.Diff(meaning, got, cmp.Transformer("Selector", func(s labels.Selector) string { return s.String() }))).To(BeEmpty())
			g.Expect(cmp.Diff(want.Spec.Config, config.Spec.Config)).To(BeEmpty())
			g.Expect(cmp.Diff(want.Spec.Install, config.Spec.Install)).To(BeEmpty())
			g.Eventually(func() error { // The syncer may just have written the status.
				written.SetResourceVersion(readConfig(g).ResourceVersion)
				return strictly().Update(ctx, written)
			}).Should(Succeed(), "the second time")
		})
	}
}

// makeAuthorities creates the CAs that a FleetAddonConfig refers to, where they do not exist yet.
func makeAuthorities(t *testing.T, g Gomega, config *addonsv1.FleetConfig) {
	if config == nil || config.Server == nil {
		return
	}
	for _, ref := range []*corev1.ObjectReference{config.Server.APIServerCAConfigRef, ptr.Deref(config.Server.Custom,
		addonsv1.CustomServer{}).APIServerCAConfigRef} {
		if ref == nil {
			continue
		}
		configMap := named(&corev1.ConfigMap{Data: map[string]string{"ca.crt": authoritytest.CA(t, time.Now().Add(time.Hour))}}, ref.Namespace, ref.Name)
		for _, object := range []client.Object{named(&corev1.Namespace{}, "", ref.Namespace), configMap} {
			g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, object))).To(Succeed())
		}
	}
}

// `kubectl explain` describes every field.
func TestConfigIsExplained(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	out, err := env.Kubectl(ctx, "explain", "fleetaddonconfig.spec.cluster")
	g.Expect(err).NotTo(HaveOccurred())
	for _, part := range []string{
		"GROUP:      addons.cluster.x-k8s.io", "KIND:       FleetAddonConfig", "cluster specifies which CAPI Clusters are imported into Fleet",
		"selector\t<Object>", "selector limits the import to CAPI Clusters with matching labels",
		"naming\t<Object>", "affects only Clusters that are imported afterwards", "enum: Keep, Delete",
	} {
		g.Expect(out).To(ContainSubstring(part))
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	content, err := env.Kubectl(ctx, "get", "crd", "fleetaddonconfigs.addons.cluster.x-k8s.io", "-o", "json")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal([]byte(content), crd)).To(Succeed())
	for section, fields := range map[string]int{"spec": 10, "status": 10} {
		g.Expect(checkDescribed(t, section, crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[section])).To(BeNumerically(">", fields), section)
	}
}

// checkDescribed checks that every field under a schema has a description and counts them.
func checkDescribed(t *testing.T, path string, schema apiextensionsv1.JSONSchemaProps) (count int) {
	t.Helper()
	if schema.Description == "" {
		t.Errorf("%s has no description", path)
	}
	if schema.Items != nil {
		items := *schema.Items.Schema
		items.Description = schema.Description
		count += checkDescribed(t, path+"[]", items)
	}
	for name, field := range schema.Properties {
		count += 1 + checkDescribed(t, path+"."+name, field)
	}
	return count
}

// warnedBy runs kubectl, which must succeed, and returns the warnings it shows.
func warnedBy(g Gomega, input string, args ...string) string {
	_, err := env.KubectlInput(ctx, input, append(args, "--warnings-as-errors")...)
	if err == nil {
		return ""
	}
	g.Expect(err).To(MatchError(MatchRegexp(`error: \d+ warnings? received$`)))
	return err.Error()
}

func warnedApply(g Gomega, manifest string, args ...string) string {
	return warnedBy(g, manifest, append([]string{"apply", "-f", "-"}, args...)...)
}

func TestWarningsOnClusters(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configureCluster(t, g, `{selector: {matchLabels: {fleet: "yes"}}}`)
	g.Eventually(func(g Gomega) {
		g.Expect(warnedApply(g, s.yaml("unselected"), "--dry-run=server")).To(ContainSubstring(
			"Warning: this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (fleet=yes)"))
	}).Should(Succeed())
	selected := strings.Replace(fmt.Sprintf(topologyYAML, s.namespace, "selected.one", "none", s.namespace), "metadata: {",
		`metadata: {labels: {fleet: "yes"}, `, 1)
	g.Expect(warnedApply(g, selected, "--dry-run=server")).To(And(
		ContainSubstring(`Warning: ClusterClass "none" does not exist in namespace %q (yet)`, s.namespace),
		ContainSubstring("Warning: the Cluster's name does not fit Fleet"), Not(ContainSubstring("not imported into Fleet: its labels"))))

	create(g, s.cluster("relabelled"))
	g.Expect(warnedBy(g, "", "-n", s.namespace, "annotate", "clusters.cluster.x-k8s.io", "relabelled", "note=one")).
		To(BeEmpty(), "nothing that is warned of has changed")
	g.Expect(warnedBy(g, "", "-n", s.namespace, "label", "clusters.cluster.x-k8s.io", "relabelled", "fleet=no")).
		To(ContainSubstring("Warning: this Cluster is not imported into Fleet"))
}

func TestWarningsOnTheConfig(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	_, err := apply(t, configYAML(`{}`))
	g.Expect(err).NotTo(HaveOccurred())
	configObserved(g)
	cluster := s.cluster("pinned")
	create(g, cluster)
	g.Expect(cluster.Annotations).To(HaveKeyWithValue(stamp.ClusterNameAnnotation, "pinned"))
	its := fmt.Sprintf("namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}", s.namespace)
	g.Eventually(func(g Gomega) {
		g.Expect(warnedApply(g, configYAML(`{cluster: {selector: {matchLabels: {nobody: has-it}}, naming: {prefix: p-}}}`), "--dry-run=server")).To(And(
			MatchRegexp(`Warning: spec.cluster.selector: none of the [1-9]\d* existing Clusters is selected now`),
			MatchRegexp(`Warning: spec.cluster.naming: the [1-9]\d* Clusters that have a name in Fleet keep it`)))
	}).Should(Succeed())
	g.Expect(warnedApply(g, configYAML("{cluster: {"+its+"}}"))).To(BeEmpty(), "that one is selected")
	g.Expect(warnedApply(g, configYAML("{cluster: {selector: {matchLabels: {nobody: has-it}}, "+its+"}}"), "--dry-run=server")).
		To(ContainSubstring("1 Clusters match only one of the two and are not imported, because both must match: %s/pinned", s.namespace))
	g.Expect(warnedBy(g, "", "delete", "fac", "fleet-addon-config")).To(MatchRegexp(`Warning: [1-9]\d* Clusters stay imported into Fleet; without the FleetAddonConfig its settings are unknown`))

	configure(t, g, `{}`)
	stop(t, g, webhookProcess)
	remove(g, readConfig(g)) // A deletion does not wait for the webhook.
}

// A user who names a CA must be allowed to get it; Muster itself may read it only where a Role allows that.
// TestConfigAuthorities in internal/admission covers the other refusals.
func TestNamedAuthorities(t *testing.T) {
	g := NewWithT(t)
	noConfig(t)
	namespace := newNamespace(t, g, "ca", nil)
	const unread = "%s %s/fleet-ca is not checked, because Muster may not read it"
	withCA := func(kind, name string) string {
		return configYAML(fmt.Sprintf(`{config: {server: {custom: {apiServerUrl: "https://a", apiServerCaConfigRef: {kind: %s, namespace: %s, name: %s}}}}}`, kind, namespace, name))
	}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		g.Expect(warnedApply(g, withCA(kind, "fleet-ca"), "--dry-run=server")).To(ContainSubstring(unread, kind, namespace), "no Role is bound")
	}
	grant(t, g, "", "dora", may("addons.cluster.x-k8s.io", "fleetaddonconfigs", "*"))
	grant(t, g, namespace, "system:serviceaccount:muster-system:muster-webhook", may("", "configmaps", "get"))
	dora := []string{"--as=dora", "--as-group=system:authenticated"}
	for kind, resource := range map[string]string{"ConfigMap": "configmaps", "Secret": "secrets"} {
		_, err := apply(t, withCA(kind, "fleet-ca"), dora...)
		g.Expect(err).To(MatchError(And(ContainSubstring("spec.config.server.custom.apiServerCaConfigRef: Forbidden"),
			ContainSubstring(`user "dora" may not get %s "fleet-ca" in namespace %q`, resource, namespace), ContainSubstring("ask for a Role there"))))
		g.Expect(err).NotTo(MatchError(ContainSubstring("no such")), "nor is she told what is there")
	}
	_, err := apply(t, configYAML(`{}`), append(dora, "--dry-run=server")...)
	g.Expect(err).NotTo(HaveOccurred())

	refused := func(messages string) {
		_, err := apply(t, withCA("ConfigMap", "fleet-ca"), "--dry-run=server")
		g.Expect(err).To(MatchError(And(ContainSubstring("spec.config.server.custom.apiServerCaConfigRef: Invalid value"), ContainSubstring(messages))))
	}
	refused("no such ConfigMap; create it first")
	configMap := named(&corev1.ConfigMap{Data: map[string]string{"ca.crt": "nonsense"}}, namespace, "fleet-ca")
	create(g, configMap)
	refused("holds no certificate in PEM")
	configMap.Data["ca.crt"] = authoritytest.CA(t, time.Now().Add(time.Hour))
	g.Expect(admin.Update(ctx, configMap)).To(Succeed())
	g.Expect(warnedApply(g, withCA("ConfigMap", "fleet-ca"))).NotTo(ContainSubstring("apiServerCaConfigRef"))

	// A change of another field needs no right to the CA, and a CA that is gone since then causes only a warning.
	changed := func(value string, args ...string) string {
		return warnedBy(g, "", append([]string{"patch", "fac", "fleet-addon-config", "--type=merge", "-p",
			`{"spec":{"cluster":{"hostNetwork":` + value + `}}}`}, args...)...)
	}
	g.Expect(changed("false", dora...)).NotTo(ContainSubstring("apiServerCaConfigRef"))
	g.Expect(admin.Delete(ctx, configMap)).To(Succeed())
	g.Expect(changed("true")).To(ContainSubstring("no such ConfigMap"), "but it is said")
}

// The webhooks that fail open let through an object that they cannot read; the schema refuses it.
func TestOpenMeansOpen(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace := newNamespace(t, g, "team", nil)
	_, err := apply(t, fmt.Sprintf("{apiVersion: %s, kind: Cluster, metadata: {namespace: %s, name: unreadable}, spec: {topology: {classRef: standard, version: v1.36.3}}}",
		capiVersion, namespace), "--validate=false")
	g.Expect(err).To(MatchError(And(ContainSubstring("spec.topology.classRef: Invalid value"), Not(ContainSubstring("webhook")))))
}

// The documented emergency command works: with the webhook down, it lets through the changes that failed closed.
func TestNamedEmergencyCommand(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	stop(t, g, webhookProcess)
	failedClosed := map[string]client.Object{"class-access.clusters": s.cluster("emergency"), "config": object(g, configYAML(`{}`))}
	for webhook, object := range failedClosed {
		g.Expect(admin.Create(ctx, object)).To(MatchError(ContainSubstring("failed calling webhook %q", webhook+".fleet.addons.cluster.x-k8s.io")))
	}
	configuration := get(g, &admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook")
	_, err := env.Kubectl(ctx, "delete", "validatingwebhookconfiguration", "muster-validating-webhook")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		configuration.ResourceVersion, configuration.UID = "", ""
		create(NewWithT(t), configuration)
	})
	for _, object := range failedClosed {
		g.Eventually(func() error { return admin.Create(ctx, object) }).Should(Succeed())
	}
}

// While the CRD of the FleetAddonConfig is of an earlier version, the syncer says so, with the rights that it has, and
// changes no status.
func TestOlderCRDIsNamed(t *testing.T) {
	g := NewWithT(t)
	configure(t, g, "{}")
	apis := func(g Gomega) *metav1.Condition {
		found := meta.FindStatusCondition(readConfig(g).Status.Conditions, addonsv1.APIsAvailableCondition)
		g.Expect(found).NotTo(BeNil())
		g.Expect(found.Status).To(Equal(metav1.ConditionTrue))
		return found
	}
	g.Eventually(func(g Gomega) { g.Expect(apis(g).Message).To(BeEmpty()) }).Should(Succeed())
	before := apis(g)

	crd := target("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "fleetaddonconfigs.addons.cluster.x-k8s.io")
	get(g, crd, "", crd.GetName())
	revise := func(revision string) {
		patch(g, crd, entry("annotations", addonsv1.SchemaRevisionAnnotation, revision))
	}
	current := fmt.Sprintf("%q", crd.GetAnnotations()[addonsv1.SchemaRevisionAnnotation])
	t.Cleanup(func() { revise(current) })
	revise("null")
	g.Eventually(func(g Gomega) {
		g.Expect(apis(g).Message).To(HavePrefix("older than the syncer: CRD " + crd.GetName()))
	}).Should(Succeed())
	g.Expect(apis(g).LastTransitionTime).To(Equal(before.LastTransitionTime))
	revise(current)
	g.Eventually(func(g Gomega) { g.Expect(apis(g)).To(Equal(before)) }).Should(Succeed())
}
