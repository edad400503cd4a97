package settings

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AggregationLabel on a ClusterRole, with the value "true", aggregates it into the rights to read template values.
const AggregationLabel = "fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer"

// Kind is a kind that Clusters refer to, and that the shipped roles let the syncer read.
type Kind struct {
	schema.GroupKind
	// Plural is the resource, as the provider's CRD names it.
	Plural string
	// Provider is the provider's name in clusterctl, or that of its project.
	Provider string
	// Version is the one in which Cluster API 1.14, and so the syncer, reads the kind: it follows from the contract
	// labels of the newest CRD seen (testdata/providers.tsv). It is empty if no labels were seen. An installed CRD may
	// be older or newer, and it decides.
	Version string
	// IsReplaceable means that spec.cluster.templateValues.exclude replaces Secret: bundles may read these fields
	// by now. A kind that is new here has it false: its fields always stay out.
	IsReplaceable bool
	// Secret are JSON pointers to the fields that may carry secrets: credentials, text that the provider hands on
	// without reading it, such as files, commands, values and patches, and fields without a schema.
	Secret []string
}

// Groups of the Cluster API contract.
const (
	controlPlane   = "controlplane.cluster.x-k8s.io"
	infrastructure = "infrastructure.cluster.x-k8s.io"
	// supervisor is the group of CAPV's clusters on a vSphere Supervisor.
	supervisor = "vmware.infrastructure.cluster.x-k8s.io"
)

// replaceable and always are the values of IsReplaceable.
const replaceable, always = true, false

