package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/test/fixture"
)

// configYAML returns a FleetAddonConfig with this spec, in flow style.
func configYAML(spec string) string {
	return "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: " + spec + "}"
}

// noConfig deletes the FleetAddonConfig, now and when the test ends.
func noConfig(t *testing.T) {
	t.Helper()
	remove := func() {
		if err := client.IgnoreNotFound(admin.Delete(ctx, fixture.Config())); err != nil {
			t.Errorf("deleting the FleetAddonConfig: %v", err)
		}
	}
	remove()
	t.Cleanup(remove)
}

// invalidConfig is a FleetAddonConfig that is refused.
type invalidConfig struct {
	name, yaml string
	// says are parts of the refusal: the field's path, and what to do.
	says []string
	// structural says that the CRD refuses it: whoever applies it, and with the
	// webhook down.
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
		semver    = "must be a semantic version, for example 0.16.0, or a range of them, for example 0.16.x"
	)
	structural := func(name, spec string, says ...string) invalidConfig {
		return invalidConfig{name: name, yaml: configYAML(spec), says: says, structural: true}
	}
	byWebhook := func(name, spec string, says ...string) invalidConfig {
		return invalidConfig{name: name, yaml: configYAML(spec), says: says}
	}
	return []invalidConfig{
		{
			name: "another name", structural: true,
			yaml: "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: mine}, spec: {}}",
			says: []string{"metadata.name: there is one FleetAddonConfig and its name is fleet-addon-config; rename this one"},
		},
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
		byWebhook("a CA without name", `{config: {server: {custom: {apiServerCaConfigRef: {kind: Secret, namespace: b}}}}}`, "spec.config.server.custom.apiServerCaConfigRef.name: Required value", "whose key ca.crt holds the CA"),
		byWebhook("a CA without namespace", `{config: {server: {apiServerCaConfigRef: {kind: Secret, name: a}}}}`, "spec.config.server.apiServerCaConfigRef.namespace: Required value"),
		byWebhook("gates in no ConfigMap", `{config: {featureGates: {configMap: {}}}}`, "spec.config.featureGates.configMap.ref: Required value", "name and namespace of the ConfigMap"),
		byWebhook("gates in a ConfigMap and install", `{config: {featureGates: {configMap: {ref: {name: a, namespace: b}}}}, install: {followLatest: true}}`, "spec.config.featureGates.configMap.ref: Forbidden", "remove configMap, or install"),

		structural("In without values", `{cluster: {selector: {matchExpressions: [{key: a, operator: In}]}}}`, "spec.cluster.selector.matchExpressions", needValue),
		structural("NotIn with no values", `{cluster: {namespaceSelector: {matchExpressions: [{key: a, operator: NotIn, values: []}]}}}`, "spec.cluster.namespaceSelector.matchExpressions", needValue),
		structural("Exists with values", `{cluster: {selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}}`, "spec.cluster.selector.matchExpressions", noValue),
		structural("DoesNotExist with values", `{cluster: {namespaceSelector: {matchExpressions: [{key: a, operator: DoesNotExist, values: [b]}]}}}`, "spec.cluster.namespaceSelector.matchExpressions", noValue),
		structural("an unknown operator", `{cluster: {selector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}}`, "spec.cluster.selector.matchExpressions", operator),
		structural("a selector without operator", `{cluster: {selector: {matchExpressions: [{key: a}]}}}`, "spec.cluster.selector.matchExpressions[0].operator", "Required value"),
		structural("a label that YAML reads as a bool", `{cluster: {selector: {matchLabels: {import: true}}}}`, "spec.cluster.selector.matchLabels.import", "must be of type string"),
		structural("a selector with too many values", `{cluster: {agentInitiatedSelector: {matchExpressions: [{key: a, operator: In, values: [`+strings.Repeat("b, ", 1000)+`b]}, {key: a, operator: NotIn, values: [`+strings.Repeat("c, ", 30)+`c]}]}}}`, "spec.cluster.agentInitiatedSelector.matchExpressions", "must have at most 1024 values in all"),
		structural("a selector with too many expressions", `{cluster: {selector: {matchExpressions: [`+strings.Repeat("{key: a, operator: Exists}, ", 64)+`{key: a, operator: Exists}]}}}`, "spec.cluster.selector.matchExpressions", "must have at most 64 expressions"),
		byWebhook("a selector's value is none", `{cluster: {selector: {matchLabels: {a: "b c"}}}}`, "spec.cluster.selector.matchLabels: Invalid value", "a valid label must be"),
		byWebhook("a selector's key is none", `{cluster: {namespaceSelector: {matchExpressions: [{key: "a b", operator: Exists}]}}}`, "spec.cluster.namespaceSelector.matchExpressions[0].key: Invalid value"),

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
		byWebhook("a toleration with seconds but another effect", `{cluster: {agentTolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}]}}`, "spec.cluster.agentTolerations[0].effect: Invalid value", "must be NoExecute when tolerationSeconds is set"),
		byWebhook("a toleration of an unknown operator", `{cluster: {agentTolerations: [{operator: Exists}, {key: a, operator: In}]}}`, "spec.cluster.agentTolerations[1].operator: Unsupported value"),
		byWebhook("a toleration that exists with a value", `{cluster: {agentTolerations: [{key: a, operator: Exists, value: b}]}}`, "spec.cluster.agentTolerations[0].value: Invalid value", "remove it, or use operator Equal"),
		byWebhook("a toleration of a number that is none", `{cluster: {agentTolerations: [{key: a, operator: Gt, value: many}]}}`, "spec.cluster.agentTolerations[0].value: Invalid value", "must be a valid decimal integer"),
		byWebhook("a toleration without key", `{cluster: {agentTolerations: [{operator: Equal, value: a}]}}`, "spec.cluster.agentTolerations[0].operator: Invalid value", "must be Exists when key is empty"),
		byWebhook("a toleration of an unknown effect", `{cluster: {agentTolerations: [{key: a, effect: NoRun}]}}`, "spec.cluster.agentTolerations[0].effect: Unsupported value"),
		byWebhook("a duplicate environment variable", `{cluster: {agentEnvVars: [{name: A, value: b}, {name: A, value: c}]}}`, "spec.cluster.agentEnvVars[1].name: Duplicate value"),
		byWebhook("an environment variable twice over", `{cluster: {agentEnvVars: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}}`, "spec.cluster.agentEnvVars[0].valueFrom: Invalid value", "may not be set together with value"),
		byWebhook("an environment variable from nowhere", `{cluster: {agentEnvVars: [{name: A, valueFrom: {}}]}}`, "spec.cluster.agentEnvVars[0].valueFrom: Invalid value", "must name exactly one source"),
		structural("an environment variable without name", `{cluster: {agentEnvVars: [{value: b}]}}`, "spec.cluster.agentEnvVars[0].name", "Required value"),
		structural("an unknown onDeselect", `{cluster: {onDeselect: Orphan}}`, "spec.cluster.onDeselect", `supported values: "Keep", "Delete"`),
		structural("no JSON pointer", `{cluster: {templateValues: {exclude: [ControlPlane/spec]}}}`, "spec.cluster.templateValues.exclude[0]", pointer),
		structural("a JSON pointer with a bad escape", `{cluster: {templateValues: {exclude: [/a~2b]}}}`, "spec.cluster.templateValues.exclude[0]", pointer),
		structural("too many pointers", `{cluster: {templateValues: {exclude: [`+strings.Repeat("/a, ", 128)+`/a]}}}`, "spec.cluster.templateValues.exclude", "must have at most 128 items"),
		structural("an unknown policy", `{policy: {crossNamespaceClass: Deny}}`, "spec.policy.crossNamespaceClass", `supported values: "Enforce", "Warn", "Off"`),
		structural("an unknown verb of the policy", `{policy: {crossNamespaceClassVerb: list}}`, "spec.policy.crossNamespaceClassVerb", `supported values: "get", "use"`),
		structural("a policy that YAML reads as false", `{policy: {crossNamespaceClass: Off}}`, "spec.policy.crossNamespaceClass", "must be of type string"),
		structural("a string for a bool", `{cluster: {enabled: "yes"}}`, "spec.cluster.enabled", "must be of type boolean"),

		structural("both followLatest and version", `{install: {followLatest: true, version: 0.16.0}}`, "spec.install", oneOf),
		structural("neither followLatest nor version", `{install: {}}`, "spec.install", oneOf),
		structural("a version that is none", `{install: {version: latest}}`, "spec.install.version", semver),
		structural("a version of four parts", `{install: {version: "0.16.0.1"}}`, "spec.install.version", semver),
		structural("half a range of versions", `{install: {version: ">="}}`, "spec.install.version", semver),
		byWebhook("a range of versions that is too old", `{install: {version: "0.11.x"}}`, "spec.install.version: Invalid value", "the oldest supported Fleet is 0.12.0"),
		byWebhook("a range without versions", `{install: {version: ">0.16.0 <0.15.0"}}`, "spec.install.version: Invalid value", "no version is in this range"),
		byWebhook("a version of an operator there is not", `{install: {version: "!>0.16.0"}}`, "spec.install.version: Invalid value", semver),
		byWebhook("a release candidate too old", `{install: {version: v0.11.0-rc.1}}`, "spec.install.version: Invalid value", "the oldest supported Fleet is 0.12.0"),
		byWebhook("a version too old", `{install: {version: 0.11.9}}`, "spec.install.version: Invalid value", "the oldest supported Fleet is 0.12.0"),
		structural("a repository without scheme", `{install: {followLatest: true, repository: rancher.github.io}}`, "spec.install.repository", "must be a URL that starts with https://, http:// or oci://"),

		byWebhook("several at once", `{cluster: {agentTolerations: [{}], selector: {matchLabels: {a: "b c"}}}, install: {version: 0.11.0}}`,
			"spec.cluster.agentTolerations[0].operator", "spec.cluster.selector.matchLabels", "spec.install.version"),
		{name: "a field there is not", structural: true, yaml: configYAML(`{cluster: {selectors: {}}}`), says: []string{`unknown field "spec.cluster.selectors"`}},
	}
}

