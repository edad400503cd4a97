package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// InMemoryClassFile is the manifest of the in-memory provider's ClusterClass.
const InMemoryClassFile = "clusterclass-in-memory.yaml"

// manifestsFormat changes when renderManifests writes something else.
const manifestsFormat = "1"

// CAPIProvider is a Cluster API provider as its module lays it out.
type CAPIProvider struct {
	// Name is that of its process.
	Name string
	// Prefix is what its own kustomization puts before names. Muster's webhooks are
	// ordered against these names by the API server.
	Prefix string
	module string
	folder string
}

// CAPIProviders are those that a stack runs.
var CAPIProviders = []CAPIProvider{
	{"capi-core", "capi-", "sigs.k8s.io/cluster-api", "core"},
	{"capi-bootstrap", "capi-kubeadm-bootstrap-", "sigs.k8s.io/cluster-api", "bootstrap/kubeadm"},
	{"capi-controlplane", "capi-kubeadm-control-plane-", "sigs.k8s.io/cluster-api", "controlplane/kubeadm"},
	{"capd", "capd-", "sigs.k8s.io/cluster-api/test", "infrastructure/docker"},
}

// renderManifests copies the CRDs and webhook configurations out of the pinned
// modules, once, so that starting a stack needs no Go command.
func renderManifests(ctx context.Context, tools *Tools, progress io.Writer) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, manifestsFormat)
	for _, module := range []Module{Kube, CertManager, Fleet, CAPI} {
		key, err := moduleKey(filepath.Join(tools.Root, "test", "parts", module.name), module)
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
	for _, render := range []func(context.Context, *Tools, string) error{renderCertManager, renderFleet, renderCAPI} {
		if err := render(ctx, tools, part); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(progress, "build: CRDs and webhook configurations (%s)\n", poll.Since(begin))
	return dir, os.Rename(part, dir)
}

func renderCertManager(ctx context.Context, tools *Tools, out string) error {
	dir, err := moduleDir(ctx, tools.Root, "certmanager", "github.com/cert-manager/cert-manager")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "deploy", "crds", "cert-manager.io_*.yaml"))
	if err != nil {
		return err
	}
	return concatenate(filepath.Join(out, "cert-manager-crds.yaml"), files...)
}

func renderFleet(ctx context.Context, tools *Tools, out string) error {
	dir, err := moduleDir(ctx, tools.Root, "fleet", "github.com/rancher/fleet")
	if err != nil {
		return err
	}
	return concatenate(filepath.Join(out, "fleet-crds.yaml"), filepath.Join(dir, "charts", "fleet-crd", "templates", "crds.yaml"))
}

// renderCAPI builds the CRDs with the providers' own kustomizations: they add the
// contract labels and the conversion stanza that the generated bases lack.
func renderCAPI(ctx context.Context, tools *Tools, out string) error {
	for _, provider := range CAPIProviders {
		dir, err := moduleDir(ctx, tools.Root, "capi", provider.module)
		if err != nil {
			return err
		}
		config := filepath.Join(dir, filepath.FromSlash(provider.folder), "config")
		cmd := exec.CommandContext(ctx, tools.Bin("kubectl"), "kustomize", filepath.Join(config, "crd"))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		crds, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("kustomize %s: %w\n%s", config, err, process.LastLines(stderr.String(), 20))
		}
		if err := os.WriteFile(filepath.Join(out, provider.Name+"-crds.yaml"), crds, 0o600); err != nil {
			return err
		}
		if err := concatenate(filepath.Join(out, provider.Name+"-webhooks.yaml"), filepath.Join(config, "webhook", "manifests.yaml")); err != nil {
			return err
		}
	}
	dir, err := moduleDir(ctx, tools.Root, "capi", "sigs.k8s.io/cluster-api/test")
	if err != nil {
		return err
	}
	return concatenate(filepath.Join(out, InMemoryClassFile),
		filepath.Join(dir, "infrastructure", "docker", "templates", InMemoryClassFile))
}

func moduleDir(ctx context.Context, root, part, path string) (string, error) {
	return ModuleDir(ctx, filepath.Join(root, "test", "parts", part), path)
}

// ModuleDir finds the source of a module that the module in a folder requires, downloading it
// if need be.
func ModuleDir(ctx context.Context, from, path string) (string, error) {
	find := func() (string, error) {
		dir, err := runGo(ctx, from, "list", "-m", "-f", "{{.Dir}}", path)
		return strings.TrimSpace(string(dir)), err
	}
	if dir, err := find(); err != nil || dir != "" {
		return dir, err
	}
	if _, err := runGo(ctx, from, "mod", "download", path); err != nil {
		return "", err
	}
	return find()
}

func concatenate(out string, files ...string) error {
	if len(files) == 0 {
		return fmt.Errorf("nothing to write to %s", out)
	}
	var all bytes.Buffer
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all.WriteString("---\n")
		all.Write(content)
		all.WriteString("\n")
	}
	return os.WriteFile(out, all.Bytes(), 0o600)
}
