package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// selectors compares parsed selectors by their string form.
var selectors = cmp.Transformer("Selector", func(selector labels.Selector) string {
	if selector == nil {
		return "<nil>"
	}
	return selector.String()
})

// documented returns the defaults as the reference states them. They are repeated here because a default that
// changes by accident changes every Fleet Cluster.
func documented() Settings {
	return Settings{
		ConfigName: "fleet-addon-config",
		Cluster: Cluster{
			Enabled: true, ApplyClassGroup: true, PatchResource: true, SetOwnerReferences: true, HostNetwork: true,
			AgentNamespace: "fleet-addon-agent",
			AgentTolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoSchedule"},
				{Key: "node.cluster.x-k8s.io/uninitialized", Operator: "Exists", Effect: "NoSchedule"},
				{Key: "node.cloudprovider.kubernetes.io/uninitialized", Operator: "Equal", Value: "true", Effect: "NoSchedule"},
			},
			Selector:               labels.Everything(),
			NamespaceSelector:      labels.Everything(),
			OnDeselect:             "Keep",
			Rancher:                "Auto",
			AgentInitiatedSelector: labels.Everything(),
			Exclude:                DefaultExclude(), // the tests of the template values check the list
		},
		Class: Class{Enabled: true, PatchResource: true, SetOwnerReferences: true},
	}
}