func (c invalidConfig) isRefused(t *testing.T) {
	t.Helper()
	_, err := apply(t, c.yaml)
	if err == nil {
		noConfig(t)
		t.Fatal("it was accepted")
	}
	for _, part := range c.says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v\ndoes not say %q", err, part)
		}
	}
}

func TestConfigInvalidIsRefused(t *testing.T) {
	noConfig(t)
	for _, config := range invalidConfigs() {
		t.Run(config.name, config.isRefused)
	}
}

// What the CRD refuses it refuses without the webhook; all else is refused as long
// as the webhook cannot be asked, with a message that says so.
func TestConfigInvalidIsRefusedWithoutTheWebhook(t *testing.T) {
	g := NewWithT(t)
	noConfig(t)
	restart := stop(t, g, webhookProcess)
	defer restart()

	t.Run("nothing passes while it cannot be asked", func(t *testing.T) {
		_, err := apply(t, configYAML(`{}`))
		if err == nil || !strings.Contains(err.Error(), `failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`) {
			t.Errorf("the answer is %v", err)
		}
	})

	setFailurePolicy(t, g, admissionregistrationv1.Ignore)
	g.Eventually(func() error {
		_, err := apply(t, configYAML(`{}`), "--dry-run=server")
		return err
	}).Should(Succeed(), "the API server should let FleetAddonConfigs pass without the webhook")
	for _, config := range invalidConfigs() {
		if config.structural {
			t.Run(config.name, config.isRefused)
		}
	}
	// The rest passes: it is the webhook that refuses it, and nothing else.
	t.Run("the rest passes", func(t *testing.T) {
		for _, config := range invalidConfigs() {
			if config.structural {
				continue
			}
			if _, err := apply(t, config.yaml, "--dry-run=server"); err != nil {
				t.Errorf("%s: the CRD refuses it, so it is structural: %v", config.name, err)
			}
		}
	})
}

