package render

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/manifests"
)

const (
	class = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {name: standard, namespace: classes, labels: {tier: gold}}
`
	cluster = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: prod, namespace: team, labels: {env: prod}}
spec: {topology: {classRef: {name: standard, namespace: classes}, version: v1.36.3}}
`
	plain = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: prod, namespace: team}
`
	configHead = `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: `
)

func rendered(documents ...string) (*Result, error) {
	objects, problems := manifests.Read([]string{manifests.Stdin}, strings.NewReader(strings.Join(documents, "\n---\n")))
	if len(problems) > 0 {
		return nil, problems[0]
	}
	return Render(objects)
}

// labelled gives an object so many labels instead of its own.
func labelled(document string, count int) string {
	var labels []string
	for i := range count {
		labels = append(labels, fmt.Sprintf("l%03d: ''", i))
	}
	return regexp.MustCompile("labels: {[^}]*}").ReplaceAllString(document, "labels: {"+strings.Join(labels, ", ")+"}")
}

// render returns the objects, as kind namespace/name, and the notes.
func render(t *testing.T, documents ...string) (objects, notes []string, result *Result) {
	t.Helper()
	result, err := rendered(documents...)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range result.Objects {
		objects = append(objects, identity(object))
	}
	return objects, result.Notes, result
}

func TestRender(t *testing.T) {
	const noClass = "Cluster team/prod: ClusterClass classes/standard is not among the manifests; its labels are missing below"
	const made = "Cluster team/prod: Cluster API makes its control plane and infrastructure object from the ClusterClass; the template values below lack them"
	for name, test := range map[string]struct {
		documents      []string
		objects, notes []string
	}{
		"nothing":                      {documents: []string{"", "# nothing"}},
		"a class":                      {documents: []string{class}, objects: []string{"ClusterGroup classes/standard"}},
		"a Cluster without topology":   {documents: []string{plain}, objects: []string{"Cluster team/prod"}},
		"a class of another namespace": {documents: []string{cluster, class}, objects: []string{"BundleNamespaceMapping classes/team", "Cluster team/prod", "ClusterGroup classes/standard", "ClusterGroup team/standard.classes"}, notes: []string{made}},
		"two users of that class":      {documents: []string{cluster, strings.Replace(cluster, "prod", "test", 1), class}, objects: []string{"BundleNamespaceMapping classes/team", "Cluster team/prod", "Cluster team/test", "ClusterGroup classes/standard", "ClusterGroup team/standard.classes"}, notes: []string{made, strings.Replace(made, "prod", "test", 1)}},
		"its class is missing":         {documents: []string{cluster}, objects: []string{"BundleNamespaceMapping classes/team", "Cluster team/prod", "ClusterGroup team/standard.classes"}, notes: []string{noClass, made}},
		"applyClassGroup off":          {documents: []string{cluster, class, configHead + `{cluster: {applyClassGroup: false}}`}, objects: []string{"Cluster team/prod", "ClusterGroup classes/standard"}, notes: []string{made}},
		"clusterClass off":             {documents: []string{class, configHead + `{clusterClass: {enabled: false}}`}},
		"cluster off":                  {documents: []string{plain, configHead + `{cluster: {enabled: false}}`}, notes: []string{"Cluster team/prod is not imported: spec.cluster.enabled of the FleetAddonConfig is false"}},
		"not selected":                 {documents: []string{plain, configHead + `{cluster: {selector: {matchLabels: {a: b}}}}`}, notes: []string{"Cluster team/prod is not imported: its labels do not match spec.cluster.selector of the FleetAddonConfig (a=b)"}},
		"selected by its Namespace":    {documents: []string{plain, "{apiVersion: v1, kind: Namespace, metadata: {name: team, labels: {a: b}}}", configHead + `{cluster: {namespaceSelector: {matchLabels: {a: b}}}}`}, objects: []string{"Cluster team/prod"}},
		"selected by Namespace name":   {documents: []string{plain, configHead + `{cluster: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team}}}}`}, objects: []string{"Cluster team/prod"}},
		"selected by class":            {documents: []string{strings.Replace(cluster, "classes", "team", 1), configHead + `{cluster: {selector: {matchLabels: {clusterclass-name.fleet.addons.cluster.x-k8s.io: standard}}}}`}, objects: []string{"Cluster team/prod"}, notes: []string{strings.Replace(noClass, "classes/", "team/", 1), made}},
		"naming":                       {documents: []string{plain, configHead + `{cluster: {naming: {prefix: a-, suffix: -b}}}`}, objects: []string{"Cluster team/a-prod-b"}},
		"shortened":                    {documents: []string{strings.Replace(plain, "prod", "prod.eu", 1)}, objects: []string{"Cluster team/prod-eu-2740657d"}, notes: []string{`Cluster team/prod.eu: the name is not valid in Fleet and becomes "prod-eu-2740657d"`}},
		"generateName":                 {documents: []string{strings.Replace(plain, "name: prod", "generateName: prod-", 1)}, notes: []string{"Cluster team/ has no name yet (generateName); its Fleet Cluster is named once it has one"}},
		"too many labels":              {documents: []string{labelled(cluster, 513), class}, objects: []string{"BundleNamespaceMapping classes/team", "ClusterGroup classes/standard", "ClusterGroup team/standard.classes"}, notes: []string{"Cluster team/prod is not imported: nothing is copied from the Cluster, because it has 513 labels and 0 annotations to copy, of 2052 bytes together, and Muster copies at most 512 labels, 512 annotations and 131072 bytes: remove some"}},
		"too many labels of the class": {documents: []string{labelled(class, 513)}, objects: []string{"ClusterGroup classes/standard"}, notes: []string{"ClusterClass classes/standard: nothing is copied from ClusterClass classes/standard, because it has 513 labels and 0 annotations to copy, of 2052 bytes together, and Muster copies at most 512 labels, 512 annotations and 131072 bytes: remove some"}},
		"without a namespace":          {documents: []string{strings.Replace(plain, ", namespace: team", "", 1)}, objects: []string{"Cluster default/prod"}},
		"a List":                       {documents: []string{"{apiVersion: v1, kind: List, items: [{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: prod}}]}"}, objects: []string{"Cluster default/prod"}},
		"made from its class already":  {documents: []string{strings.Replace(cluster, "spec: {", "spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: DockerCluster, name: d}, ", 1), class, "{apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: DockerCluster, metadata: {name: d, namespace: team}}"}, objects: []string{"BundleNamespaceMapping classes/team", "Cluster team/prod", "ClusterGroup classes/standard", "ClusterGroup team/standard.classes"}},
		"a reference that is missing":  {documents: []string{plain + "spec: {controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: cp}}"}, objects: []string{"Cluster team/prod"}, notes: []string{"Cluster team/prod: KubeadmControlPlane cp is not among the manifests; the template values below lack it"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, notes, _ := render(t, test.documents...)
			if diff := cmp.Diff(test.objects, objects); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.notes, notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRenderRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		documents []string
		want      string
	}{
		"two Clusters of one name":        {[]string{strings.Replace(plain, "prod", "a-b", 1), strings.Replace(plain, "{name: prod,", `{name: b, annotations: {fleet.addons.cluster.x-k8s.io/cluster-name: a-b},`, 1)}, "Cluster team/a-b and Cluster team/b would share Cluster team/a-b; rename one of them"},
		"a Cluster twice":                 {[]string{plain, plain}, "Cluster team/prod and Cluster team/prod would share Cluster team/prod"},
		"a class twice":                   {[]string{class, class}, "ClusterClass standard and ClusterClass standard would share ClusterGroup classes/standard"},
		"selectors that cannot be parsed": {[]string{configHead + `{cluster: {selector: {matchExpressions: [{key: a, operator: Is}]}}}`}, "spec.cluster.selector: "},
		"v1alpha4":                        {[]string{strings.Replace(plain, "v1beta2", "v1alpha4", 1)}, "document 1, Cluster prod: is cluster.x-k8s.io/v1alpha4; Cluster API serves cluster.x-k8s.io/v1beta2 and cluster.x-k8s.io/v1beta1"},
		"a second config":                 {[]string{configHead + `{}`, configHead + `{}`}, "document 2, FleetAddonConfig fleet-addon-config: is a second FleetAddonConfig"},
		"an unknown field":                {[]string{configHead + `{cluster: {namming: {}}}`}, `unknown field "spec.cluster.namming"`},
		"no Cluster":                      {[]string{class, plain + "spec: []"}, "document 2, Cluster prod: json: cannot unmarshal array"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rendered(test.documents...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want %q", err, test.want)
			}
		})
	}
}

// Most public manifests are v1beta1. They give what the API server's conversion of them would give.
func TestRenderV1Beta1(t *testing.T) {
	const old, now = `
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {name: prod, namespace: team, labels: {env: prod}}
spec:
  clusterNetwork: {pods: {cidrBlocks: [192.168.0.0/16]}}
  topology: {class: standard, classNamespace: classes, version: v1.33.0, variables: [{name: size, value: 3}]}
  infrastructureRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: MetalCluster, name: infra}
  controlPlaneRef: {apiVersion: controlplane.cluster.x-k8s.io/v1beta1, kind: KubeadmControlPlane, name: cp}
`, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: prod, namespace: team, labels: {env: prod}}
spec:
  clusterNetwork: {pods: {cidrBlocks: [192.168.0.0/16]}}
  topology: {classRef: {name: standard, namespace: classes}, version: v1.33.0, variables: [{name: size, value: 3}]}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: MetalCluster, name: infra}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: cp}
`
	const oldControlPlane, controlPlane = `
apiVersion: controlplane.cluster.x-k8s.io/v1beta1
kind: KubeadmControlPlane
metadata: {name: cp, namespace: team}
spec:
  replicas: 3
  version: v1.33.0
  machineTemplate: {nodeDrainTimeout: 10s, infrastructureRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: MetalMachineTemplate, name: m}}
  kubeadmConfigSpec: {clusterConfiguration: {apiServer: {extraArgs: {v: "4"}}}}
`, `
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata: {name: cp, namespace: team}
spec:
  replicas: 3
  version: v1.33.0
  machineTemplate:
    spec: {deletion: {nodeDrainTimeoutSeconds: 10}, infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: MetalMachineTemplate, name: m}}
  kubeadmConfigSpec: {clusterConfiguration: {apiServer: {extraArgs: [{name: v, value: "4"}]}}}
`
	const infrastructure = "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: MetalCluster\nmetadata: {name: infra, namespace: team}\nspec: {region: eu}\n"
	oldClass := strings.Replace(class, "v1beta2", "v1beta1", 1)
	_, gotNotes, got := render(t, oldClass, old, oldControlPlane, infrastructure)
	_, wantNotes, want := render(t, class, now, controlPlane, infrastructure)
	if diff := cmp.Diff(want.Objects, got.Objects); diff != "" {
		t.Errorf("objects (-v1beta2 +v1beta1):\n%s", diff)
	}
	if diff := cmp.Diff(wantNotes, gotNotes); diff != "" || len(got.Objects) != 4 {
		t.Errorf("%d objects; notes (-v1beta2 +v1beta1):\n%s", len(got.Objects), diff)
	}
}