func parsed(t *testing.T, text string) labels.Selector {
	t.Helper()
	selector, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

// A missing section or field means its default and does not affect the others, in whichever way it is missing.
func TestFrom(t *testing.T) {
	tests := map[string]struct {
		spec string
		// want changes the documented defaults.
		want func(*Settings)
	}{
		"empty spec":                 {spec: `{}`},
		"empty cluster":              {spec: `cluster: {}`},
		"null cluster":               {spec: `cluster: null`},
		"empty class":                {spec: `clusterClass: {}`},
		"null class":                 {spec: `clusterClass: null`},
		"empty policy":               {spec: `policy: {}`},
		"null policy":                {spec: `policy: null`},
		"config and install only":    {spec: `{config: {server: {inferLocal: true}}, install: {followLatest: true}}`},
		"every section null":         {spec: `{cluster: null, clusterClass: null, policy: null, config: null, install: null}`},
		"fields of the cluster null": {spec: `cluster: {enabled: null, applyClassGroup: null, patchResource: null, setOwnerReferences: null, hostNetwork: null, agentNamespace: null, agentTolerations: null, agentEnvVars: null, agentPullSecrets: null, naming: null, selector: null, namespaceSelector: null, onDeselect: null, templateValues: null, agentInitiated: null, agentInitiatedSelector: null, copy: null}`},
		"fields of the class null":   {spec: `clusterClass: {enabled: null, patchResource: null, setOwnerReferences: null}`},
		"empty naming":               {spec: `cluster: {naming: {}}`},
		"null naming parts":          {spec: `cluster: {naming: {prefix: null, suffix: null}}`},
		"empty templateValues":       {spec: `cluster: {templateValues: {}}`},
		"null exclude":               {spec: `cluster: {templateValues: {exclude: null}}`},
		"empty copy":                 {spec: `cluster: {copy: {}}`},
		"empty agentNamespace":       {spec: `cluster: {agentNamespace: ""}`},
		"empty selector":             {spec: `cluster: {selector: {}}`},
		"empty namespaceSelector":    {spec: `cluster: {namespaceSelector: {}}`},
		"empty maps in a selector":   {spec: `cluster: {selector: {matchLabels: {}, matchExpressions: []}}`},
		"explicit truth":             {spec: `{cluster: {enabled: true, applyClassGroup: true, patchResource: true, setOwnerReferences: true, hostNetwork: true}, clusterClass: {enabled: true, patchResource: true, setOwnerReferences: true}}`},
		"cluster.enabled":            {spec: `cluster: {enabled: false}`, want: func(s *Settings) { s.Cluster.Enabled = false }},
		"cluster.applyClassGroup":    {spec: `cluster: {applyClassGroup: false}`, want: func(s *Settings) { s.Cluster.ApplyClassGroup = false }},
		"cluster.patchResource":      {spec: `cluster: {patchResource: false}`, want: func(s *Settings) { s.Cluster.PatchResource = false }},
		"cluster.setOwnerReferences": {spec: `cluster: {setOwnerReferences: false}`, want: func(s *Settings) { s.Cluster.SetOwnerReferences = false }},
		"cluster.hostNetwork":        {spec: `cluster: {hostNetwork: false}`, want: func(s *Settings) { s.Cluster.HostNetwork = false }},
		"cluster.agentNamespace":     {spec: `cluster: {agentNamespace: cattle-fleet-system}`, want: func(s *Settings) { s.Cluster.AgentNamespace = "cattle-fleet-system" }},
		"cluster.agentEnvVars":       {spec: `cluster: {agentEnvVars: [{name: A, value: b}]}`, want: func(s *Settings) { s.Cluster.AgentEnvVars = []corev1.EnvVar{{Name: "A", Value: "b"}} }},
		"no pull secrets":            {spec: `cluster: {agentPullSecrets: []}`, want: func(s *Settings) { s.Cluster.AgentPullSecrets = &[]corev1.LocalObjectReference{} }},
		"pull secrets": {spec: `cluster: {agentPullSecrets: [{name: a}, {name: b}]}`, want: func(s *Settings) {
			s.Cluster.AgentPullSecrets = &[]corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}
		}},
		"no tolerations":         {spec: `cluster: {agentTolerations: []}`, want: func(s *Settings) { s.Cluster.AgentTolerations = []corev1.Toleration{} }},
		"other tolerations":      {spec: `cluster: {agentTolerations: [{operator: Exists}]}`, want: func(s *Settings) { s.Cluster.AgentTolerations = []corev1.Toleration{{Operator: "Exists"}} }},
		"prefix":                 {spec: `cluster: {naming: {prefix: capi-}}`, want: func(s *Settings) { s.Cluster.Prefix = "capi-" }},
		"suffix":                 {spec: `cluster: {naming: {suffix: -fleet}}`, want: func(s *Settings) { s.Cluster.Suffix = "-fleet" }},
		"selector only":          {spec: `cluster: {selector: {matchLabels: {import: "true"}}}`, want: func(s *Settings) { s.Cluster.Selector = parsed(t, "import=true") }},
		"namespaceSelector only": {spec: `cluster: {namespaceSelector: {matchLabels: {import: "true"}}}`, want: func(s *Settings) { s.Cluster.NamespaceSelector = parsed(t, "import=true") }},
		"all operators":          {spec: `cluster: {selector: {matchExpressions: [{key: a, operator: In, values: [x, z]}, {key: b, operator: NotIn, values: [w]}, {key: c, operator: Exists}, {key: d, operator: DoesNotExist}]}}`, want: func(s *Settings) { s.Cluster.Selector = parsed(t, "a in (x,z),b notin (w),c,!d") }},
		"onDeselect":             {spec: `cluster: {onDeselect: Delete}`, want: func(s *Settings) { s.Cluster.OnDeselect = "Delete" }},
		"rancher":                {spec: `rancher: {mode: Import}`, want: func(s *Settings) { s.Cluster.Rancher = "Import" }},
		"agentInitiated":         {spec: `cluster: {agentInitiated: true}`, want: func(s *Settings) { s.Cluster.AgentInitiated = true }},
		"agentInitiatedSelector": {spec: `cluster: {agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: edge}}}`, want: func(s *Settings) {
			s.Cluster.AgentInitiated, s.Cluster.AgentInitiatedSelector = true, parsed(t, "site=edge")
		}},
		"exclude":         {spec: `cluster: {templateValues: {exclude: [/Cluster/spec]}}`, want: func(s *Settings) { s.Cluster.Exclude = []string{"/Cluster/spec"} }},
		"exclude nothing": {spec: `cluster: {templateValues: {exclude: []}}`, want: func(s *Settings) { s.Cluster.Exclude = []string{} }},
		"copy": {spec: `cluster: {copy: {exclude: [env, example.com/a, example.com/*]}}`, want: func(s *Settings) {
			s.Cluster.NotCopied = Keys{"env": true, "example.com/a": true, "example.com/": true}
		}},
		"copy everything":             {spec: `cluster: {copy: {exclude: []}}`},
		"clusterClass.enabled":        {spec: `clusterClass: {enabled: false}`, want: func(s *Settings) { s.Class.Enabled = false }},
		"clusterClass.patchResource":  {spec: `clusterClass: {patchResource: false}`, want: func(s *Settings) { s.Class.PatchResource = false }},
		"clusterClass.setOwnerRefs":   {spec: `clusterClass: {setOwnerReferences: false}`, want: func(s *Settings) { s.Class.SetOwnerReferences = false }},
		"one section leaves the rest": {spec: `{clusterClass: {patchResource: false}, cluster: {hostNetwork: false}}`, want: func(s *Settings) { s.Class.PatchResource, s.Cluster.HostNetwork = false, false }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config := &addonsv1.FleetAddonConfig{}
			if err := yaml.UnmarshalStrict([]byte(test.spec), &config.Spec); err != nil {
				t.Fatal(err)
			}
			got, err := From(config)
			if err != nil {
				t.Fatal(err)
			}
			want := documented()
			if test.want != nil {
				test.want(&want)
			}
			if diff := cmp.Diff(want, got, selectors); diff != "" {
				t.Errorf("From (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClassPolicy(t *testing.T) {
	bad := &addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"no key!": "x"}}}
	for name, test := range map[string]struct {
		config *addonsv1.FleetAddonConfig
		policy addonsv1.CrossNamespaceClassPolicy
		verb   addonsv1.CrossNamespaceClassVerb
	}{
		"no config":    {nil, "Enforce", "get"},
		"no policy":    {&addonsv1.FleetAddonConfig{}, "Enforce", "get"},
		"empty policy": {&addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Policy: &addonsv1.PolicyConfig{}}}, "Enforce", "get"},
		"policy":       {&addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Policy: &addonsv1.PolicyConfig{CrossNamespaceClass: "Warn"}}}, "Warn", "get"},
		"verb":         {&addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Policy: &addonsv1.PolicyConfig{CrossNamespaceClassVerb: "use"}}}, "Enforce", "use"},
		"bad selector": {&addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Cluster: bad, Policy: &addonsv1.PolicyConfig{CrossNamespaceClass: "Off"}}}, "Off", "get"},
	} {
		if policy, verb := ClassPolicy(test.config); policy != test.policy || verb != test.verb {
			t.Errorf("%s: %s, %s", name, policy, verb)
		}
	}
}

