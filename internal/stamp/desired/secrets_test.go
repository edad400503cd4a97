package desired

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/settings"
)

const (
	controlPlaneGroup   = "controlplane.cluster.x-k8s.io"
	infrastructureGroup = "infrastructure.cluster.x-k8s.io"
	marker              = "hunter2"
)

// confidant is a kind of control plane. Its manifest has the marker in every field that, by the kind's
// documentation, may hold a secret, and words that bundles may well want.
type confidant struct {
	group, kind  string
	controlPlane string
	retained     string
	// open means that the kind names Secrets, but holds no secret itself.
	open bool
}

var confidants = []confidant{
	// https://cluster-api.sigs.k8s.io/tasks/bootstrap/kubeadm-bootstrap/
	{group: controlPlaneGroup, kind: "KubeadmControlPlane", controlPlane: `
spec:
  version: v1.36.3
  kubeadmConfigSpec:
    files: [{path: /etc/x, content: hunter2}, {path: /etc/y, contentFrom: {secret: {name: hunter2, key: k}}}]
    users: [{name: root, passwd: hunter2, sshAuthorizedKeys: [hunter2]}]
    bootCommands: [echo hunter2]
    preKubeadmCommands: [echo hunter2]
    postKubeadmCommands: [echo hunter2]
    ignition: {containerLinuxConfig: {additionalConfig: "passwd: hunter2"}}
    initConfiguration: {bootstrapTokens: [{token: hunter2}], nodeRegistration: {name: kept-init}}
    joinConfiguration:
      nodeRegistration: {name: kept-join}
      discovery:
        bootstrapToken: {token: hunter2, apiServerEndpoint: a}
        tlsBootstrapToken: hunter2
        file: {kubeConfigPath: /etc/kept, kubeConfig: {cluster: {server: https://kept}, user: {exec: {command: c, env: [{name: TOKEN, value: hunter2}]}, authProvider: {name: n, config: {token: hunter2}}}}}
    clusterConfiguration:
      apiServer: {extraArgs: [{name: profiling, value: "false"}], extraEnvs: [{name: HTTPS_PROXY, value: "http://u:hunter2@p"}]}
      controllerManager: {extraEnvs: [{name: A, value: hunter2}]}
      scheduler: {extraEnvs: [{name: A, value: hunter2}]}
      etcd: {local: {dataDir: /kept-etcd, extraEnvs: [{name: A, value: hunter2}]}}
`, retained: "profiling v1.36.3 kept-init kept-join /etc/kept https://kept /kept-etcd"},

	// https://caprke2.docs.rancher.com/
	{group: controlPlaneGroup, kind: "RKE2ControlPlane", controlPlane: `
spec:
  version: v1.36.3+rke2r1
  files: [{path: /etc/x, content: hunter2}]
  preRKE2Commands: [echo hunter2]
  postRKE2Commands: [echo hunter2]
  privateRegistriesConfig: {configs: {registry.example: {authSecret: {name: kept-registry}}}}
  agentConfig:
    format: ignition
    additionalUserData: {config: hunter2, data: {users: hunter2}}
    kubelet: {extraArgs: [kept-kubelet], extraEnv: {A: hunter2}}
  serverConfig:
    cni: calico
    kubeAPIServer: {extraEnv: {A: hunter2}}
    cloudControllerManager: {extraEnv: {A: hunter2}}
    etcd: {customConfig: {extraArgs: [kept-etcd], extraEnv: {A: hunter2}}}
`, retained: "v1.36.3+rke2r1 ignition calico kept-registry kept-kubelet kept-etcd"},

	// https://github.com/k3s-io/cluster-api-k3s#readme
	{group: controlPlaneGroup, kind: "KThreesControlPlane", controlPlane: `
spec:
  version: v1.36.3+k3s1
  kthreesConfigSpec:
    files: [{path: /etc/x, content: hunter2}]
    preK3sCommands: [echo hunter2]
    postK3sCommands: [echo hunter2]
    serverConfig: {clusterDomain: cluster.local}
`, retained: "v1.36.3+k3s1 cluster.local"},

	// https://github.com/siderolabs/cluster-api-bootstrap-provider-talos#readme: data is a whole
	// machine configuration, with the cluster's tokens and keys.
	{group: controlPlaneGroup, kind: "TalosControlPlane", controlPlane: `
spec:
  version: v1.36.3
  controlPlaneConfig:
    init: {generateType: init, data: "token: hunter2", configPatches: [{op: add, path: /machine/token, value: hunter2}]}
    controlplane:
      generateType: controlplane
      talosVersion: v1.11
      hostname: {source: MachineName}
      data: "token: hunter2"
      configPatches: [{op: add, path: /machine/registries, value: {config: {r: {auth: {password: hunter2}}}}}]
      strategicPatches: ["machine: {token: hunter2}"]
`, retained: "v1.36.3 v1.11 MachineName controlplane"},

	// https://docs.k0smotron.io/stable/capi-controlplane-bootstrap/ and, for the configuration of k0s
	// itself, https://docs.k0sproject.io/stable/configuration/
	{group: controlPlaneGroup, kind: "K0sControlPlane", controlPlane: `
spec:
  version: v1.36.3+k0s.0
  k0sConfigSpec:
    args: [--enable-worker]
    files: [{path: /etc/x, content: hunter2}, {path: /etc/y, contentFrom: {secretRef: {name: hunter2, key: k}}}]
    preStartCommands: [echo hunter2]
    postStartCommands: [echo hunter2]
    preK0sCommands: [echo hunter2]
    postK0sCommands: [echo hunter2]
    ignition: {variant: flatcar, additionalConfig: "passwd: hunter2"}
    provisioner: {type: ignition, customUserDataRef: {secretRef: {name: kept-user-data}}, ignition: {additionalConfig: hunter2}}
    downloadURL: https://u:hunter2@mirror/k0s
    k0s:
      kind: ClusterConfig
      spec:
        network: {podCIDR: 10.7.0.0/16}
        storage: {type: kine, kine: {dataSource: "mysql://u:hunter2@db"}}
        extensions: {helm: {repositories: [{name: r, password: hunter2}], charts: [{name: c, values: "password: hunter2"}]}}
`, retained: "v1.36.3+k0s.0 --enable-worker 10.7.0.0/16 kept-user-data"},

	// https://github.com/canonical/cluster-api-bootstrap-provider-microk8s#readme
	{group: controlPlaneGroup, kind: "MicroK8sControlPlane", controlPlane: `
spec:
  version: v1.36.3
  upgradeStrategy: RollingUpgrade
  controlPlaneConfig:
    clusterConfiguration: {portCompatibilityRemap: true}
    initConfiguration:
      joinTokenTTLInSecs: 9000
      addons: [kept-dns]
      extraWriteFiles: [{path: /etc/x, content: hunter2, owner: root, permissions: "0600"}]
      bootCommands: [echo hunter2]
      preRunCommands: [echo hunter2]
      postRunCommands: [echo hunter2]
      httpProxy: http://u:hunter2@p
      httpsProxy: http://u:hunter2@p
      snapstoreHTTPProxy: http://u:hunter2@p
      snapstoreHTTPSProxy: http://u:hunter2@p
      noProxy: kept.local
    joinConfiguration: {connectionToken: hunter2, ipOfNodeToConnectTo: kept-ip}
`, retained: "v1.36.3 RollingUpgrade 9000 kept-dns kept.local kept-ip portCompatibilityRemap"},

	// https://kamaji.clastix.io/cluster-api/control-plane-provider/
	{group: controlPlaneGroup, kind: "KamajiControlPlane", controlPlane: `
spec:
  version: 1.36.3
  dataStoreName: kept-store
  apiServer: {extraArgs: [kept-arg]}
  kine: {extraArgs: ["--endpoint=mysql://u:hunter2@db"]}
  deployment:
    nodeSelector: {pool: kept-pool}
    extraContainers: [{name: c, env: [{name: A, value: hunter2}]}]
    extraInitContainers: [{name: c, env: [{name: A, value: hunter2}]}]
`, retained: "1.36.3 kept-store kept-arg kept-pool"},

	// https://cluster-api-aws.sigs.k8s.io/topics/eks/addons and …/topics/eks/pod-networking
	{group: controlPlaneGroup, kind: "AWSManagedControlPlane", controlPlane: `
spec:
  version: v1.36.3
  region: eu-kept-1
  addons: [{name: kept-addon, version: v1, configuration: '{"password":"hunter2"}'}]
  vpcCni: {disable: false, env: [{name: A, value: hunter2}]}
`, retained: "v1.36.3 eu-kept-1 kept-addon"},

	// https://cluster-api-aws.sigs.k8s.io/topics/rosa/
	{group: controlPlaneGroup, kind: "ROSAControlPlane", open: true, controlPlane: `
spec:
  version: 4.20.0
  credentialsSecretRef: {name: kept-credentials}
  externalAuthProviders: [{name: p, oidcClients: [{clientID: c, clientSecret: {name: kept-client}}]}]
`, retained: "4.20.0 kept-credentials kept-client"},

	// https://github.com/kubernetes-sigs/cluster-api-provider-nested#readme
	{group: controlPlaneGroup, kind: "NestedControlPlane", open: true, controlPlane: `
spec: {etcd: {name: kept-etcd}, apiserver: {name: kept-apiserver}, controllerManager: {name: kept-manager}}
`, retained: "kept-etcd kept-apiserver kept-manager"},

	// https://capz.sigs.k8s.io/managed/managedcluster
	{group: infrastructureGroup, kind: "AzureManagedControlPlane", controlPlane: `
spec:
  version: v1.36.3
  location: kept-location
  httpProxyConfig: {httpProxy: "http://u:hunter2@p", httpsProxy: "http://u:hunter2@p", trustedCa: hunter2}
  addonProfiles: [{name: kept-profile, enabled: true, config: {key: hunter2}}]
  extensions: [{name: kept-extension, configurationSettings: {key: hunter2}}]
  asoManagedClusterPatches: ['{"spec":{"x":"hunter2"}}']
`, retained: "v1.36.3 kept-location kept-profile kept-extension"},

	// https://capz.sigs.k8s.io/managed/asomanagedcluster
	{group: infrastructureGroup, kind: "AzureASOManagedControlPlane", controlPlane: `
spec:
  version: v1.36.3
  resources:
  - kind: ManagedCluster
    spec:
      location: kept-location
      httpProxyConfig: {httpProxy: "http://u:hunter2@p"}
      addonProfiles: {omsagent: {enabled: true, config: {key: hunter2}}}
  - kind: Extension
    spec: {extensionType: kept-type, configurationSettings: {key: hunter2}}
`, retained: "v1.36.3 kept-location omsagent kept-type"},

	// https://cluster-api-gcp.sigs.k8s.io/managed/
	{group: infrastructureGroup, kind: "GCPManagedControlPlane", open: true, controlPlane: `
spec: {version: v1.36.3, project: kept-project, location: kept-location, endpoint: {host: kept-host}}
`, retained: "v1.36.3 kept-project kept-location kept-host"},
}