// setFailurePolicy changes what happens while the webhook for FleetAddonConfigs is
// down, until the test ends.
func setFailurePolicy(t *testing.T, g Gomega, policy admissionregistrationv1.FailurePolicyType) {
	t.Helper()
	const name = "config.fleet.addons.cluster.x-k8s.io"
	set := func(policy admissionregistrationv1.FailurePolicyType) (before admissionregistrationv1.FailurePolicyType, err error) {
		configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := admin.Get(ctx, client.ObjectKey{Name: "muster-validating-webhook"}, configuration); err != nil {
			return "", err
		}
		original := configuration.DeepCopy()
		i := slices.IndexFunc(configuration.Webhooks, func(webhook admissionregistrationv1.ValidatingWebhook) bool { return webhook.Name == name })
		if i < 0 {
			return "", fmt.Errorf("no webhook %s", name)
		}
		before = ptr.Deref(configuration.Webhooks[i].FailurePolicy, "")
		configuration.Webhooks[i].FailurePolicy = &policy
		return before, admin.Patch(ctx, configuration, client.MergeFromWithOptions(original, client.MergeFromWithOptimisticLock{}))
	}
	before, err := set(policy)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if _, err := set(before); err != nil {
			t.Errorf("restoring the failure policy: %v", err)
		}
	})
}

