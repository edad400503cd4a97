package parts

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/test/stack/files"
)

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

// patch replaces text in one file of a pinned module while it is compiled. It is
// for what cannot be configured and would keep two stacks from one machine.
type patch struct {
	module string
	file   string
	// replace maps what must occur in the file to what takes its place.
	replace map[string]string
}

// inMemoryListens binds the in-memory provider's servers to its own address (POD_IP),
// which it only writes into kubeconfigs, instead of to all: ports are fixed.
var inMemoryListens = patch{
	module: "sigs.k8s.io/cluster-api/test",
	file:   "infrastructure/inmemory/pkg/server/mux.go",
	replace: map[string]string{
		`net.Listen("tcp", fmt.Sprintf(":%d", wcl.Port()))`:        `net.Listen("tcp", net.JoinHostPort(m.host, fmt.Sprint(wcl.Port())))`,
		`net.Listen("tcp", fmt.Sprintf(":%d", options.DebugPort))`: `net.Listen("tcp", net.JoinHostPort(m.host, fmt.Sprint(options.DebugPort)))`,
	},
}

// patchModules copies the modules concerned, patches the copies, and returns a module
// file that builds with them in place of the originals.
func patchModules(ctx context.Context, root, part, out string, patches []patch) (string, error) {
	from := filepath.Join(root, "test", "parts", part)
	if err := os.RemoveAll(out); err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	modfile, err := os.ReadFile(filepath.Join(from, "go.mod"))
	if err != nil {
		return "", err
	}
	for i, p := range patches {
		copied := filepath.Join(out, fmt.Sprintf("module-%d", i))
		if err := p.apply(ctx, root, part, copied); err != nil {
			return "", err
		}
		modfile = fmt.Appendf(modfile, "\nreplace %s => %s\n", p.module, copied)
	}
	sums, err := os.ReadFile(filepath.Join(from, "go.sum"))
	if err != nil {
		return "", err
	}
	if err := files.WriteAtomically(filepath.Join(out, "go.sum"), sums); err != nil {
		return "", err
	}
	path := filepath.Join(out, "go.mod")
	return path, files.WriteAtomically(path, modfile)
}

func (p patch) apply(ctx context.Context, root, part, to string) error {
	dir, err := moduleDir(ctx, root, part, p.module)
	if err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		return err
	}
	file := filepath.Join(to, filepath.FromSlash(p.file))
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(content)
	for before, after := range p.replace {
		if !strings.Contains(text, before) {
			return fmt.Errorf("%s of %s does not hold %q any more", p.file, p.module, before)
		}
		text = strings.ReplaceAll(text, before, after)
	}
	return files.WriteAtomically(file, []byte(text))
}
