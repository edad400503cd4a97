package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// InMemoryClassFile is the manifest of the in-memory provider's ClusterClass.
const InMemoryClassFile = "clusterclass-in-memory.yaml"

// manifestsFormat must change when renderManifests writes something else.
const manifestsFormat = "2"

// CAPIProvider is a Cluster API provider with its place in its module.
type CAPIProvider struct {
	// Name is the name of its process.
	Name string
	// Prefix is what its own kustomization puts before names. The API server orders Muster's webhooks among these
	// names.
	Prefix string
	module string
	folder string
}

const (
	capiModule     = "sigs.k8s.io/cluster-api"
	capiTestModule = "sigs.k8s.io/cluster-api/test"
)

// CAPIProviders are the providers that a stack runs.
var CAPIProviders = []CAPIProvider{
	{"capi-core", "capi-", capiModule, Chosen.core},
	{"capi-bootstrap", "capi-kubeadm-bootstrap-", capiModule, "bootstrap/kubeadm"},
	{"capi-controlplane", "capi-kubeadm-control-plane-", capiModule, "controlplane/kubeadm"},
	{"capd", "capd-", capiTestModule, "infrastructure/docker"},
}

// manifest is a file of a stack, made from files of a module. A folder is a kustomization: the kustomizations of
// Cluster API's providers add the contract labels and the conversion stanza that the generated CRDs lack.
type manifest struct{ pinnedBy, file, module, from string }

func manifests() []manifest {
	all := []manifest{
		{CertManager.dir, "cert-manager-crds.yaml", "github.com/cert-manager/cert-manager", "deploy/crds/cert-manager.io_*.yaml"},
		{Fleet.dir, "fleet-crds.yaml", "github.com/rancher/fleet", "charts/fleet-crd/templates/crds.yaml"},
		{CAPI.dir, InMemoryClassFile, capiTestModule, "infrastructure/docker/templates/" + InMemoryClassFile},
	}
	for _, provider := range CAPIProviders {
		all = append(all,
			manifest{CAPI.dir, provider.Name + "-crds.yaml", provider.module, path.Join(provider.folder, "config/crd")},
			manifest{CAPI.dir, provider.Name + "-webhooks.yaml", provider.module, path.Join(provider.folder, "config/webhook/manifests.yaml")})
	}
	return all
}

// renderManifests copies the CRDs and webhook configurations out of the pinned modules once, so that starting a
// stack needs no Go command.
func renderManifests(ctx context.Context, tools *Tools, progress io.Writer) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, manifestsFormat)
	for _, module := range []Module{Kube, CertManager, CAPI} {
		key, err := module.key(tools.Root)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, key)
	}
	dir := filepath.Join(tools.Root, ".cache", "parts", fmt.Sprintf("manifests-%x", hash.Sum(nil)[:6]))
	if files.Exists(dir) {
		return dir, nil
	}
	begin := time.Now()
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return "", err
	}
	for _, m := range manifests() {
		content, err := m.render(ctx, tools)
		if err != nil {
			return "", fmt.Errorf("%s: %w", m.file, err)
		}
		if err := os.WriteFile(filepath.Join(part, m.file), content, 0o600); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(progress, "build: CRDs and webhook configurations (%s)\n", poll.Since(begin))
	return dir, os.Rename(part, dir)
}

func (m manifest) render(ctx context.Context, tools *Tools) ([]byte, error) {
	dir, err := ModuleDir(ctx, filepath.Join(tools.Root, "test", "parts", m.pinnedBy), m.module)
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, m.from))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("%s has no %s: %w", m.module, m.from, err)
	}
	if info, err := os.Stat(paths[0]); err == nil && info.IsDir() {
		cmd := exec.CommandContext(ctx, tools.Bin("kubectl"), "kustomize", paths[0])
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		return out, goError(cmd, err, stderr.String())
	}
	var all []byte
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = fmt.Appendf(all, "---\n%s\n", content)
	}
	return all, nil
}

// ModuleDir returns the source of a module that the module in a folder requires, and downloads it if necessary.
func ModuleDir(ctx context.Context, from, path string) (string, error) {
	if _, err := runGo(ctx, from, "mod", "download", path); err != nil {
		return "", err
	}
	dir, err := runGo(ctx, from, "list", "-m", "-f", "{{.Dir}}", path)
	return strings.TrimSpace(string(dir)), err
}
