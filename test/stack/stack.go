// Package stack runs Muster and the systems around it as host processes on loopback: etcd, kube-apiserver,
// kube-controller-manager, cert-manager, Cluster API with its in-memory infrastructure, Fleet, and Muster itself.
// It needs no container runtime, no cluster and no installed tool but Go.
//
// It owns processes, ports, certificates and files. It does not know what Muster does: it starts Muster's processes
// from the Deployments that the shipped manifests created, with their arguments, environment, ServiceAccount and
// Secret mounts.
//
// Each package below this one knows one thing, and none knows the whole: parts builds the programs, process runs
// one, pod plays the kubelet, balancer a Service, pki the certificate authority, and ports keeps stacks apart.
//
// `make up`, the demo and Go tests use the same code. The stack of a test is in a temporary directory, uses ports
// that it chooses at run time, and dies with the test. The stack of `make up` is in .dev, and a supervisor process
// holds it.
package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/balancer"
	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/pki"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/ports"
	"github.com/muster-fleet/muster/test/stack/process"
)

// Stack is a running set of processes around one API server.
type Stack struct {
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string

	options Options
	dir     string
	tools   *parts.Tools
	leases  *ports.Leases
	// remove means that the stack made its directory and must remove it.
	remove bool
	begin  time.Time

	hub        *controlPlane
	downstream *controlPlane
	client     client.Client
	// capi holds the webhook ports of Cluster API's managers.
	capi map[string]int

	// ctx ends when the stack stops, and background work ends with it.
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
	// musterBuilt gets the result of the build of Muster's commands.
	musterBuilt chan error

	mu        sync.Mutex
	processes []*process.Process
	workloads []*workload
	// balancers are in front of Deployments with several replicas.
	balancers map[servedPort]*balancer.Balancer
	// hosted are the clusters of the host provider, nil until it starts.
	hosted map[types.NamespacedName]*hostedCluster
	// shipped are the objects of Muster's manifests, as they ship.
	shipped []*unstructured.Unstructured

	// remote is set on a stack that another process holds.
	remote *remote
}