// The secrets of a control plane never reach Fleet unless a user requests them.
func TestSecretsOfControlPlanesStayOut(t *testing.T) {
	for _, test := range confidants {
		t.Run(test.kind, func(t *testing.T) {
			rendered := func(exclude []string) string {
				values, err := Values(makeCluster("team", "prod").Obj(), parse(t, test.controlPlane), nil, exclude)
				if err != nil {
					t.Fatal(err)
				}
				data, err := json.Marshal(values)
				if err != nil {
					t.Fatal(err)
				}
				return string(data)
			}
			got := rendered(settings.DefaultExclude())
			if strings.Contains(got, marker) {
				t.Errorf("%q is in %s", marker, got)
			}
			for part := range strings.FieldsSeq(test.retained) {
				if !strings.Contains(got, part) {
					t.Errorf("%q is not in %s", part, got)
				}
			}
			if !test.open && !strings.Contains(rendered([]string{}), marker) {
				t.Error("an explicit empty list leaves something out")
			}
		})
	}
}

// Either reference may name a control plane: its secrets stay out in both cases.
func TestSecretsStayOutByTheOtherReference(t *testing.T) {
	for _, test := range confidants {
		object := parse(t, test.controlPlane)
		object["kind"] = test.kind
		values, err := Values(makeCluster("team", "prod").Obj(), nil, object, settings.DefaultExclude())
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), marker) {
			t.Errorf("%s: %q is in %s", test.kind, marker, data)
		}
		for part := range strings.FieldsSeq(test.retained) {
			if !strings.Contains(string(data), part) {
				t.Errorf("%s: %q is not in %s", test.kind, part, data)
			}
		}
	}
}