func parsedSelector(t *testing.T, text string) labels.Selector {
	t.Helper()
	selector, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

// Every FleetAddonConfig that CAAPF documents and Rancher Turtles ships is accepted
// through kubectl, which refuses unknown fields, and means what CAAPF says it means.
func TestConfigOfCAAPFIsAccepted(t *testing.T) {
	ref := func(namespace, name string) *corev1.ObjectReference {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: name}
	}
	inferred := &addonsv1.FleetConfig{Server: &addonsv1.Server{InferLocal: ptr.To(true)}}
	shorthand := &addonsv1.FleetConfig{Server: &addonsv1.Server{CustomServer: addonsv1.CustomServer{
		APIServerURL: ptr.To("https://public-url.io"), APIServerCAConfigRef: ref("default", "kube-root-ca.crt")}}}
	gates := func(configMap *corev1.ObjectReference) *addonsv1.FleetConfig {
		result := &addonsv1.FleetConfig{FeatureGates: &addonsv1.FeatureGates{ExperimentalOCIStorage: ptr.To(true), ExperimentalHelmOps: ptr.To(true)}}
		if configMap != nil {
			result.FeatureGates.ConfigMap = &addonsv1.FeaturesConfigMap{Ref: configMap}
		}
		return result
	}
	latest := &addonsv1.FleetInstall{FollowLatest: ptr.To(true), Mode: addonsv1.InstallApply}
	release := func(version string) *addonsv1.FleetInstall {
		return &addonsv1.FleetInstall{Version: &version, Mode: addonsv1.InstallApply}
	}
	const imported = "cluster-api.cattle.io/rancher-auto-import=true,!cluster-api.cattle.io/disable-fleet-auto-import"

	// Each changes the defaults where CAAPF's documentation says so.
	type meaning struct {
		settings func(*settings.Settings)
		config   *addonsv1.FleetConfig
		install  *addonsv1.FleetInstall
	}
	documented := map[string]meaning{
		"empty":                               {},
		"readme-install-version":              {config: inferred, install: release("v0.12.0-alpha.6")},
		"readme-server-shorthand":             {config: shorthand, install: release("v0.12.0-alpha.6")},
		"guide-follow-latest":                 {config: inferred, install: latest},
		"guide-server-shorthand":              {config: shorthand, install: latest},
		"guide-feature-gates":                 {config: gates(nil)},
		"guide-feature-gates-configmap":       {config: gates(ref("cattle-system", "rancher-config"))},
		"reference-bootstrap-local-cluster":   {config: &addonsv1.FleetConfig{BootstrapLocalCluster: ptr.To(true)}},
		"reference-feature-gates-configmap":   {config: gates(ref("fleet-system", "fleet-feature-flags"))},
		"reference-feature-gates-helm-ops":    {config: gates(nil)}, // a gate that is missing is enabled
		"reference-feature-gates-oci-storage": {config: gates(nil)},
		"reference-server-infer-local":        {config: inferred},
		"reference-server-custom-url":         {config: &addonsv1.FleetConfig{Server: &addonsv1.Server{Custom: &addonsv1.CustomServer{APIServerURL: ptr.To("https://fleet.example.com")}}}},
		"reference-server-custom-ca":          {config: &addonsv1.FleetConfig{Server: &addonsv1.Server{Custom: &addonsv1.CustomServer{APIServerCAConfigRef: ref("fleet-system", "fleet-server-ca")}}}},
		"reference-agent-env-vars": {settings: func(s *settings.Settings) {
			s.Cluster.AgentEnvVars = []corev1.EnvVar{{Name: "HTTP_PROXY", Value: "http://proxy.example.com:8080"}, {Name: "NO_PROXY", Value: "localhost,127.0.0.1,.svc"}}
		}},
		"reference-agent-namespace": {settings: func(s *settings.Settings) { s.Cluster.AgentNamespace = "fleet-agents" }},
		"reference-agent-tolerations": {settings: func(s *settings.Settings) {
			s.Cluster.AgentTolerations = []corev1.Toleration{
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: ptr.To[int64](600)},
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: ptr.To[int64](600)},
			}
		}},
		"reference-apply-class-group":          {},
		"reference-host-network":               {},
		"reference-namespace-selector":         {settings: func(s *settings.Settings) { s.Cluster.NamespaceSelector = parsedSelector(t, "import=true") }},
		"reference-selector":                   {settings: func(s *settings.Settings) { s.Cluster.Selector = parsedSelector(t, "import=true") }},
		"reference-naming-prefix":              {settings: func(s *settings.Settings) { s.Cluster.Prefix = "capi-" }},
		"reference-naming-suffix":              {settings: func(s *settings.Settings) { s.Cluster.Suffix = "-fleet" }},
		"reference-patch-resource":             {},
		"reference-set-owner-references":       {settings: func(s *settings.Settings) { s.Cluster.SetOwnerReferences = false }},
		"reference-class-patch-resource":       {},
		"reference-class-set-owner-references": {settings: func(s *settings.Settings) { s.Class.SetOwnerReferences = false }},
		"reference-install-follow-latest":      {install: latest},
		"reference-install-version":            {install: release("0.12.0")},
		"testdata-config": {config: inferred, install: release("v0.14.2-rc.2"), settings: func(s *settings.Settings) {
			s.Cluster.Selector, s.Cluster.NamespaceSelector = parsedSelector(t, "import="), parsedSelector(t, "import=")
		}},
		"turtles-shipped": {config: gates(ref("cattle-system", "rancher-config")), settings: func(s *settings.Settings) {
			s.Cluster.AgentNamespace = "cattle-fleet-system"
			s.Cluster.Selector, s.Cluster.NamespaceSelector = parsedSelector(t, imported), parsedSelector(t, imported)
		}},
		"turtles-empty-selectors":  {settings: func(s *settings.Settings) { s.Cluster.AgentNamespace = "cattle-fleet-system" }},
		"serialized-null-sections": {},
		"serialized-null-fields":   {config: gates(nil)},
	}

	files, err := filepath.Glob("testdata/caapf/*.yaml")
	if err != nil || len(files) != len(documented) {
		t.Fatalf("%d files, %d meanings: %v", len(files), len(documented), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			meaning, found := documented[name]
			if !found {
				t.Fatal("nothing says what it means")
			}
			g := NewWithT(t)
			noConfig(t)
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			makeAuthorities(g, content)
			_, err = apply(t, string(content))
			g.Expect(err).NotTo(HaveOccurred())

			config := get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName)
			got, err := settings.From(config)
			g.Expect(err).NotTo(HaveOccurred())
			want := settings.Default()
			want.Cluster.Unconfigured = false // Default is what holds without a FleetAddonConfig.
			if meaning.settings != nil {
				meaning.settings(&want)
			}
			if diff := cmp.Diff(want, got, cmp.Transformer("Selector", func(s labels.Selector) string { return s.String() })); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(meaning.config, config.Spec.Config); diff != "" {
				t.Errorf("spec.config (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(meaning.install, config.Spec.Install); diff != "" {
				t.Errorf("spec.install (-want +got):\n%s", diff)
			}
			_, err = apply(t, string(content))
			g.Expect(err).NotTo(HaveOccurred(), "the second time")
		})
	}
}

