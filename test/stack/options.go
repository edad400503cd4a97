package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/test/stack/parts"
)

// Profile specifies which systems run.
type Profile string

const (
	// API runs etcd, kube-apiserver, kube-controller-manager and cert-manager, with
	// the CRDs of Cluster API and Fleet but none of their controllers. The stack plays the part of Fleet that gives
	// each Fleet Cluster its namespace (played.go).
	API Profile = "api"
	// Full runs Cluster API's and Fleet's controllers as well.
	Full Profile = "full"
)

// Build builds the programs of a profile.
func Build(ctx context.Context, profile Profile, progress io.Writer, more ...parts.Module) (*parts.Tools, error) {
	root, err := RepoRoot()
	if err != nil {
		return nil, err
	}
	modules := []parts.Module{parts.Kube, parts.CertManager}
	if profile == Full {
		modules = append(modules, parts.Fleet, parts.CAPI, parts.CAPIControlPlane)
	}
	return parts.Build(ctx, root, append(modules, more...), progress)
}

// RepoRoot returns the root of the work tree that the working directory is in.
func RepoRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		content, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(content), "module github.com/muster-fleet/muster\n") {
			return dir, nil
		}
	}
	return "", errors.Join(err, errors.New("the working directory is in no work tree of Muster"))
}

// Options define a stack.
type Options struct {
	// Profile defaults to API.
	Profile Profile
	// Dir holds all files of the stack. Empty means a temporary directory that Down removes.
	Dir string
	// WithoutCertManager leaves out cert-manager's process; its CRDs are still installed.
	WithoutCertManager bool
	// WithoutFleet leaves out what Fleet's charts install: its CRDs and its controllers. Its programs are still
	// built, for a node to run (StartNode).
	WithoutFleet bool
	// Unplayed leaves out the part of Fleet that the stack plays in profile API: the test plays it.
	Unplayed bool
	// RuntimeSDK turns this feature gate of Cluster API on: the hooks of a Cluster's lifecycle.
	RuntimeSDK bool
	// CheckIn is the interval at which Fleet's agents check in, such as 5s; 15m if empty, as in Fleet's chart.
	CheckIn string
	// Fleet runs Fleet's controllers in profile API, too.
	Fleet bool
	// Muster applies the shipped manifests and runs Muster's own Deployments.
	Muster bool
	// Manifests is the kustomization to apply for Muster; manifests/default if empty.
	Manifests string
	// Binaries maps the names of Muster's commands to the programs to run instead of those built from cmd/. If it
	// is nil, the folder in MUSTER_PROGRAMS may hold programs.
	Binaries map[string]string
	// Front, if set, returns the address at which one of Muster's processes reaches the API server. A test may put
	// a proxy there.
	Front func(process string, server APIServer) (address string, err error)
	// Progress receives progress messages; nil means no output.
	Progress io.Writer
	// Parts are built in addition to the profile's programs, for Deployments to run (AdoptPart).
	Parts []parts.Module
	// Tools are the result of an earlier Build; nil means build now.
	Tools *parts.Tools

	// changed is called when the list of processes changes.
	changed func(*Stack)
}

// APIServer says how to reach an API server, and holds the certificate with which a proxy can stand in for it.
type APIServer struct {
	URL string
	// CAFile holds the certificate authority. CertFile and KeyFile hold the serving certificate.
	CAFile, CertFile, KeyFile string
}

func (o Options) withDefaults() (Options, error) {
	if o.Profile == "" {
		o.Profile = API
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.changed == nil {
		o.changed = func(*Stack) {}
	}
	if folder := os.Getenv(programsVariable); o.Muster && o.Binaries == nil && folder != "" {
		var err error
		if o.Binaries, err = programsIn(folder); err != nil {
			return o, err
		}
		fmt.Fprintf(o.Progress, "muster: the programs of %s\n", folder)
	}
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "muster-stack-")
		if err != nil {
			return o, err
		}
		o.Dir = dir
	}
	return o, os.MkdirAll(o.Dir, 0o755)
}

// programsVariable names a folder with programs of Muster, such as the ones from its images. They replace the
// programs that are built from cmd/.
const programsVariable = "MUSTER_PROGRAMS"

// programsIn returns the programs of a folder by the names of their commands.
func programsIn(folder string) (map[string]string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", programsVariable, err)
	}
	programs := map[string]string{}
	for _, file := range files {
		if info, err := file.Info(); err == nil && info.Mode().IsRegular() && info.Mode()&0o100 != 0 {
			programs[file.Name()] = filepath.Join(folder, file.Name())
		}
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("%s: %s has no program", programsVariable, folder)
	}
	return programs, nil
}
