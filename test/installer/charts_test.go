package installer

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/pki"
)

const (
	repositoryUser     = "reader"
	repositoryPassword = "right"
)

// charts are Fleet's charts at versions made up, on a web server and in a registry.
type charts struct {
	dir, source, helm string
	authority         *pki.PKI
	// repository is a Helm repository over https, registry an OCI registry.
	repository, registry string

	mu sync.Mutex
	// answer, if set, is what the web server answers instead.
	answer http.HandlerFunc
}

func newCharts() (*charts, error) {
	root, err := stack.RepoRoot()
	if err != nil {
		return nil, err
	}
	c := &charts{dir: filepath.Join(env.Dir(), "charts")}
	// The chart's own module, and Helm's own command.
	source, err := output(filepath.Join(root, "test", "parts", "fleet"), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/rancher/fleet")
	if err != nil {
		return nil, err
	}
	c.source = filepath.Join(source, "charts")
	if c.helm, err = output(root, "go", "tool", "-n", "-modfile=tools/helm/go.mod", "helm"); err != nil {
		return nil, err
	}
	if _, err := os.Stat(c.helm); err != nil {
		c.helm = filepath.Join(c.dir, "helm")
		if _, err := output(root, "go", "build", "-modfile=tools/helm/go.mod", "-o", c.helm, "helm.sh/helm/v4/cmd/helm"); err != nil {
			return nil, err
		}
	}
	if c.authority, err = pki.New(filepath.Join(c.dir, "pki")); err != nil {
		return nil, err
	}
	if err := c.authority.Issue("server", "charts"); err != nil {
		return nil, err
	}
	if err := c.serve(); err != nil {
		return nil, err
	}
	if err := c.startRegistry(); err != nil {
		return nil, err
	}
	for _, version := range []string{"0.15.3", "0.16.0", "0.16.1", "0.17.0-rc.1"} {
		if err := c.publish(version, nil); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func output(dir, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// publish packs both charts at a version and offers them in both places. A change is made to
// the values of the chart.
func (c *charts) publish(version string, change func(values string) string) error {
	return c.publishWith(version, change, "")
}

// publishWith publishes with one template more in the chart fleet.
func (c *charts) publishWith(version string, change func(values string) string, template string) error {
	for _, name := range []string{"fleet-crd", "fleet"} {
		copied := filepath.Join(c.dir, "source", version, name)
		if err := os.CopyFS(copied, os.DirFS(filepath.Join(c.source, name))); err != nil {
			return err
		}
		if err := c.prepare(copied, version, change); err != nil {
			return err
		}
		if template != "" && name == "fleet" {
			if err := os.WriteFile(filepath.Join(copied, "templates", "more.yaml"), []byte(template), 0o644); err != nil {
				return err
			}
		}
		if _, err := c.run("package", copied, "--version", version, "--app-version", version, "--destination", c.served()); err != nil {
			return err
		}
		archive := filepath.Join(c.served(), name+"-"+version+".tgz")
		if _, err := c.run("push", archive, c.registry, "--ca-file", c.authority.Path("ca.crt"),
			"--username", repositoryUser, "--password", repositoryPassword); err != nil {
			return err
		}
	}
	_, err := c.run("repo", "index", c.served())
	return err
}

// prepare does to a chart what Fleet's release does: the images get a version.
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

func (c *charts) served() string { return filepath.Join(c.dir, "served") }

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

// serve starts the web server.
func (c *charts) serve() error {
	if err := os.MkdirAll(c.served(), 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.repository = "https://" + listener.Addr().String()
	files := http.FileServer(http.Dir(c.served()))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		answer := c.answer
		c.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		if user, password, _ := r.BasicAuth(); user != repositoryUser || password != repositoryPassword {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		files.ServeHTTP(w, r)
	})}
	go func() { _ = server.ServeTLS(listener, c.authority.Path("server.crt"), c.authority.Path("server.key")) }()
	return nil
}

// answering lets the web server answer something else until it is told to stop.
func (c *charts) answering(answer http.HandlerFunc) (stop func()) {
	set := func(answer http.HandlerFunc) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer = answer
	}
	set(answer)
	return func() { set(nil) }
}

func (c *charts) startRegistry() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return err
	}
	c.registry = "oci://" + address + "/fleet"
	return env.StartRegistry(ctx, address, c.authority.Path("server.crt"), c.authority.Path("server.key"), repositoryUser, repositoryPassword)
}