// Who asks kubectl reads what every field is for.
func TestConfigIsExplained(t *testing.T) {
	g := NewWithT(t)
	out, err := env.Kubectl(ctx, "explain", "fleetaddonconfig.spec.cluster")
	g.Expect(err).NotTo(HaveOccurred())
	for _, part := range []string{
		"GROUP:      addons.cluster.x-k8s.io", "KIND:       FleetAddonConfig",
		"cluster says which CAPI Clusters are imported into Fleet",
		"selector\t<Object>", "selector limits the import to CAPI Clusters with matching labels",
		"naming\t<Object>", "A change affects Clusters imported afterwards only", "enum: Keep, Delete",
	} {
		g.Expect(out).To(ContainSubstring(part))
	}
	g.Expect(out).NotTo(ContainSubstring("<no description>"))

	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	get(g, crd, "", "fleetaddonconfigs.addons.cluster.x-k8s.io")
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	g.Expect(err).NotTo(HaveOccurred())
	root, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
	g.Expect(err).NotTo(HaveOccurred())
	for _, section := range []string{"spec", "status"} {
		properties, _, err := unstructured.NestedMap(root, "properties", section)
		g.Expect(err).NotTo(HaveOccurred())
		fields := checkDescribed(t, section, properties)
		g.Expect(fields).To(BeNumerically(">", 10), section)
	}
}