// A Fleet Cluster as a reviewer reads it: no fields from a server, no UIDs, no secrets.
func TestRenderedFleetCluster(t *testing.T) {
	const controlPlane = `
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata: {name: cp, namespace: team}
spec: {replicas: 3, kubeadmConfigSpec: {files: [{path: /a, content: secret}]}}
`
	_, _, result := render(t, class, controlPlane, strings.TrimSuffix(cluster, "}\n")+
		", controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: cp}}\n",
		configHead+`{cluster: {agentTolerations: []}}`)
	var got string
	for _, object := range result.Objects {
		if object["kind"] == "Cluster" {
			text, err := yaml.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			got = string(text)
		}
	}
	const want = `
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata:
  annotations:
    fleet.addons.cluster.x-k8s.io/imported-from: prod
  labels:
    app.kubernetes.io/managed-by: muster
    clusterclass-name.fleet.addons.cluster.x-k8s.io: standard
    clusterclass-namespace.fleet.addons.cluster.x-k8s.io: classes
    env: prod
    tier: gold
  name: prod
  namespace: team
  ownerReferences:
  - apiVersion: cluster.x-k8s.io/v1beta2
    kind: Cluster
    name: prod
spec:
  agentNamespace: fleet-addon-agent
  hostNetwork: true
  kubeConfigSecret: prod-kubeconfig
  templateValues:
    Cluster:
      apiVersion: cluster.x-k8s.io/v1beta2
      kind: Cluster
      metadata:
        annotations:
          fleet.addons.cluster.x-k8s.io/cluster-name: prod
          fleet.addons.cluster.x-k8s.io/owned-by: fleet-addon-config
        labels:
          clusterclass-name.fleet.addons.cluster.x-k8s.io: standard
          clusterclass-namespace.fleet.addons.cluster.x-k8s.io: classes
          env: prod
        name: prod
        namespace: team
      spec:
        controlPlaneRef:
          apiGroup: controlplane.cluster.x-k8s.io
          kind: KubeadmControlPlane
          name: cp
        topology:
          classRef:
            name: standard
            namespace: classes
          version: v1.36.3
    ControlPlane:
      apiVersion: controlplane.cluster.x-k8s.io/v1beta2
      kind: KubeadmControlPlane
      metadata:
        name: cp
        namespace: team
      spec:
        kubeadmConfigSpec: {}
        replicas: 3
    Variables: {}
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("Fleet Cluster (-want +got):\n%s", diff)
	}
}

// Render names who waits for a right: Clusters, and classes of either version, that refer to kinds which no shipped
// role lists.
func TestNotesKindsThatNoRoleLists(t *testing.T) {
	const waits = `no shipped role lets the syncer read %s; until a ClusterRole labelled fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer: "true" does, with get, list and watch, the condition is TemplateValuesUnresolved`
	const beta2 = class + `
spec:
  controlPlane: {templateRef: {apiVersion: controlplane.cluster.x-k8s.io/v1, kind: %s, name: x}}
  infrastructure: {templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: %s, name: x}}
