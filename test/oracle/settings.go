package oracle

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// settings are what a FleetAddonConfig asks for. A field that it does not mention has its default, and so have all
// fields if there never was a FleetAddonConfig. Disabling is always explicit.
type settings struct {
	// unknown means that the FleetAddonConfig is gone, so that everything stays.
	unknown bool
	// missing means that there is no FleetAddonConfig.
	missing bool

	enabled, classGroup, patch, owners, hostNetwork bool
	agentNamespace, prefix, suffix                  string
	tolerations                                     []corev1.Toleration
	envVars                                         []corev1.EnvVar
	selector, namespaceSelector                     labels.Selector
	deletesDeselected                               bool
	exclude                                         []string

	// agentInitiated means that agents register themselves on the Clusters that agentSelector matches.
	agentInitiated bool
	agentSelector  labels.Selector

	classEnabled, classPatch, classOwners bool
}

// settings returns the settings in force.
func (s *State) settings() settings {
	in := settingsOf(s.Config)
	if s.Config == nil && s.IsConfigGone {
		in.unknown, in.enabled, in.classEnabled = true, false, false
	}
	return in
}

func settingsOf(config *addonsv1.FleetAddonConfig) settings {
	spec := addonsv1.FleetAddonConfigSpec{}
	if config != nil {
		spec = config.Spec
	}
	cluster, class := ptr.Deref(spec.Cluster, addonsv1.ClusterConfig{}), ptr.Deref(spec.ClusterClass, addonsv1.ClusterClassConfig{})
	naming := ptr.Deref(cluster.Naming, addonsv1.NamingStrategy{})
	isOn := func(value *bool) bool { return ptr.Deref(value, true) }
	return settings{
		missing: config == nil,
		enabled: isOn(cluster.Enabled), classGroup: isOn(cluster.ApplyClassGroup), patch: isOn(cluster.PatchResource),
		owners: isOn(cluster.SetOwnerReferences), hostNetwork: isOn(cluster.HostNetwork),
		agentNamespace: ptr.Deref(cluster.AgentNamespace, "fleet-addon-agent"),
		prefix:         naming.Prefix, suffix: naming.Suffix,
		tolerations: ptr.Deref(cluster.AgentTolerations, []corev1.Toleration{
			{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoSchedule"},
			{Key: "node.cluster.x-k8s.io/uninitialized", Operator: "Exists", Effect: "NoSchedule"},
			{Key: "node.cloudprovider.kubernetes.io/uninitialized", Operator: "Equal", Value: "true", Effect: "NoSchedule"},
		}),
		envVars:           cluster.AgentEnvVars,
		selector:          parse(cluster.Selector),
		namespaceSelector: parse(cluster.NamespaceSelector),
		deletesDeselected: cluster.OnDeselect == "Delete",
		exclude:           ptr.Deref(ptr.Deref(cluster.TemplateValues, addonsv1.TemplateValuesConfig{}).Exclude, secretive),
		agentInitiated:    ptr.Deref(cluster.AgentInitiated, false), agentSelector: parse(cluster.AgentInitiatedSelector),
		classEnabled: isOn(class.Enabled), classPatch: isOn(class.PatchResource), classOwners: isOn(class.SetOwnerReferences),
	}
}

// secretive lists the fields of a kubeadm control plane, the only kind in the runs, that may carry secrets.
var secretive = func() []string {
	pointers := []string{
		"files", "users", "ignition", "bootCommands", "preKubeadmCommands", "postKubeadmCommands",
		"initConfiguration/bootstrapTokens", "joinConfiguration/discovery/bootstrapToken",
		"joinConfiguration/discovery/tlsBootstrapToken", "joinConfiguration/discovery/file/kubeConfig/user",
		"clusterConfiguration/*/extraEnvs", "clusterConfiguration/etcd/local/extraEnvs",
	}
	for i := range pointers {
		pointers[i] = "/ControlPlane/spec/kubeadmConfigSpec/" + pointers[i]
	}
	return pointers
}()

// parse returns a selector; a missing one matches everything, like an empty one. No run has an invalid selector,
// because admission refuses it.
func parse(selector *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(cmp.Or(selector, &metav1.LabelSelector{}))
	if err != nil {
		panic(err)
	}
	return parsed
}

// nameOf returns the name that naming gives the Fleet Cluster of a Cluster now.
func (in settings) nameOf(cluster *clusterv1.Cluster) string {
	return fleetName(in.prefix + cluster.Name + in.suffix)
}

// selects reports whether both selectors match. The Cluster's selector may name the class labels.
func (in settings) selects(cluster *clusterv1.Cluster, namespace *corev1.Namespace) bool {
	if !in.enabled {
		return false
	}
	return in.selector.Matches(stampedLabels(cluster)) && in.namespaceSelector.Matches(labels.Set(namespace.Labels))
}

// stampedLabels are the labels of a Cluster once it is stamped.
func stampedLabels(cluster *clusterv1.Cluster) labels.Set {
	stamped := cluster.DeepCopy()
	stampClass(stamped)
	return stamped.Labels
}