// kinds is the table. Tests compare it with the roles, with the CRDs of the providers, and with the documentation.
//
// A control plane holds inline the content that it puts on its machines: files, users, commands, Ignition and
// cloud-init, bootstrap tokens, credentials of proxies and repositories, and free-form configuration of the software
// that it installs. ROSA, GKE and nested control planes refer to Secrets by name only.
var kinds = []Kind{
	{kind(controlPlane, "KubeadmControlPlane"), "kubeadmcontrolplanes", "kubeadm", "v1beta2", replaceable, below("/spec/kubeadmConfigSpec",
		"/files",
		"/users",
		"/bootCommands",
		"/preKubeadmCommands",
		"/postKubeadmCommands",
		"/ignition",
		"/clusterConfiguration/*/extraEnvs",
		"/clusterConfiguration/etcd/local/extraEnvs",
		"/initConfiguration/bootstrapTokens",
		"/joinConfiguration/discovery/bootstrapToken",
		"/joinConfiguration/discovery/tlsBootstrapToken",
		"/joinConfiguration/discovery/file/kubeConfig/user",
	)},
	{kind(controlPlane, "KThreesControlPlane"), "kthreescontrolplanes", "k3s", "v1beta2", replaceable, below("/spec/kthreesConfigSpec",
		"/files",
		"/preK3sCommands",
		"/postK3sCommands",
	)},
	{kind(controlPlane, "RKE2ControlPlane"), "rke2controlplanes", "rke2", "v1beta2", replaceable, below("/spec",
		"/files",
		"/preRKE2Commands",
		"/postRKE2Commands",
		"/agentConfig/additionalUserData",
		"/agentConfig/*/extraEnv",
		"/serverConfig/*/extraEnv",
		"/serverConfig/etcd/customConfig/extraEnv",
	)},
	// The datastore's connection string and the charts are in k0s' own configuration.
	{kind(controlPlane, "K0sControlPlane"), "k0scontrolplanes", "k0sproject-k0smotron", "v1beta2", replaceable, below("/spec/k0sConfigSpec",
		"/files",
		"/preStartCommands",
		"/postStartCommands",
		"/preK0sCommands",
		"/postK0sCommands",
		"/ignition",
		"/provisioner/ignition",
		"/downloadURL",
		"/k0s/spec/storage",
		"/k0s/spec/extensions",
	)},
	// For init and controlplane: whole machine configurations and patches of them.
	{kind(controlPlane, "TalosControlPlane"), "taloscontrolplanes", "talos", "v1alpha3", replaceable, below("/spec/controlPlaneConfig/*",
		"/data",
		"/configPatches",
		"/strategicPatches",
	)},
	{kind(controlPlane, "MicroK8sControlPlane"), "microk8scontrolplanes", "microk8s", "v1beta1", replaceable, below("/spec/controlPlaneConfig",
		"/initConfiguration/extraWriteFiles",
		"/initConfiguration/bootCommands",
		"/initConfiguration/preRunCommands",
		"/initConfiguration/postRunCommands",
		"/initConfiguration/httpProxy",
		"/initConfiguration/httpsProxy",
		"/initConfiguration/snapstoreHTTPProxy",
		"/initConfiguration/snapstoreHTTPSProxy",
		"/joinConfiguration/connectionToken",
	)},
	// Containers with their environment, and the datastore's connection string.
	{kind(controlPlane, "KamajiControlPlane"), "kamajicontrolplanes", "kamaji", "v1alpha2", replaceable, below("/spec",
		"/deployment/extraContainers",
		"/deployment/extraInitContainers",
		"/kine/extraArgs",
	)},
	{kind(controlPlane, "AWSManagedControlPlane"), "awsmanagedcontrolplanes", "aws", "v1beta2", replaceable, below("/spec",
		"/addons/*/configuration",
		"/vpcCni/env",
	)},
	{kind(infrastructure, "AzureManagedControlPlane"), "azuremanagedcontrolplanes", "azure", "v1beta1", replaceable, below("/spec",
		"/httpProxyConfig",
		"/addonProfiles/*/config",
		"/extensions/*/configurationSettings",
		"/asoManagedClusterPatches",
	)},
	// The resources are those of the Azure Service Operator.
	{kind(infrastructure, "AzureASOManagedControlPlane"), "azureasomanagedcontrolplanes", "azure", "v1beta1", replaceable, below("/spec/resources/*/spec",
		"/httpProxyConfig",
		"/addonProfiles/*/config",
		"/configurationSettings",
	)},
	{kind(controlPlane, "ROSAControlPlane"), "rosacontrolplanes", "aws", "v1beta2", replaceable, nil},
	{kind(controlPlane, "NestedControlPlane"), "nestedcontrolplanes", "nested", "v1alpha4", replaceable, nil},
	{kind(infrastructure, "GCPManagedControlPlane"), "gcpmanagedcontrolplanes", "gcp", "v1beta1", replaceable, nil},

	{kind(infrastructure, "AWSCluster"), "awsclusters", "aws", "v1beta2", replaceable, nil},
	{kind(infrastructure, "AWSManagedCluster"), "awsmanagedclusters", "aws", "v1beta2", replaceable, nil},
	{kind(infrastructure, "ROSACluster"), "rosaclusters", "aws", "v1beta2", replaceable, nil},
	{kind(infrastructure, "AzureCluster"), "azureclusters", "azure", "v1beta1", replaceable, nil},
	{kind(infrastructure, "AzureManagedCluster"), "azuremanagedclusters", "azure", "v1beta1", replaceable, nil},
	{kind(infrastructure, "AzureASOManagedCluster"), "azureasomanagedclusters", "azure", "v1beta1", replaceable, nil},
	{kind(infrastructure, "GCPCluster"), "gcpclusters", "gcp", "v1beta1", replaceable, nil},
	{kind(infrastructure, "GCPManagedCluster"), "gcpmanagedclusters", "gcp", "v1beta1", replaceable, nil},
	{kind(infrastructure, "VSphereCluster"), "vsphereclusters", "vsphere", "v1beta2", replaceable, nil},
	{kind(infrastructure, "OpenStackCluster"), "openstackclusters", "openstack", "v1beta2", replaceable, nil},
	{kind(infrastructure, "Metal3Cluster"), "metal3clusters", "metal3", "v1beta2", replaceable, nil},
	{kind(infrastructure, "HetznerCluster"), "hetznerclusters", "hetzner", "v1beta1", replaceable, nil},
	{kind(infrastructure, "IBMPowerVSCluster"), "ibmpowervsclusters", "ibmcloud", "v1beta3", replaceable, nil},
	{kind(infrastructure, "IBMVPCCluster"), "ibmvpcclusters", "ibmcloud", "v1beta2", replaceable, nil},
	{kind(infrastructure, "OCICluster"), "ociclusters", "oci", "v1beta2", replaceable, nil},
	{kind(infrastructure, "OCIManagedCluster"), "ocimanagedclusters", "oci", "v1beta2", replaceable, nil},
	{kind(infrastructure, "NutanixCluster"), "nutanixclusters", "nutanix", "v1beta1", replaceable, nil},
	{kind(infrastructure, "ProxmoxCluster"), "proxmoxclusters", "proxmox", "v1alpha2", replaceable, nil},
	{kind(infrastructure, "PacketCluster"), "packetclusters", "packet", "v1beta1", replaceable, nil},
	{kind(infrastructure, "LinodeCluster"), "linodeclusters", "linode-linode", "v1alpha2", replaceable, nil},
	{kind(infrastructure, "CloudStackCluster"), "cloudstackclusters", "cloudstack", "v1beta3", replaceable, nil},
	{kind(infrastructure, "KubevirtCluster"), "kubevirtclusters", "kubevirt", "v1alpha1", replaceable, nil},
	{kind(infrastructure, "TinkerbellCluster"), "tinkerbellclusters", "tinkerbell-tinkerbell", "v1beta1", replaceable, nil},
	{kind(infrastructure, "ByoCluster"), "byoclusters", "byoh", "v1beta1", replaceable, nil},
	{kind(infrastructure, "ElementalCluster"), "elementalclusters", "elemental", "v1beta1", replaceable, nil},
	{kind(infrastructure, "HarvesterCluster"), "harvesterclusters", "harvester-harvester", "v1alpha1", replaceable, nil},
	{kind(infrastructure, "MaasCluster"), "maasclusters", "maas", "v1beta1", replaceable, nil},
	{kind(infrastructure, "RemoteCluster"), "remoteclusters", "k0sproject-k0smotron", "v1beta2", replaceable, nil},
	{kind(infrastructure, "DockerCluster"), "dockerclusters", "docker", "v1beta2", replaceable, nil},
	{kind(infrastructure, "DevCluster"), "devclusters", "docker", "v1beta2", replaceable, nil},

	{kind(controlPlane, "CK8sControlPlane"), "ck8scontrolplanes", "canonical-kubernetes", "v1beta2", always, below("/spec/spec",
		"/files",
		"/additionalUserData",
		"/bootCommands",
		"/preRunCommands",
		"/postRunCommands",
		"/bootstrapConfig/content",
		"/httpProxy",
		"/httpsProxy",
	)},
	{kind(controlPlane, "HostedControlPlane"), "hostedcontrolplanes", "hosted-control-plane", "v1alpha1", always, below("/spec",
		"/oidcProviders/*/claimValidationRules/*/message",
	)},
	// Volumes can have options of any storage driver.
	{kind(controlPlane, "K0smotronControlPlane"), "k0smotroncontrolplanes", "k0sproject-k0smotron", "v1beta2", always, below("/spec",
		"/k0sConfig",
		"/kineDataSourceURL",
		"/storage/kine/dataSourceURL",
		"/manifests",
		"/mounts",
		"/patches",
	)},
	{kind(controlPlane, "K3sControlPlane"), "k3scontrolplanes", "kubekey-k3s", "", always, below("/spec/k3sConfigSpec",
		"/files",
		"/preK3sCommands",
		"/postK3sCommands",
		"/cluster/token",
		"/serverConfiguration/database/dataStoreEndPoint",
	)},
	{kind(controlPlane, "KairosControlPlane"), "kairoscontrolplanes", "kairos-io", "v1beta2", always, nil},
	// CAPVC reads credentials of a chart's repository from nowhere but its URL.
	{kind(controlPlane, "VCluster"), "vclusters", "vcluster", "v1alpha1", always, below("/spec/helmRelease",
		"/values",
		"/valuesObject",
		"/chart/repo",
	)},
	{kind(infrastructure, "OCIManagedControlPlane"), "ocimanagedcontrolplanes", "oci", "v1beta2", always, below("/spec",
		"/addons/*/configurations",
	)},
	{kind(infrastructure, "ScalewayManagedControlPlane"), "scalewaymanagedcontrolplanes", "scaleway", "v1alpha2", always, nil},

	{kind(infrastructure, "CloudscaleCluster"), "cloudscaleclusters", "cloudscale-ch-cloudscale", "v1beta2", always, nil},
	{kind(infrastructure, "CoxCluster"), "coxclusters", "coxedge", "v1beta1", always, nil},
	{kind(infrastructure, "DOCluster"), "doclusters", "digitalocean", "v1beta1", always, nil},
	{kind(infrastructure, "HivelocityCluster"), "hivelocityclusters", "hivelocity-hivelocity", "v1alpha1", always, nil},
	{kind(infrastructure, "IonosCloudCluster"), "ionoscloudclusters", "ionoscloud-ionoscloud", "v1alpha1", always, nil},
	{kind(infrastructure, "KairosFleetCluster"), "kairosfleetclusters", "kairos-io-fleet", "v1alpha1", always, nil},
	// Before version 4, nodes and registry; since then, an inventory.
	{kind(infrastructure, "KKCluster"), "kkclusters", "kubekey", "v1beta1", always, below("/spec",
		"/nodes/auth",
		"/nodes/instances/*/auth",
		"/registry/auth",
		"/component/overrides/*/url",
		"/inventory/*/connector/user",
		"/inventory/*/connector/password",
		"/inventory/*/connector/privateKey",
		"/inventory/*/vars",
	)},
	{kind(infrastructure, "KubeSwiftCluster"), "kubeswiftclusters", "kubeswift-io", "v1alpha1", always, nil},
	{kind(infrastructure, "LXCCluster"), "lxcclusters", "incus", "v1alpha2", always, below("/spec/loadBalancer",
		"/lxc/customHAProxyConfigTemplate",
		"/oci/customHAProxyConfigTemplate",
	)},
	{kind(infrastructure, "MetalCluster"), "metalclusters", "sidero", "v1alpha3", always, nil},
	{kind(infrastructure, "MetalStackCluster"), "metalstackclusters", "metal-stack", "v1alpha1", always, nil},
	{kind(infrastructure, "MicrovmCluster"), "microvmclusters", "microvm", "v1alpha1", always, nil},
	{kind(infrastructure, "NestedCluster"), "nestedclusters", "nested", "v1alpha4", always, nil},
	{kind(infrastructure, "ONECluster"), "oneclusters", "opennebula", "v1beta1", always, below("/spec",
		"/images/*/imageContent",
		"/templates/*/templateContent",
		"/virtualRouter/extraContext",
	)},
	{kind(infrastructure, "OscCluster"), "oscclusters", "outscale", "v1beta1", always, below("/spec",
		"/network/securityGroups/*/description",
	)},
	{kind(infrastructure, "OxideCluster"), "oxideclusters", "oxide", "v1alpha1", always, nil},
	{kind(infrastructure, "ScalewayCluster"), "scalewayclusters", "scaleway", "v1alpha2", always, nil},
	{kind(infrastructure, "ScalewayManagedCluster"), "scalewaymanagedclusters", "scaleway", "v1alpha2", always, nil},
	{kind(infrastructure, "VCDCluster"), "vcdclusters", "vcd", "v1beta3", always, below("/spec",
		"/userContext/username",
		"/userContext/password",
		"/userContext/refreshToken",
		"/proxyConfigSpec/httpProxy",
		"/proxyConfigSpec/httpsProxy",
	)},
	{kind(infrastructure, "VCluster"), "vclusters", "vcluster", "v1alpha1", always, below("/spec/helmRelease",
		"/values",
		"/valuesObject",
		"/chart/repo",
	)},
	{kind(infrastructure, "VirtinkCluster"), "virtinkclusters", "virtink", "v1beta1", always, below("/spec",
		"/controlPlaneServiceTemplate/metadata",
	)},
	{kind(infrastructure, "VNodeCluster"), "vnodeclusters", "vcluster", "v1alpha1", always, nil},
	{kind(infrastructure, "VultrCluster"), "vultrclusters", "vultr-vultr", "v1beta1", always, nil},
	{kind(supervisor, "VSphereCluster"), "vsphereclusters", "vsphere", "v1beta2", always, nil},
}

