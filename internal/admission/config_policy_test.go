package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/crd"
)

// configOf returns a FleetAddonConfig with this spec.
func configOf(t testing.TB, spec string) *addonsv1.FleetAddonConfig {
	t.Helper()
	config := &addonsv1.FleetAddonConfig{}
	config.Name = addonsv1.FleetAddonConfigName
	if err := yaml.UnmarshalStrict([]byte(spec), &config.Spec); err != nil {
		t.Fatal(err)
	}
	return config
}

// problem is an expected error; message is a part of its text.
type problem struct {
	Type    field.ErrorType
	Field   string
	message string
}

func checkProblems(t *testing.T, want []problem, got field.ErrorList) {
	t.Helper()
	var found []problem
	for _, err := range got {
		found = append(found, problem{Type: err.Type, Field: err.Field})
	}
	if diff := cmp.Diff(want, found, cmpopts.IgnoreUnexported(problem{})); diff != "" {
		t.Fatalf("problems (-want +got):\n%s\n%v", diff, got)
	}
	for i := range want {
		if !strings.Contains(got[i].Error(), want[i].message) {
			t.Errorf("%q does not say %q", got[i].Error(), want[i].message)
		}
	}
}

const (
	wrong        = field.ErrorTypeInvalid
	required     = field.ErrorTypeRequired
	duplicate    = field.ErrorTypeDuplicate
	forbidden    = field.ErrorTypeForbidden
	notSupported = field.ErrorTypeNotSupported
)