// unconfigured are the effective settings without a FleetAddonConfig.
func unconfigured() Settings {
	in := documented()
	in.Cluster.Unconfigured = true
	return in
}

func TestWithoutConfig(t *testing.T) {
	if diff := cmp.Diff(unconfigured(), Default(), selectors); diff != "" {
		t.Errorf("Default (-want +got):\n%s", diff)
	}
	if !Default().Cluster.Selector.Empty() || !Default().Cluster.NamespaceSelector.Empty() {
		t.Error("the default selectors do not match everything")
	}
}

// A caller that changes the returned settings does not change the defaults.
func TestDefaultsAreNotShared(t *testing.T) {
	first := Default()
	first.Cluster.AgentTolerations[0].Key = "changed"
	first.Cluster.Exclude[0] = "changed"
	if diff := cmp.Diff(unconfigured(), Default(), selectors); diff != "" {
		t.Errorf("Default after a change (-want +got):\n%s", diff)
	}
}

func TestUnparsableSelectors(t *testing.T) {
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}
	tests := map[string]struct {
		cluster addonsv1.ClusterConfig
		want    []string
	}{
		"unknown operator":           {cluster: addonsv1.ClusterConfig{Selector: bad}, want: []string{`spec.cluster.selector: "Is" is not a valid label selector operator`}},
		"namespaceSelector":          {cluster: addonsv1.ClusterConfig{NamespaceSelector: bad}, want: []string{"spec.cluster.namespaceSelector: "}},
		"both":                       {cluster: addonsv1.ClusterConfig{Selector: bad, NamespaceSelector: bad}, want: []string{"spec.cluster.selector: ", "spec.cluster.namespaceSelector: "}},
		"In without values":          {cluster: addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In"}}}}, want: []string{"spec.cluster.selector: "}},
		"no label key":               {cluster: addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}, want: []string{"spec.cluster.selector: "}},
		"other fields do not matter": {cluster: addonsv1.ClusterConfig{Selector: bad, Enabled: ptr.To(false)}, want: []string{"spec.cluster.selector: "}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := From(&addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Cluster: &test.cluster}})
			if err == nil {
				t.Fatal("From returned no error")
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error %q does not contain %q", err, part)
				}
			}
			if diff := cmp.Diff(Settings{}, got, selectors); diff != "" {
				t.Errorf("settings returned with an error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRetained(t *testing.T) {
	config := &addonsv1.FleetAddonConfig{}
	config.Spec.Cluster = &addonsv1.ClusterConfig{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"no key!": "x"}}, SetOwnerReferences: ptr.To(false),
	}
	suspended := Suspended(config)
	if suspended.Cluster.Enabled || suspended.Cluster.SetOwnerReferences || config.Spec.Cluster.Selector == nil {
		t.Errorf("Suspended = %+v of %+v", suspended, config.Spec.Cluster)
	}
}
