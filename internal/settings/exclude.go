package settings

import "slices"

// DefaultExclude returns the JSON pointers that are left out of the template values
// unless the user lists others: what carries secrets in the control planes that the
// shipped roles let the syncer read. A control plane holds inline what it puts on its
// machines: files, users, commands, Ignition and cloud-init, bootstrap tokens,
// credentials of proxies and repositories, free-form configuration of what it installs.
//
// A kind that is missing here carries no secrets: ROSA, GKE and nested control planes
// refer to Secrets by name only.
func DefaultExclude() []string {
	return slices.Concat(
		below("/ControlPlane/spec/kubeadmConfigSpec",
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
		),
		// K3s
		below("/ControlPlane/spec/kthreesConfigSpec",
			"/files",
			"/preK3sCommands",
			"/postK3sCommands",
		),
		// RKE2
		below("/ControlPlane/spec",
			"/files",
			"/preRKE2Commands",
			"/postRKE2Commands",
			"/agentConfig/additionalUserData",
			"/agentConfig/*/extraEnv",
			"/serverConfig/*/extraEnv",
			"/serverConfig/etcd/customConfig/extraEnv",
		),
		// k0s: in its own configuration, the datastore's connection string and the charts.
		below("/ControlPlane/spec/k0sConfigSpec",
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
		),
		// Talos, for init and controlplane: whole machine configurations and patches of them.
		below("/ControlPlane/spec/controlPlaneConfig/*",
			"/data",
			"/configPatches",
			"/strategicPatches",
		),
		// MicroK8s
		below("/ControlPlane/spec/controlPlaneConfig",
			"/initConfiguration/extraWriteFiles",
			"/initConfiguration/bootCommands",
			"/initConfiguration/preRunCommands",
			"/initConfiguration/postRunCommands",
			"/initConfiguration/httpProxy",
			"/initConfiguration/httpsProxy",
			"/initConfiguration/snapstoreHTTPProxy",
			"/initConfiguration/snapstoreHTTPSProxy",
			"/joinConfiguration/connectionToken",
		),
		// Kamaji: containers with their environment, and the datastore's connection string.
		below("/ControlPlane/spec",
			"/deployment/extraContainers",
			"/deployment/extraInitContainers",
			"/kine/extraArgs",
		),
		// EKS
		below("/ControlPlane/spec",
			"/addons/*/configuration",
			"/vpcCni/env",
		),
		// AKS
		below("/ControlPlane/spec",
			"/httpProxyConfig",
			"/addonProfiles/*/config",
			"/extensions/*/configurationSettings",
			"/asoManagedClusterPatches",
		),
		// AKS, whose resources are those of the Azure Service Operator.
		below("/ControlPlane/spec/resources/*/spec",
			"/httpProxyConfig",
			"/addonProfiles/*/config",
			"/configurationSettings",
		),
	)
}

func below(prefix string, pointers ...string) []string {
	for i := range pointers {
		pointers[i] = prefix + pointers[i]
	}
	return pointers
}
