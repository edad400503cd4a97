package parts

import (
	"os"

	"k8s.io/apimachinery/pkg/util/version"
)

// Set is a set of versions that the parts of a stack have.
type Set struct {
	// kube and Controllers are the folders under test/parts of the modules that pin etcd and Kubernetes, and Fleet and
	// Cluster API. cert-manager is the same in all sets.
	kube, Controllers string
	// Kubernetes and Fleet are the versions that these modules pin, with the leading v.
	Kubernetes, Fleet string
	// core is the folder of Cluster API's core provider in its module.
	core string
}

// HasMutatingPolicies reports whether the API server serves MutatingAdmissionPolicies in v1.
func (s Set) HasMutatingPolicies() bool {
	return version.MustParseSemantic(s.Kubernetes).AtLeast(version.MajorMinor(1, 36))
}

// HasFleet016 reports whether Fleet has Policies, and Fleet Clusters have agentPullSecrets.
func (s Set) HasFleet016() bool {
	return version.MustParseSemantic(s.Fleet).AtLeast(version.MajorMinor(0, 16))
}

// choice is the environment variable that names the set of all stacks of a process.
const choice = "MUSTER_PARTS"

// sets are the sets by name. The one without a name is what Muster is built for.
var sets = map[string]Set{
	"":         {kube: "kube", Controllers: "controllers", Kubernetes: "v1.37.2", Fleet: "v0.16.0", core: "core"},
	"previous": {kube: "previous/kube", Controllers: "controllers", Kubernetes: "v1.36.3", Fleet: "v0.16.0", core: "core"},
	"older":    {kube: "older/kube", Controllers: "older/controllers", Kubernetes: "v1.35.4", Fleet: "v0.15.0"},
}

// Chosen is the set that the environment chooses. Build refuses an unknown one.
var Chosen = sets[os.Getenv(choice)]