func TestValidateConfigRefuses(t *testing.T) {
	const (
		noRoom = "together leave no room"
		semver = "must be a semantic version"
		repo   = "must be a URL that starts with https://, http:// or oci://"
	)
	s62 := strings.Repeat("p", 62)
	tests := []struct {
		name, spec string
		want       []problem
	}{
		{"selector: In without values", `cluster: {selector: {matchExpressions: [{key: a, operator: In}]}}`, []problem{{required, "spec.cluster.selector.matchExpressions[0].values", "must be specified when `operator` is 'In' or 'NotIn'"}}},
		{"selector: NotIn with no values", `cluster: {selector: {matchExpressions: [{key: a, operator: NotIn, values: []}]}}`, []problem{{required, "spec.cluster.selector.matchExpressions[0].values", "must be specified"}}},
		{"selector: Exists with values", `cluster: {selector: {matchExpressions: [{key: a, operator: Exists, values: [x]}]}}`, []problem{{forbidden, "spec.cluster.selector.matchExpressions[0].values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"}}},
		{"selector: DoesNotExist with values", `cluster: {selector: {matchExpressions: [{key: a, operator: DoesNotExist, values: [x]}]}}`, []problem{{forbidden, "spec.cluster.selector.matchExpressions[0].values", "may not be specified"}}},
		{"selector: unknown operator", `cluster: {selector: {matchExpressions: [{key: a, operator: Is, values: [x]}]}}`, []problem{{wrong, "spec.cluster.selector.matchExpressions[0].operator", "not a valid selector operator"}}},
		{"selector: operator in lower case", `cluster: {selector: {matchExpressions: [{key: a, operator: exists}]}}`, []problem{{wrong, "spec.cluster.selector.matchExpressions[0].operator", "not a valid selector operator"}}},
		{"selector: no operator", `cluster: {selector: {matchExpressions: [{key: a}]}}`, []problem{{wrong, "spec.cluster.selector.matchExpressions[0].operator", "not a valid selector operator"}}},
		{"selector: no key", `cluster: {selector: {matchExpressions: [{operator: Exists}]}}`, []problem{{wrong, "spec.cluster.selector.matchExpressions[0].key", "name part must be non-empty"}, {wrong, "spec.cluster.selector.matchExpressions[0].key", ""}}},
		{"selector: key with a space", `cluster: {selector: {matchExpressions: [{key: a b, operator: Exists}]}}`, []problem{{wrong, "spec.cluster.selector.matchExpressions[0].key", "name part must consist of"}}},
		{"selector: value is no label value", `cluster: {selector: {matchExpressions: [{key: a, operator: In, values: ["x y"]}]}}`, []problem{{wrong, "spec.cluster.selector.matchExpressions[0].values[0]", "a valid label must be"}}},
		{"selector: the second expression", `cluster: {selector: {matchExpressions: [{key: a, operator: Exists}, {key: b, operator: In}]}}`, []problem{{required, "spec.cluster.selector.matchExpressions[1].values", "must be specified"}}},
		{"selector: matchLabels key", `cluster: {selector: {matchLabels: {"a b": x}}}`, []problem{{wrong, "spec.cluster.selector.matchLabels", "name part must consist of"}}},
		{"selector: matchLabels value", `cluster: {selector: {matchLabels: {a: "x/y"}}}`, []problem{{wrong, "spec.cluster.selector.matchLabels", "a valid label must be"}}},
		{"selector: matchLabels value too long", `cluster: {selector: {matchLabels: {a: ` + s62 + `xx}}}`, []problem{{wrong, "spec.cluster.selector.matchLabels", "must be no more than 63"}}},
		{"namespaceSelector: In without values", `cluster: {namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}`, []problem{{required, "spec.cluster.namespaceSelector.matchExpressions[0].values", "must be specified"}}},
		{"namespaceSelector: unknown operator", `cluster: {namespaceSelector: {matchExpressions: [{key: a, operator: Gt, values: ["1"]}]}}`, []problem{{wrong, "spec.cluster.namespaceSelector.matchExpressions[0].operator", "not a valid selector operator"}}},

		{"naming: no room between", `cluster: {naming: {prefix: ` + s62 + `, suffix: s}}`, []problem{{wrong, "spec.cluster.naming", noRoom}}},

		{"toleration: key", `cluster: {agentTolerations: [{key: "a b", operator: Exists}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].key", "name part must consist of"}}},
		{"toleration: no key, Equal", `cluster: {agentTolerations: [{operator: Equal, value: x}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].operator", "must be Exists when key is empty"}}},
		{"toleration: nothing", `cluster: {agentTolerations: [{}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].operator", "must be Exists when key is empty"}}},
		{"toleration: Exists with a value", `cluster: {agentTolerations: [{key: a, operator: Exists, value: x}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].value", "must be empty when operator is Exists"}}},
		{"toleration: value is no label value", `cluster: {agentTolerations: [{key: a, operator: Equal, value: "x y"}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].value", "a valid label must be"}}},
		{"toleration: unknown operator", `cluster: {agentTolerations: [{key: a, operator: In, value: x}]}`, []problem{{notSupported, "spec.cluster.agentTolerations[0].operator", `supported values: "Equal", "Exists"`}}},
		{"toleration: Lt without a value", `cluster: {agentTolerations: [{key: a, operator: Lt}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].value", "must be non-empty"}}},
		{"toleration: Gt of a word", `cluster: {agentTolerations: [{key: a, operator: Gt, value: many}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].value", "must be a valid decimal integer"}}},
		{"toleration: Gt of a fraction", `cluster: {agentTolerations: [{key: a, operator: Gt, value: "1.5"}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].value", "must be a valid decimal integer"}}},
		{"toleration: Gt with a zero in front", `cluster: {agentTolerations: [{key: a, operator: Gt, value: "007"}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].value", "must be a valid decimal integer"}}},
		{"toleration: Lt of too much", `cluster: {agentTolerations: [{key: a, operator: Lt, value: "9223372036854775808"}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].value", "must be a signed 64-bit integer"}}},
		{"toleration: Lt without a key", `cluster: {agentTolerations: [{operator: Lt, value: "5"}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].operator", "must be Exists when key is empty"}}},
		{"toleration: no key, unknown operator", `cluster: {agentTolerations: [{operator: In}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].operator", "must be Exists when key is empty"}, {notSupported, "spec.cluster.agentTolerations[0].operator", ""}}},
		{"toleration: unknown effect", `cluster: {agentTolerations: [{key: a, operator: Exists, effect: NoRun}]}`, []problem{{notSupported, "spec.cluster.agentTolerations[0].effect", `supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`}}},
		{"toleration: seconds without NoExecute", `cluster: {agentTolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].effect", "must be NoExecute when tolerationSeconds is set"}}},
		{"toleration: seconds without effect", `cluster: {agentTolerations: [{key: a, operator: Exists, tolerationSeconds: 5}]}`, []problem{{wrong, "spec.cluster.agentTolerations[0].effect", "must be NoExecute"}}},
		{"toleration: the third", `cluster: {agentTolerations: [{operator: Exists}, {key: a}, {key: a, effect: X}]}`, []problem{{notSupported, "spec.cluster.agentTolerations[2].effect", "supported values"}}},

		{"env: no name", `cluster: {agentEnvVars: [{value: x}]}`, []problem{{required, "spec.cluster.agentEnvVars[0].name", "name the environment variable"}}},
		{"env: name with =", `cluster: {agentEnvVars: [{name: "A=B", value: x}]}`, []problem{{wrong, "spec.cluster.agentEnvVars[0].name", "a valid environment variable name"}}},
		{"env: duplicate", `cluster: {agentEnvVars: [{name: A, value: x}, {name: A, value: y}]}`, []problem{{duplicate, "spec.cluster.agentEnvVars[1].name", `Duplicate value: "A"`}}},
		{"env: value and valueFrom", `cluster: {agentEnvVars: [{name: A, value: x, valueFrom: {secretKeyRef: {name: s, key: k}}}]}`, []problem{{wrong, "spec.cluster.agentEnvVars[0].valueFrom", "may not be set together with value"}}},
		{"env: valueFrom nothing", `cluster: {agentEnvVars: [{name: A, valueFrom: {}}]}`, []problem{{wrong, "spec.cluster.agentEnvVars[0].valueFrom", "must name exactly one source"}}},
		{"env: valueFrom twice", `cluster: {agentEnvVars: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}, fieldRef: {fieldPath: spec.nodeName}}}]}`, []problem{{wrong, "spec.cluster.agentEnvVars[0].valueFrom", "must name exactly one source"}}},

		{"CA: name", `config: {server: {custom: {apiServerCaConfigRef: {kind: Secret, namespace: b}}}}`, []problem{{required, "spec.config.server.custom.apiServerCaConfigRef.name", "key ca.crt holds the CA"}}},
		{"CA: namespace", `config: {server: {custom: {apiServerCaConfigRef: {name: a}}}}`, []problem{{required, "spec.config.server.custom.apiServerCaConfigRef.namespace", "key ca.crt holds the CA"}}},
		{"CA: in the shorthand", `config: {server: {apiServerCaConfigRef: {}}}`, []problem{{required, "spec.config.server.apiServerCaConfigRef.name", ""}, {required, "spec.config.server.apiServerCaConfigRef.namespace", ""}}},

		{"gates: no ref", `config: {featureGates: {configMap: {}}}`, []problem{{required, "spec.config.featureGates.configMap.ref", "name and namespace of the ConfigMap"}}},
		{"gates: no namespace", `config: {featureGates: {configMap: {ref: {name: a}}}}`, []problem{{required, "spec.config.featureGates.configMap.ref", "name and namespace"}}},
		{"gates: no name", `config: {featureGates: {configMap: {ref: {namespace: a}}}}`, []problem{{required, "spec.config.featureGates.configMap.ref", "name and namespace"}}},
		{"gates: with install", `{config: {featureGates: {configMap: {ref: {name: a, namespace: b}}}}, install: {followLatest: true}}`, []problem{{forbidden, "spec.config.featureGates.configMap.ref", "remove configMap, or, if Rancher manages Fleet, install"}}},

		{"version: a word", `install: {version: latest}`, []problem{{wrong, "spec.install.version", semver}}},
		{"version: four parts", `install: {version: "0.16.0.1"}`, []problem{{wrong, "spec.install.version", semver}}},
		{"version: a range with a word", `install: {version: ">=latest"}`, []problem{{wrong, "spec.install.version", "or a range, for example 0.16.x"}}},
		{"version: half a range", `install: {version: ">="}`, []problem{{wrong, "spec.install.version", semver}}},
		{"version: a blank", `install: {version: " "}`, []problem{{wrong, "spec.install.version", semver}}},
		{"version: too big", `install: {version: "99999999999999999999.0.0"}`, []problem{{wrong, "spec.install.version", semver}}},
		{"version: a range too old", `install: {version: 0.11.x}`, []problem{{wrong, "spec.install.version", "the oldest supported Fleet is 0.12.0"}}},
		{"version: a range below the oldest", `install: {version: ">=0.10.0, <0.12.0"}`, []problem{{wrong, "spec.install.version", "the oldest supported Fleet is 0.12.0"}}},
		{"version: all ranges too old", `install: {version: "~0.10 || 0.11"}`, []problem{{wrong, "spec.install.version", "the oldest supported Fleet is 0.12.0"}}},
		{"version: an empty range", `install: {version: ">0.16.0 <0.15.0"}`, []problem{{wrong, "spec.install.version", "this range contains no version"}}},
		{"version: empty", `install: {version: ""}`, []problem{{wrong, "spec.install.version", semver}}},
		{"version: too old", `install: {version: 0.11.9}`, []problem{{wrong, "spec.install.version", "the oldest supported Fleet is 0.12.0"}}},
		{"version: too old, a release candidate", `install: {version: v0.11.0-rc.1}`, []problem{{wrong, "spec.install.version", "the oldest supported Fleet is 0.12.0"}}},
		{"repository: no scheme", `install: {followLatest: true, repository: rancher.github.io/fleet-helm-charts}`, []problem{{wrong, "spec.install.repository", repo}}},
		{"repository: a file", `install: {followLatest: true, repository: "file:///charts"}`, []problem{{wrong, "spec.install.repository", repo}}},
		{"repository: no host", `install: {followLatest: true, repository: "oci://"}`, []problem{{wrong, "spec.install.repository", repo}}},

		{"all at once", `{cluster: {agentEnvVars: [{name: ""}]}, config: {server: {custom: {apiServerCaConfigRef: {name: a}}}}, install: {version: 0.11.0}}`, []problem{
			{required, "spec.cluster.agentEnvVars[0].name", ""},
			{required, "spec.config.server.custom.apiServerCaConfigRef.namespace", ""},
			{wrong, "spec.install.version", ""},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkProblems(t, test.want, validateConfig(configOf(t, test.spec)))
		})
	}
}

// The webhook leaves these to the CRD, which refuses them also while no webhook runs.
func TestCRDRefuses(t *testing.T) {
	s62 := strings.Repeat("p", 62)
	for _, test := range []struct{ name, spec, field string }{
		{"prefix: upper case", `cluster: {naming: {prefix: Capi-}}`, "spec.cluster.naming.prefix"},
		{"prefix: dot", `cluster: {naming: {prefix: capi.}}`, "spec.cluster.naming.prefix"},
		{"prefix: dash first", `cluster: {naming: {prefix: -capi}}`, "spec.cluster.naming.prefix"},
		{"prefix: underscore", `cluster: {naming: {prefix: capi_}}`, "spec.cluster.naming.prefix"},
		{"prefix: too long", `cluster: {naming: {prefix: ` + s62 + `p}}`, "spec.cluster.naming.prefix"},
		{"suffix: upper case", `cluster: {naming: {suffix: -Fleet}}`, "spec.cluster.naming.suffix"},
		{"suffix: dot", `cluster: {naming: {suffix: .fleet}}`, "spec.cluster.naming.suffix"},
		{"suffix: dash last", `cluster: {naming: {suffix: fleet-}}`, "spec.cluster.naming.suffix"},
		{"naming: both", `cluster: {naming: {prefix: A, suffix: B}}`, "spec.cluster.naming.prefix"},
		{"agentNamespace: upper case", `cluster: {agentNamespace: Fleet}`, "spec.cluster.agentNamespace"},
		{"agentNamespace: dot", `cluster: {agentNamespace: fleet.system}`, "spec.cluster.agentNamespace"},
		{"agentNamespace: dash last", `cluster: {agentNamespace: fleet-}`, "spec.cluster.agentNamespace"},
		{"agentNamespace: too long", `cluster: {agentNamespace: ` + s62 + `pp}`, "spec.cluster.agentNamespace"},
		{"onDeselect", `cluster: {onDeselect: Orphan}`, "spec.cluster.onDeselect"},
		{"exclude: no slash", `cluster: {templateValues: {exclude: [ControlPlane/spec]}}`, "spec.cluster.templateValues.exclude[0]"},
		{"exclude: empty", `cluster: {templateValues: {exclude: [""]}}`, "spec.cluster.templateValues.exclude[0]"},
		{"exclude: dots", `cluster: {templateValues: {exclude: [/Cluster, .spec.users]}}`, "spec.cluster.templateValues.exclude[1]"},
		{"exclude: bad escape", `cluster: {templateValues: {exclude: [/Cluster/a~2b]}}`, "spec.cluster.templateValues.exclude[0]"},
		{"exclude: tilde at the end", `cluster: {templateValues: {exclude: [/Cluster/a~]}}`, "spec.cluster.templateValues.exclude[0]"},
		{"exclude: tilde before an escape", `cluster: {templateValues: {exclude: [/Cluster/~~01]}}`, "spec.cluster.templateValues.exclude[0]"},
		{"policy", `policy: {crossNamespaceClass: Deny}`, "spec.policy.crossNamespaceClass"},
		{"policy: verb", `policy: {crossNamespaceClassVerb: list}`, "spec.policy.crossNamespaceClassVerb"},
		{"server: neither", `config: {server: {}}`, "spec.config.server"},
		{"server: both", `config: {server: {inferLocal: true, custom: {apiServerUrl: "https://a"}}}`, "spec.config.server"},
		{"server: inferLocal false and custom", `config: {server: {inferLocal: false, custom: {apiServerUrl: "https://a"}}}`, "spec.config.server"},
		{"server: inferLocal and shorthand", `config: {server: {inferLocal: true, apiServerUrl: "https://a"}}`, "spec.config.server"},
		{"server: custom and shorthand", `config: {server: {custom: {apiServerUrl: "https://a"}, apiServerUrl: "https://b"}}`, "spec.config.server"},
		{"url: http", `config: {server: {custom: {apiServerUrl: "http://a"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: no scheme", `config: {server: {custom: {apiServerUrl: rancher.example.com}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: scheme in upper case", `config: {server: {custom: {apiServerUrl: "HTTPS://a"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: empty", `config: {server: {custom: {apiServerUrl: ""}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: no host", `config: {server: {custom: {apiServerUrl: "https://:6443"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: user", `config: {server: {custom: {apiServerUrl: "https://u:p@a"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: query", `config: {server: {custom: {apiServerUrl: "https://a/?b=c"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: empty query", `config: {server: {custom: {apiServerUrl: "https://a?"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: fragment", `config: {server: {custom: {apiServerUrl: "https://a#b"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: does not parse", `config: {server: {custom: {apiServerUrl: "https://[::1"}}}`, "spec.config.server.custom.apiServerUrl"},
		{"url: in the shorthand", `config: {server: {apiServerUrl: "http://a"}}`, "spec.config.server.apiServerUrl"},
		{"CA: kind", `config: {server: {custom: {apiServerCaConfigRef: {kind: Service, name: a, namespace: b}}}}`, "spec.config.server.custom.apiServerCaConfigRef.kind"},
		{"install: neither", `install: {}`, "spec.install"},
		{"install: both", `install: {followLatest: true, version: 0.16.0}`, "spec.install"},
		{"install: repository only", `install: {repository: "https://a"}`, "spec.install"},
		{"credentials: no name", `install: {version: 0.16.0, repositorySecretRef: {name: ""}}`, "spec.install.repositorySecretRef.name"},
		{"mode", `install: {version: 0.16.0, mode: Maybe}`, "spec.install.mode"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := configOf(t, test.spec)
			if errs := validateConfig(config); len(errs) > 0 && test.name != "prefix: too long" {
				t.Errorf("the webhook refuses it, too: %v", errs)
			}
			var raw map[string]any
			if err := yaml.Unmarshal([]byte("spec: {"+test.spec+"}"), &raw); err != nil {
				t.Fatal(err)
			}
			raw["metadata"] = map[string]any{"name": addonsv1.FleetAddonConfigName}
			errs, err := crd.Validate(t.Context(), addonsv1.GroupVersion.WithKind("FleetAddonConfig"), marshal(t, raw))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(errs, func(err *field.Error) bool { return err.Field == test.field }) {
				t.Errorf("not refused at %s: %v", test.field, errs)
			}
		})
	}
}

func TestValidateConfigAccepts(t *testing.T) {
	s61 := strings.Repeat("p", 61)
	for name, spec := range map[string]string{
		"nothing":                     `{}`,
		"sections null":               `{cluster: null, clusterClass: null, policy: null, config: null, install: null}`,
		"sections empty":              `{cluster: {}, clusterClass: {}, policy: {}, config: {}}`,
		"fields null":                 `{cluster: {selector: null, namespaceSelector: null, naming: null, agentNamespace: null, agentTolerations: null, agentEnvVars: null}, config: {server: null, featureGates: null}}`,
		"selector":                    `cluster: {selector: {matchLabels: {import: "true"}}}`,
		"selector {}":                 `cluster: {selector: {}, namespaceSelector: {}}`,
		"namespaceSelector":           `cluster: {namespaceSelector: {matchLabels: {import: ""}}}`,
		"all operators":               `cluster: {selector: {matchExpressions: [{key: a, operator: In, values: [x]}, {key: b/c, operator: NotIn, values: [x, ""]}, {key: d, operator: Exists}, {key: e, operator: DoesNotExist, values: []}]}}`,
		"prefix":                      `cluster: {naming: {prefix: capi-}}`,
		"a digit as prefix":           `cluster: {naming: {prefix: "1"}}`,
		"suffix":                      `cluster: {naming: {suffix: -fleet}}`,
		"naming with room for one":    `cluster: {naming: {prefix: ` + s61 + `, suffix: s}}`,
		"agentNamespace":              `cluster: {agentNamespace: cattle-fleet-system}`,
		"agentNamespace of 63":        `cluster: {agentNamespace: ` + s61 + `pp}`,
		"no tolerations":              `cluster: {agentTolerations: []}`,
		"tolerations of the guide":    `cluster: {agentTolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 600}]}`,
		"tolerate all":                `cluster: {agentTolerations: [{operator: Exists}]}`,
		"tolerate, shortest":          `cluster: {agentTolerations: [{key: a}, {key: a, value: x, effect: PreferNoSchedule}, {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: -1}]}`,
		"tolerate numbers":            `cluster: {agentTolerations: [{key: a, operator: Gt, value: "950"}, {key: a, operator: Lt, value: "-5", effect: NoExecute, tolerationSeconds: 3}, {key: a, operator: Gt, value: "0"}]}`,
		"env":                         `cluster: {agentEnvVars: [{name: HTTP_PROXY, value: "http://proxy.example.com:8080"}, {name: EMPTY}, {name: S, valueFrom: {secretKeyRef: {name: s, key: k}}}]}`,
		"onDeselect":                  `cluster: {onDeselect: Delete}`,
		"exclude":                     `cluster: {templateValues: {exclude: [/Cluster, /ControlPlane/spec/a~1b~0c, /Variables/*/x, /]}}`,
		"exclude nothing":             `cluster: {templateValues: {exclude: []}}`,
		"clusterClass":                `clusterClass: {patchResource: false, setOwnerReferences: false, enabled: false}`,
		"policy":                      `policy: {crossNamespaceClass: "Off"}`,
		"policy: verb":                `policy: {crossNamespaceClassVerb: use}`,
		"inferLocal":                  `config: {server: {inferLocal: true}}`,
		"inferLocal false":            `config: {server: {inferLocal: false}}`,
		"custom":                      `config: {server: {custom: {apiServerUrl: "https://public-url.io", apiServerCaConfigRef: {apiVersion: v1, kind: ConfigMap, name: kube-root-ca.crt, namespace: default}}}}`,
		"custom, nothing in it":       `config: {server: {custom: {}}}`,
		"custom, CA only":             `config: {server: {custom: {apiServerCaConfigRef: {kind: Secret, name: a, namespace: b}}}}`,
		"custom, IPv6, port and path": `config: {server: {custom: {apiServerUrl: "https://[fd00::1]:6443/k8s/clusters/local"}}}`,
		"the guide's shorthand":       `config: {server: {apiServerUrl: "https://public-url.io", apiServerCaConfigRef: {name: a, namespace: b}}}`,
		"gates":                       `config: {featureGates: {experimentalOciStorage: false, experimentalHelmOps: true}}`,
		"gates in a ConfigMap":        `config: {featureGates: {configMap: {ref: {apiVersion: v1, kind: ConfigMap, name: rancher-config, namespace: cattle-system}}}}`,
		"bootstrapLocalCluster":       `config: {bootstrapLocalCluster: true}`,
		"followLatest":                `install: {followLatest: true}`,
		"followLatest false":          `install: {followLatest: false}`,
		"the oldest version":          `install: {version: 0.12.0}`,
		"the readme's version":        `install: {version: v0.12.0-alpha.6}`,
		"a release candidate":         `install: {version: v0.14.2-rc.2}`,
		"build metadata":              `install: {version: 0.16.0+up1}`,
		"a range: x":                  `install: {version: 0.16.x}`,
		"a range: two parts":          `install: {version: "0.16"}`,
		"a range: everything":         `install: {version: "*"}`,
		"a range: tilde":              `install: {version: "~0.16.1"}`,
		"a range: caret":              `install: {version: "^0.16"}`,
		"a range: above":              `install: {version: ">0.11"}`,
		"a range: above one":          `install: {version: ">0.16.0"}`,
		"a range: below":              `install: {version: "<0.16.0"}`,
		"a range: both":               `install: {version: ">=0.14.0, <0.17.0"}`,
		"a range: without a comma":    `install: {version: ">= 0.14.0 <0.17"}`,
		"a range: hyphen":             `install: {version: "0.14 - 0.16"}`,
		"a range: or":                 `install: {version: "0.11.x || v0.16.2"}`,
		"a range: but not one":        `install: {version: "0.16.x, !=0.16.0"}`,
		"a range: pre-releases":       `install: {version: ">=0.16.0-0"}`,
		"repository":                  `install: {followLatest: true, repository: "https://rancher.github.io/fleet-helm-charts/"}`,
		"oci repository":              `install: {version: 0.16.0, repository: "oci://registry.example.com:5000/charts"}`,
		"credentials":                 `install: {version: 0.16.0, repositorySecretRef: {name: charts}}`,
		"credentials elsewhere":       `install: {version: 0.16.0, repositorySecretRef: {name: charts, namespace: team}}`,
		"plan":                        `install: {version: 0.16.0, mode: Plan}`,
	} {
		t.Run(name, func(t *testing.T) {
			if errs := validateConfig(configOf(t, spec)); len(errs) > 0 {
				t.Errorf("refused: %v", errs)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	election := func(lease, deadline, retry string) string {
		return fmt.Sprintf(`cluster: {agentEnvVars: [{name: CATTLE_ELECTION_RETRY_PERIOD, value: %q}, {name: CATTLE_ELECTION_LEASE_DURATION, value: %q}, {name: CATTLE_ELECTION_RENEW_DEADLINE, value: %q}]}`, retry, lease, deadline)
	}
	const (
		contradicts = "spec.cluster.agentEnvVars: Fleet's agents end at start unless CATTLE_ELECTION_LEASE_DURATION is longer than CATTLE_ELECTION_RENEW_DEADLINE, and that longer than 1.2 times CATTLE_ELECTION_RETRY_PERIOD"
		everyRight  = "spec.config.bootstrapLocalCluster gives Fleet all rights on this cluster"
		noInstall   = "spec.config.bootstrapLocalCluster has no effect without spec.install"
		knownDefect = "spec.install.version: Fleet 0.16.1 has a known defect: an agent that has lost its connection can uninstall everything that it manages; fixed in 0.16.2 (https://github.com/rancher/fleet/issues/5406); a range or followLatest avoids such versions"
		latestFalse = "spec.install.followLatest: false installs nothing; remove install, or set version"
	)
	for name, test := range map[string]struct {
		spec string
		want []string
	}{
		"nothing":                   {spec: `{}`},
		"cluster only":              {spec: `cluster: {selector: {}}`},
		"empty config":              {spec: `config: {}`},
		"followLatest false":        {spec: `install: {followLatest: false}`, want: []string{latestFalse}},
		"bootstrap without install": {spec: `config: {bootstrapLocalCluster: true}`, want: []string{noInstall}},
		"bootstrap with install":    {spec: `{config: {bootstrapLocalCluster: true}, install: {version: 0.16.2}}`, want: []string{everyRight}},
		"known defect":              {spec: `install: {version: v0.16.1}`, want: []string{knownDefect}},
		"known defect in a range":   {spec: `install: {version: 0.16.x}`},
		"bootstrap explicitly off":  {spec: `config: {bootstrapLocalCluster: false}`},
		"server":                    {spec: `config: {server: {inferLocal: true}}`},
		"tolerations":               {spec: `cluster: {agentTolerations: [{operator: Exists}, {key: a, operator: Gt, value: "950"}]}`, want: []string{"spec.cluster.agentTolerations[1].operator: Gt is known only to Kubernetes 1.35 and later with the feature gate TaintTolerationComparisonOperators; other clusters refuse a Fleet agent that has it"}},
		"repository over http":      {spec: `install: {followLatest: true, repository: "http://charts.example.com"}`, want: []string{"spec.install.repository: http is neither encrypted nor authenticated, and its charts run with Fleet's rights; use https or oci"}},
		"repository over https":     {spec: `install: {followLatest: true, repository: "https://charts.example.com"}`},
		"agentInitiatedSelector without agentInitiated": {spec: `cluster: {agentInitiatedSelector: {}}`, want: []string{"spec.cluster.agentInitiatedSelector has no effect without spec.cluster.agentInitiated: true"}},
		"agentInitiatedSelector with agentInitiated":    {spec: `cluster: {agentInitiated: true, agentInitiatedSelector: {}}`},
		"gates":                        {spec: `config: {featureGates: {}}`},
		"other variables":              {spec: `cluster: {agentEnvVars: [{name: A, value: b}]}`},
		"an election that works":       {spec: election("15s", "10s", "2s")},
		"an election with Fleet's own": {spec: election("30s", "25s", "10s")},
		"a lease that ends too early":  {spec: election("10s", "10s", "2s"), want: []string{contradicts}},
		"a deadline without a retry":   {spec: election("15s", "12s", "10s"), want: []string{contradicts}},
		"no retries":                   {spec: election("15s", "10s", "0s"), want: []string{contradicts}},
		"no duration":                  {spec: election("15", "10s", "2s"), want: []string{`spec.cluster.agentEnvVars: CATTLE_ELECTION_LEASE_DURATION must be a duration such as 30s; with "15", Fleet's agents end at start`}},
		"only a lease":                 {spec: `cluster: {agentEnvVars: [{name: CATTLE_ELECTION_LEASE_DURATION, value: 15s}]}`, want: []string{"spec.cluster.agentEnvVars: set all of CATTLE_ELECTION_LEASE_DURATION, CATTLE_ELECTION_RENEW_DEADLINE, CATTLE_ELECTION_RETRY_PERIOD, or none: with others than Fleet's own, its agents may end at start"}},
		"one from elsewhere": {spec: `cluster: {agentEnvVars: [{name: CATTLE_ELECTION_LEASE_DURATION, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['lease']"}}},
  {name: CATTLE_ELECTION_RENEW_DEADLINE, value: 10s}, {name: CATTLE_ELECTION_RETRY_PERIOD, value: 2s}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, warnings(configOf(t, test.spec))); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// validateConfig must not panic on any FleetAddonConfig, and the selectors of a FleetAddonConfig that it accepts
// can be parsed.
func FuzzValidateConfig(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"metadata":{"name":"mine"}}`,
		`{"spec":{"cluster":{"selector":{"matchExpressions":[{"key":"a","operator":"In"}]},"namespaceSelector":{"matchLabels":{"a":"b"}},"naming":{"prefix":"A.","suffix":"-"}}}}`,
		`{"spec":{"cluster":{"agentNamespace":"","agentTolerations":[{"key":"a","operator":"Exists","effect":"NoExecute","tolerationSeconds":-1},{}],"agentEnvVars":[{"name":"A","valueFrom":{}},{"name":"A","value":"b"}]}}}`,
		`{"spec":{"cluster":{"onDeselect":"Delete","templateValues":{"exclude":["/a/~0~1/*","","~"]}},"policy":{"crossNamespaceClass":"Off"}}}`,
		`{"spec":{"config":{"server":{"inferLocal":true,"custom":{"apiServerUrl":"https://u@[::1]:6443/?a#b","apiServerCaConfigRef":{}}},"featureGates":{"configMap":{"ref":{"name":"a"}}},"bootstrapLocalCluster":true}}}`,
		`{"spec":{"config":{"server":{"apiServerUrl":"%zz"},"featureGates":{"configMap":null}},"install":{"version":"v0.12.0-alpha.6+x","repository":"oci://a"}}}`,
		`{"spec":{"install":{"followLatest":false,"version":"99999999999999999999.0.0"}}}`,
		`{"spec":{"install":{"version":">=0.14.0-0, <0.17 || ~0.1.x - *"},"cluster":{"agentTolerations":[{"key":"a","operator":"Lt","value":"-"}]}}}`,
		`{"spec":{"cluster":null,"clusterClass":null,"policy":null,"config":null,"install":null}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		checkConfig(t, raw)
	})
}