func kind(group, name string) schema.GroupKind { return schema.GroupKind{Group: group, Kind: name} }

func below(prefix string, pointers ...string) []string {
	for i := range pointers {
		pointers[i] = prefix + pointers[i]
	}
	return pointers
}

// Kinds returns the table.
func Kinds() []Kind { return kinds }

// KindOf returns the row of a kind, or nil if the shipped roles do not let the syncer read it.
func KindOf(of schema.GroupKind) *Kind {
	for i := range kinds {
		if kinds[i].GroupKind == of {
			return &kinds[i]
		}
	}
	return nil
}

// AlwaysOut returns the JSON pointers into an object of a kind that the template values leave out, whatever the
// FleetAddonConfig says.
func AlwaysOut(of schema.GroupKind) []string {
	if its := KindOf(of); its != nil && !its.IsReplaceable {
		return its.Secret
	}
	return nil
}

// Excluded returns the part of the default of spec.cluster.templateValues.exclude that is there for a kind.
func (k Kind) Excluded() []string {
	if !k.IsReplaceable {
		return nil
	}
	return below("/ControlPlane", slices.Clone(k.Secret)...)
}

// DefaultExclude returns the JSON pointers that are left out of the template values unless the user lists others.
func DefaultExclude() []string {
	var result []string
	for _, its := range kinds {
		result = append(result, its.Excluded()...)
	}
	return result
}
