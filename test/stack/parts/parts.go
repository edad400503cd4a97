package parts

import "path"

// The version the Kubernetes binaries report. Built from modules they would say
// v0.0.0-master, which clients refuse to parse.
const (
	kubernetesVersion = "v1.36.3"
	kubernetesMajor   = "1"
	kubernetesMinor   = "36"
)

// Module is a module under test/parts: it pins one system's programs apart
// from Muster's own requirements.
type Module struct {
	name     string
	ldflags  string
	programs []program
	patches  []patch
}

// program is one binary of a Module.
type program struct {
	name string
	pkg  string
}

// builtName is what Go names it.
func (p program) builtName() string { return path.Base(p.pkg) }

// The modules.
var (
	Kube = Module{
		name: "kube",
		ldflags: "-s -w" +
			" -X k8s.io/component-base/version.gitVersion=" + kubernetesVersion +
			" -X k8s.io/component-base/version.gitMajor=" + kubernetesMajor +
			" -X k8s.io/component-base/version.gitMinor=" + kubernetesMinor +
			" -X k8s.io/client-go/pkg/version.gitVersion=" + kubernetesVersion,
		programs: []program{
			{name: "etcd", pkg: "./etcd"},
			{name: "kube-apiserver", pkg: "./kube-apiserver"},
			{name: "kube-controller-manager", pkg: "./kube-controller-manager"},
			{name: "kube-scheduler", pkg: "./kube-scheduler"},
			{name: "kubectl", pkg: "./kubectl"},
		},
	}
	CertManager = Module{
		name:     "certmanager",
		ldflags:  "-s -w",
		programs: []program{{name: "cert-manager", pkg: "github.com/muster-fleet/muster/test/parts/certmanager"}},
	}
	Fleet = Module{
		name:    "fleet",
		ldflags: "-s -w",
		programs: []program{
			{name: "fleetcontroller", pkg: "github.com/rancher/fleet/cmd/fleetcontroller"},
			{name: "fleetagent", pkg: "github.com/rancher/fleet/cmd/fleetagent"},
			{name: "fleetcli", pkg: "github.com/rancher/fleet/cmd/fleetcli"},
		},
	}
	// Registry is an OCI registry, for charts.
	Registry = Module{
		name:     "registry",
		ldflags:  "-s -w",
		programs: []program{{name: "registry", pkg: "github.com/muster-fleet/muster/test/parts/registry"}},
	}
	CAPI = Module{
		name:    "capi",
		ldflags: "-s -w",
		programs: []program{
			{name: "capi-core", pkg: "sigs.k8s.io/cluster-api/core"},
			{name: "capi-bootstrap", pkg: "sigs.k8s.io/cluster-api/bootstrap/kubeadm"},
			{name: "capi-controlplane", pkg: "sigs.k8s.io/cluster-api/controlplane/kubeadm"},
			{name: "capd", pkg: "sigs.k8s.io/cluster-api/test/infrastructure/docker"},
		},
		patches: []patch{inMemoryListens},
	}
)