`
	beta1 := strings.NewReplacer("v1beta2", "v1beta1", "templateRef", "ref").Replace(beta2)
	named := plain + `
spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: %[1]s, name: x}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: %[1]s
metadata: {name: x, namespace: team}
`
	for name, test := range map[string]struct{ document, who, resource string }{
		"a Cluster's kind":            {fmt.Sprintf(named, "FooCluster"), "Cluster team/prod", "fooclusters.infrastructure.cluster.x-k8s.io"},
		"a Cluster's known kind":      {fmt.Sprintf(named, "OscCluster"), "", ""},
		"a kind of no provider":       {fmt.Sprintf(named, "OutscaleCluster"), "Cluster team/prod", "outscaleclusters.infrastructure.cluster.x-k8s.io"},
		"a class's control plane":     {fmt.Sprintf(beta2, "FooControlPlaneTemplate", "DOClusterTemplate"), "Clusters of ClusterClass classes/standard", "foocontrolplanes.controlplane.cluster.x-k8s.io"},
		"a v1beta1 class's":           {fmt.Sprintf(beta1, "KubeadmControlPlaneTemplate", "FooClusterTemplate"), "Clusters of ClusterClass classes/standard", "fooclusters.infrastructure.cluster.x-k8s.io"},
		"a class's known kinds":       {fmt.Sprintf(beta2, "KubeadmControlPlaneTemplate", "DOClusterTemplate"), "", ""},
		"a class that cannot be read": {class + "spec: []", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			if test.who != "" {
				want = []string{test.who + ": " + fmt.Sprintf(waits, test.resource)}
			}
			_, notes, _ := render(t, test.document)
			if diff := cmp.Diff(want, notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

// Another provider's object is taken as it is. Render notes one that is not in the version in which the syncer reads
// the kind; a KubeadmControlPlane is converted, and of an unknown kind nothing is said.
func TestNotesObjectsInAnotherVersion(t *testing.T) {
	for name, test := range map[string]struct{ group, kind, version, read string }{
		"the newest of the contract v1beta1": {"infrastructure.cluster.x-k8s.io", "AWSCluster", "v1beta2", ""},
		"an older one of that contract":      {"infrastructure.cluster.x-k8s.io", "AWSCluster", "v1beta1", "v1beta2"},
		"the one of the contract v1beta2":    {"infrastructure.cluster.x-k8s.io", "ProxmoxCluster", "v1alpha2", ""},
		"older than the contract v1beta2's":  {"infrastructure.cluster.x-k8s.io", "Metal3Cluster", "v1beta1", "v1beta2"},
		"newer than the one that is read":    {"infrastructure.cluster.x-k8s.io", "DOCluster", "v1beta2", "v1beta1"},
		"converted":                          {"controlplane.cluster.x-k8s.io", "KubeadmControlPlane", "v1beta1", ""},
		"its labels were not seen":           {"controlplane.cluster.x-k8s.io", "K3sControlPlane", "v1beta1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			if test.read != "" {
				want = []string{fmt.Sprintf("Cluster team/prod: %s x is in version %s, but the newest known CRD of its provider has the syncer read %s; the API server converts it, so the template values can differ from those below",
					test.kind, test.version, test.read)}
			}
			_, notes, _ := render(t, fmt.Sprintf(`%s
spec: {infrastructureRef: {apiGroup: %s, kind: %s, name: x}}
---
apiVersion: %[2]s/%[4]s
kind: %[3]s
metadata: {name: x, namespace: team}
`, plain, test.group, test.kind, test.version))
			if diff := cmp.Diff(want, notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}
