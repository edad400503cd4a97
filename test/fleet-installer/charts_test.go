package fleetinstaller

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack/pki"
)

// charts are Fleet's charts at made-up versions, in a repository and in a registry.
type charts struct {
	dir, source, helm string
	repository        *repository.Repository
	// registry is an OCI registry; ca contains the authorities of both.
	registry string
	ca       []byte
}

func newCharts() (*charts, error) {
	c := &charts{dir: filepath.Join(env.Dir(), "charts"), repository: repository.New()}
	// The test uses the chart of Fleet's own module, and Helm's own command.
	source, err := fixture.ModuleDir("test/parts/controllers", "github.com/rancher/fleet")
	if err != nil {
		return nil, err
	}
	c.source = filepath.Join(source, "charts")
	if c.helm, err = fixture.Program("tools/helm", "helm.sh/helm/v4/cmd/helm", c.dir); err != nil {
		return nil, err
	}
	if err := c.startRegistry(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "ca.crt"), c.ca, 0o600); err != nil {
		return nil, err
	}
	for _, version := range []string{"0.15.3", "0.16.0", "0.16.1", "0.17.0-rc.1"} {
		if err := c.publish(version, nil); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// publish packs both charts at a version and offers them in both places. change changes the values of the chart;
// templates are added to the chart fleet.
func (c *charts) publish(version string, change func(values string) string, templates ...string) error {
	for _, name := range []string{"fleet-crd", "fleet"} {
		copied := filepath.Join(c.dir, "source", version, name)
		if err := os.CopyFS(copied, os.DirFS(filepath.Join(c.source, name))); err != nil {
			return err
		}
		if err := c.prepare(copied, version, change); err != nil {
			return err
		}
		if len(templates) > 0 && name == "fleet" {
			if err := os.WriteFile(filepath.Join(copied, "templates", "more.yaml"), []byte(strings.Join(templates, "---\n")), 0o644); err != nil {
				return err
			}
		}
		if _, err := c.run("package", copied, "--version", version, "--app-version", version, "--destination", c.dir); err != nil {
			return err
		}
		file := filepath.Join(c.dir, name+"-"+version+".tgz")
		archive, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		c.repository.PublishArchive(name, version, archive)
		if _, err := c.run(c.authorized("push", file, c.registry)...); err != nil {
			return err
		}
	}
	return nil
}

// authorized adds the credentials and authorities of the repository and the registry to a Helm command.
func (c *charts) authorized(args ...string) []string {
	return append(args, "--ca-file", filepath.Join(c.dir, "ca.crt"), "--username", repository.Username, "--password", repository.Password)
}

// prepare changes a chart as Fleet's release process does: the images get a version.
func (c *charts) prepare(dir, version string, change func(values string) string) error {
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o755) // The module cache is read-only.
	}); err != nil {
		return err
	}
	path := filepath.Join(dir, "values.yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	values := strings.ReplaceAll(string(content), "tag: dev", "tag: v"+version)
	if change != nil {
		values = change(values)
	}
	return os.WriteFile(path, []byte(values), 0o644)
}

// run runs Helm's own command, as the administrator.
func (c *charts) run(args ...string) (string, error) {
	cmd := exec.Command(c.helm, args...)
	home := filepath.Join(c.dir, "home")
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + env.Kubeconfig, "HELM_REGISTRY_CONFIG=" + filepath.Join(home, "registry.json")}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

func (c *charts) startRegistry() error {
	authority, err := pki.New(filepath.Join(c.dir, "pki"))
	if err != nil {
		return err
	}
	if err := authority.Issue("server", "charts"); err != nil {
		return err
	}
	c.ca = append(append([]byte{}, c.repository.CA...), authority.CA()...)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return err
	}
	c.registry = "oci://" + address + "/fleet"
	return env.StartRegistry(ctx, address, authority.Path("server.crt"), authority.Path("server.key"), repository.Username, repository.Password)
}