// Up builds the programs, starts a stack, and returns when everything is ready. Callers must call Down at the end.
// The processes die with the calling process in any case.
func Up(ctx context.Context, options Options) (*Stack, error) {
	temporary := options.Dir == ""
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	tools := options.Tools
	if tools == nil {
		more := options.Parts
		if options.WithoutFleet || options.Fleet {
			more = append(more, parts.Fleet)
		}
		if tools, err = Build(ctx, options.Profile, options.Progress, more...); err != nil {
			return nil, err
		}
	}
	s := &Stack{options: options, dir: options.Dir, tools: tools, leases: ports.New(), remove: temporary, begin: time.Now(), musterBuilt: make(chan error, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if options.Muster && options.Binaries == nil { // While the rest starts, which is mostly waiting.
		s.wait.Go(func() { s.musterBuilt <- tools.BuildMuster(s.ctx, options.Progress) })
	} else {
		s.musterBuilt <- nil
	}
	if err := s.startAll(ctx); err != nil {
		// The directory stays, because its logs say what went wrong.
		s.remove = false
		return nil, errors.Join(err, s.Down())
	}
	if options.Profile == Full {
		// Later tests may need the programs that run Pods. If this build fails, workloadSpecs tries again and
		// reports the error.
		s.wait.Go(func() { _, _ = parts.Build(s.ctx, tools.Root, parts.Nodes, options.Progress) })
	}
	return s, nil
}

func (s *Stack) startAll(ctx context.Context) error {
	s.Kubeconfig = filepath.Join(s.dir, "kubeconfig")
	var err error
	if s.hub, err = s.startControlPlane(ctx, ""); err != nil {
		return err
	}
	if err := pki.WriteKubeconfig(s.Kubeconfig, s.hub.admin); err != nil {
		return err
	}
	config, err := s.RESTConfig()
	if err != nil {
		return err
	}
	if s.client, err = newClient(config); err != nil {
		return err
	}
	if s.options.Profile == Full {
		if err := s.chooseCAPIPorts(); err != nil {
			return err
		}
	}
	if err := s.installCRDs(ctx); err != nil {
		return err
	}
	if err := s.startControllers(ctx); err != nil {
		return err
	}
	if s.options.Profile == API && !s.options.Fleet && !s.options.WithoutFleet && !s.options.Unplayed {
		if err := s.playFleet(ctx); err != nil {
			return err
		}
	}
	select {
	case err = <-s.musterBuilt:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	if s.options.Muster {
		if err := s.startMuster(ctx); err != nil {
			return err
		}
	}
	s.say("ready (%s)", poll.Since(s.begin))
	return nil
}

// startControllers starts all clients of the API server at once.
func (s *Stack) startControllers(ctx context.Context) error {
	manager, err := s.controllerManagerSpec(s.hub, "kube-controller-manager", baseControllers)
	if err != nil {
		return err
	}
	plan := []func() ([]process.Spec, error){s.certManagerSpecs}
	if s.options.Profile == Full {
		plan = append(plan, s.capiSpecs)
	}
	if s.options.Fleet || s.options.Profile == Full && !s.options.WithoutFleet {
		// "-" means that the local cluster is not managed.
		if err := s.configureFleet(ctx, map[string]string{"namespace": "-"}); err != nil {
			return err
		}
		plan = append(plan, s.fleetSpecs)
	}
	specs := []process.Spec{manager}
	for _, add := range plan {
		more, err := add()
		if err != nil {
			return err
		}
		specs = append(specs, more...)
	}
	if err := s.runAll(ctx, specs); err != nil || s.options.Profile != Full {
		return err
	}
	return s.installCAPIWebhooks(ctx)
}

// Down stops every process, clients first, and returns when all have exited.
func (s *Stack) Down() error {
	if s.remote != nil {
		return errors.New("this stack is held by a supervisor: stop it with `stack down`")
	}
	s.cancel()
	// Background work might start a process again.
	s.wait.Wait()
	s.mu.Lock()
	processes := slices.Clone(s.processes)
	s.mu.Unlock()
	begin := time.Now()
	err := stopInLayers(processes)
	s.say("stopped (%s)", poll.Since(begin))
	s.leases.Release()
	if s.remove {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// stopInLayers stops clients before the API servers that they would miss, and API servers before their etcd.
func stopInLayers(processes []*process.Process) error {
	layer := func(p *process.Process) int {
		switch {
		case strings.HasSuffix(p.Name(), "etcd"):
			return 2
		case strings.HasSuffix(p.Name(), "kube-apiserver"):
			return 1
		default:
			return 0
		}
	}
	var problems []error
	for number := range 3 {
		var ends errgroup.Group
		for _, p := range slices.Backward(processes) {
			if layer(p) == number {
				ends.Go(func() error { return p.SignalAndWait(syscall.SIGTERM) })
			}
		}
		problems = append(problems, ends.Wait())
	}
	return errors.Join(problems...)
}

// Dir returns the directory of the stack's files.
func (s *Stack) Dir() string { return s.dir }

// EtcdURL returns etcd's address. Its single stream of events outlives the API server, and has the changes of all
// kinds in order.
func (s *Stack) EtcdURL() string { return s.hub.etcd }

// RESTConfig returns the administrator's configuration, without client-side limits.
func (s *Stack) RESTConfig() (*rest.Config, error) {
	kubeconfig, err := clientcmd.LoadFromFile(s.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return restConfig(kubeconfig)
}

// newClient returns a client for objects of any kind, with the types of Cluster API and of Kubernetes' core.
func newClient(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	return client.New(config, client.Options{Scheme: scheme})
}

// Program returns the path of a program that was built for the stack, such as kubectl or one of Muster's.
func (s *Stack) Program(name string) string { return s.tools.Bin(name) }

// Kubectl runs kubectl as the administrator and returns its standard output. An error contains its standard error.
func (s *Stack) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.kubectl(ctx, s.Kubeconfig, "", args...)
}

// KubectlInput is Kubectl with a standard input.
func (s *Stack) KubectlInput(ctx context.Context, input string, args ...string) (string, error) {
	return s.kubectl(ctx, s.Kubeconfig, input, args...)
}

func (s *Stack) kubectl(ctx context.Context, kubeconfig, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.tools.Bin("kubectl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + filepath.Join(s.dir, "home"), "PATH=" + os.Getenv("PATH"), "KUBECTL_APPLYSET=true"}
	cmd.Stdin = strings.NewReader(input)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(stdout), err
}

func (s *Stack) say(format string, args ...any) {
	fmt.Fprintf(s.options.Progress, "%6s  %s\n", time.Since(s.begin).Round(100*time.Millisecond), fmt.Sprintf(format, args...))
}

// lease reserves a port, and returns its address, too.
func (s *Stack) lease() (port int, address string, err error) {
	port, err = s.leases.Port(0)
	return port, fmt.Sprintf("127.0.0.1:%d", port), err
}