// An object that is not a control plane keeps fields that only share the name of an excluded field.
func TestExclusionsOfControlPlanesSpareInfrastructure(t *testing.T) {
	infrastructure := map[string]any{"kind": "VSphereCluster", "spec": map[string]any{"version": "kept"}}
	values, err := Values(makeCluster("team", "prod").Obj(), nil, infrastructure, []string{"/ControlPlane/spec/version"})
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := json.Marshal(values[InfrastructureValue]); !strings.Contains(string(data), "kept") {
		t.Errorf("left out of %s", data)
	}
}

// The secrets of every control plane that the syncer may read are in this file, or, if they always stay out, in
// testdata/strings.txt.
func TestEveryReadableControlPlaneIsKnown(t *testing.T) {
	known := map[string]bool{}
	for _, test := range confidants {
		known[contract.CalculateCRDName(test.group, test.kind)] = true
		if !strings.HasSuffix(test.kind, "ControlPlane") {
			t.Errorf("%s is not known for a control plane where spec.infrastructureRef names it", test.kind)
		}
	}
	readable := map[string]bool{}
	for _, kind := range settings.Kinds() {
		resource := schema.GroupResource{Group: kind.Group, Resource: kind.Plural}
		if !kind.IsReplaceable || resource.Group != controlPlaneGroup && !strings.HasSuffix(resource.Resource, "controlplanes") {
			continue
		}
		readable[resource.String()] = true
		if !known[resource.String()] {
			t.Errorf("the shipped roles let the syncer read %s, but this file does not list its secrets", resource)
		}
	}
	for name := range known {
		if !readable[name] {
			t.Errorf("%s is not in the shipped roles", name)
		}
	}
}

// A user who adds exclusions copies the default ones: the schema must accept these, and more.
func TestTheDefaultExclusionsCanBeExtended(t *testing.T) {
	const limit = 128 // of the schema
	if count := len(settings.DefaultExclude()); count > limit*3/4 {
		t.Errorf("%d of %d pointers are the default's", count, limit)
	}
}

func readableResources(t *testing.T) map[schema.GroupResource]bool {
	t.Helper()
	manifest, err := os.ReadFile("../../../manifests/rbac/syncer_template_values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	result := map[schema.GroupResource]bool{}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" {
			continue
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					result[schema.GroupResource{Group: group, Resource: resource}] = true
				}
			}
		}
	}
	if len(result) < 20 {
		t.Fatalf("the manifest has %d resources", len(result))
	}
	return result
}
