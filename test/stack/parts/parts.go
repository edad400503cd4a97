// Package parts builds the programs of a stack: the ones that modules under test/parts pin, Muster's own, and the
// CRDs and webhook configurations that come with them.
package parts

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Module is a set of programs that Go builds together from one of the modules under test/parts, which pin them
// separately from Muster's own requirements.
type Module struct {
	name, dir string
	ldflags   string
	programs  []program
	patch     *patch
}

// program is one binary of a Module.
type program struct {
	name string
	pkg  string
}

// builtName returns the name that Go gives the program.
func (p program) builtName() string { return path.Base(strings.TrimSuffix(p.pkg, "/v3")) }

// CAAPHModule is the module of CAAPH. Its program is in the module's root.
const CAAPHModule = "sigs.k8s.io/cluster-api-addon-provider-helm"

// versionFlags make the Kubernetes binaries report their version. If Go builds them from modules, they report
// v0.0.0-master, which clients refuse to parse.
func versionFlags(version string) string {
	minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
	return " -X k8s.io/component-base/version.gitVersion=" + version +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=" + minor +
		" -X k8s.io/client-go/pkg/version.gitVersion=" + version
}

// The modules. Scheduler and FleetAgent are needed only to run Pods, and are built before the first Pod.
var (
	Kube = Module{name: "kube", dir: Chosen.kube, ldflags: versionFlags(Chosen.Kubernetes), programs: []program{
		{"etcd", "go.etcd.io/etcd/server/v3"},
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
		{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
		{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
	}}
	Scheduler = Module{name: "scheduler", dir: Chosen.kube, ldflags: versionFlags(Chosen.Kubernetes), programs: []program{
		{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	}}
	CertManager = Module{name: "cert-manager", dir: "controllers", programs: []program{{"cert-manager", "./cert-manager"}}}
	Fleet       = Module{name: "fleet", dir: Chosen.Controllers, programs: []program{
		{"fleetcontroller", "github.com/rancher/fleet/cmd/fleetcontroller"},
	}}
	FleetAgent = Module{name: "fleet-agent", dir: Chosen.Controllers, programs: []program{
		{"fleetagent", "github.com/rancher/fleet/cmd/fleetagent"},
		{"fleetcli", "github.com/rancher/fleet/cmd/fleetcli"},
	}}
	// Registry is an OCI registry, for charts.
	Registry = Module{name: "registry", dir: "controllers", programs: []program{{"registry", "./registry"}}}
	// CAAPH is cluster-api-addon-provider-helm, named after its Deployment. Only the test of the migration from
	// CAAPH builds it.
	CAAPH = Module{name: "caaph", dir: "caaph", programs: []program{{"caaph-controller-manager", CAAPHModule}}}
	CAPI  = Module{name: "capi", dir: Chosen.Controllers, patch: &inMemory, programs: []program{
		{"capi-core", path.Join(capiModule, Chosen.core)},
		{"capi-bootstrap", "sigs.k8s.io/cluster-api/bootstrap/kubeadm"},
		{"capd", "sigs.k8s.io/cluster-api/test/infrastructure/docker"},
	}}
	// CAPIControlPlane is separate, because Go names a program by the last element of its path, and two of Cluster
	// API's programs share it.
	CAPIControlPlane = Module{name: "capi-controlplane", dir: Chosen.Controllers, programs: []program{
		{"capi-controlplane", "sigs.k8s.io/cluster-api/controlplane/kubeadm"},
	}}
)

// Nodes are the modules that are needed to run Pods.
var Nodes = []Module{Scheduler, FleetAgent}

var all = slices.Concat([]Module{Kube, CertManager, Fleet, Registry, CAAPH, CAPI, CAPIControlPlane}, Nodes)

// patch replaces text in a pinned module while Go compiles it. It is for behavior that cannot be configured and would
// prevent two stacks on one machine, and for code that does not compile with the libraries of the other parts.
type patch struct {
	module string
	// replace maps files to text that must occur in them, and this text to its replacement.
	replace map[string]map[string]string
}

// inMemory binds the in-memory provider's servers to the provider's own address (POD_IP) instead of to all addresses,
// because their ports are fixed. The original only writes that address into kubeconfigs. It also embeds in the servers
// that play etcd what gRPC's generator requires of each server since etcd 3.7, which Kubernetes 1.37 needs: the methods
// that a server lacks, and which answer so.
var inMemory = patch{
	module: "sigs.k8s.io/cluster-api/test",
	replace: map[string]map[string]string{
		"infrastructure/inmemory/pkg/server/mux.go": {
			`net.Listen("tcp", fmt.Sprintf(":%d", wcl.Port()))`:        `net.Listen("tcp", net.JoinHostPort(m.host, fmt.Sprint(wcl.Port())))`,
			`net.Listen("tcp", fmt.Sprintf(":%d", options.DebugPort))`: `net.Listen("tcp", net.JoinHostPort(m.host, fmt.Sprint(options.DebugPort)))`,
		},
		"infrastructure/inmemory/pkg/server/etcd/handler.go": {
			"type clusterServerServer struct {": "type clusterServerServer struct {\n\tpb.UnimplementedClusterServer",
			"type maintenanceServer struct {":   "type maintenanceServer struct {\n\tpb.UnimplementedMaintenanceServer",
		},
	},
}

// apply copies one of our modules and the module to patch, patches that copy, and returns a module file that uses
// it in place of the original.
func (p *patch) apply(ctx context.Context, dir, out string) (modfile string, err error) {
	source, err := ModuleDir(ctx, dir, p.module)
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(out); err != nil {
		return "", err
	}
	if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
		return "", err
	}
	copied := filepath.Join(out, "patched")
	if err := os.CopyFS(copied, os.DirFS(source)); err != nil {
		return "", err
	}
	for name, replace := range p.replace {
		file := filepath.Join(copied, name)
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		text := string(content)
		for before, after := range replace {
			if !strings.Contains(text, before) {
				return "", fmt.Errorf("%s of %s does not contain %q any more", name, p.module, before)
			}
			text = strings.ReplaceAll(text, before, after)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	_, err = runGo(ctx, out, "mod", "edit", "-replace="+p.module+"="+copied)
	return filepath.Join(out, "go.mod"), err
}