// checkDescribed checks that every field under a schema has a description and counts them.
func checkDescribed(t *testing.T, path string, node map[string]any) int {
	t.Helper()
	count := 0
	if items, ok := node["items"].(map[string]any); ok {
		count += checkDescribed(t, path+"[]", items)
	}
	properties, _ := node["properties"].(map[string]any)
	for name, property := range properties {
		field := property.(map[string]any)
		if description, _ := field["description"].(string); description == "" {
			t.Errorf("%s.%s has no description", path, name)
		}
		count += 1 + checkDescribed(t, path+"."+name, field)
	}
	return count
}

// Where all is well, as it is where no other test has left a Cluster that waits.
func TestConfigColumns(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	_, err := apply(t, configYAML(`{}`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "fac")
		g.Expect(err).NotTo(HaveOccurred())
		lines := strings.Split(strings.TrimSpace(out), "\n")
		g.Expect(lines).To(HaveLen(2))
		g.Expect(strings.Fields(lines[0])).To(Equal([]string{"NAME", "READY", "REASON", "IMPORTED", "FLEET", "AGE"}))
		row := strings.Fields(lines[1])
		g.Expect(len(row)).To(BeNumerically(">=", 4), "no status yet: %v", row)
		g.Expect(row[:4]).To(HaveExactElements("fleet-addon-config", "True", "Ready", MatchRegexp(`^\d+$`)))
	}).Should(Succeed())

	out, err := env.Kubectl(ctx, "get", "cluster-api", "--all-namespaces")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(ContainSubstring("fleetaddonconfig.addons.cluster.x-k8s.io/fleet-addon-config"))
}
