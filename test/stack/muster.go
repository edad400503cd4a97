package stack

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/test/stack/pod"
	"github.com/muster-fleet/muster/test/stack/process"
)

// workload is one replica of a Deployment, run as a host process.
type workload struct {
	stack      *Stack
	deployment string
	namespace  string
	name       string
	dir        string
	ports      map[int]int
	identity   *pod.Identity
	volumes    []*pod.Volume
	// server is where it finds the API server.
	server string
	// ready is its readiness probe, nil if it has none; timing is how a kubelet uses it.
	ready  func(context.Context) error
	timing pod.ProbeTiming
	// stopFollowing ends the upkeep of token and volumes of the previous start.
	stopFollowing context.CancelFunc
}

// startMuster applies the shipped manifests and runs the Deployments in them.
func (s *Stack) startMuster(ctx context.Context) error {
	if err := s.ApplyMuster(ctx); err != nil {
		return err
	}
	for _, object := range s.shipped {
		if object.GetKind() != "Deployment" {
			continue
		}
		if _, err := s.startReplica(ctx, object.GetNamespace(), object.GetName(), 0); err != nil {
			return err
		}
	}
	return s.routeWebhooks(ctx)
}

// ApplyMuster applies Muster's manifests with kubectl, as a user would. When Muster
// runs already, its processes see the change after a Restart.
func (s *Stack) ApplyMuster(ctx context.Context) error {
	manifests := s.options.Manifests
	if manifests == "" {
		manifests = filepath.Join(s.tools.Root, "manifests", "default")
	}
	rendered, err := s.Kubectl(ctx, "kustomize", manifests)
	if err != nil {
		return err
	}
	if s.shipped, err = decode([]byte(rendered)); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", manifests); err != nil {
		return err
	}
	crds := slices.DeleteFunc(slices.Clone(s.shipped), func(object *unstructured.Unstructured) bool { return object.GetKind() != "CustomResourceDefinition" })
	if err := s.waitServed(ctx, crds); err != nil {
		return err
	}
	s.say("applied %d objects of %s", len(s.shipped), filepath.Base(filepath.Dir(manifests))+"/"+filepath.Base(manifests))
	return nil
}

// Reload builds Muster again, applies its manifests and restarts its processes.
func (s *Stack) Reload(ctx context.Context) error {
	if s.remote != nil {
		return s.remote.do(ctx, "reload", "", nil)
	}
	if s.options.Binaries == nil {
		if err := s.tools.BuildMuster(ctx, s.options.Progress); err != nil {
			return err
		}
	}
	if err := s.ApplyMuster(ctx); err != nil {
		return err
	}
	for _, w := range s.workloads {
		if err := s.Restart(ctx, w.name); err != nil {
			return err
		}
	}
	return s.routeWebhooks(ctx)
}

// UseMuster applies the manifests of another revision of Muster with kubectl, and leads the
// API server to what they describe. Each process is what it was until it is started the next
// time; from then on it is the program of this name. Without manifests and binaries the
// revision is that of the work tree.
func (s *Stack) UseMuster(ctx context.Context, manifests string, binaries map[string]string) error {
	if binaries == nil {
		if err := s.tools.BuildMuster(ctx, s.options.Progress); err != nil {
			return err
		}
	}
	s.options.Manifests, s.options.Binaries = manifests, binaries
	if err := s.ApplyMuster(ctx); err != nil {
		return err
	}
	return s.routeWebhooks(ctx)
}

// StartReplica runs one more replica of a Deployment of Muster, on ports of its own,
// and returns the name of its process. A Service that selects it is balanced from then
// on over all replicas that are ready.
func (s *Stack) StartReplica(ctx context.Context, deployment string) (string, error) {
	if s.remote != nil {
		var name string
		return name, s.remote.do(ctx, "start-replica", deployment, &name)
	}
	count, namespace := 0, ""
	for _, w := range s.workloads {
		if w.deployment == deployment {
			count, namespace = count+1, w.namespace
		}
	}
	if count == 0 {
		return "", fmt.Errorf("no Deployment %q runs here", deployment)
	}
	name, err := s.startReplica(ctx, namespace, deployment, count)
	if err != nil {
		return name, err
	}
	return name, s.routeWebhooks(ctx)
}

func (s *Stack) startReplica(ctx context.Context, namespace, deployment string, index int) (string, error) {
	w := &workload{stack: s, deployment: deployment, namespace: namespace, name: deployment, ports: map[int]int{}}
	if index > 0 {
		w.name = fmt.Sprintf("%s-%d", deployment, index+1)
	}
	w.dir, w.server = filepath.Join(s.dir, "pods", w.name), s.hub.server
	if s.options.Front != nil {
		var err error
		if w.server, err = s.options.Front(w.name, s.hub.address()); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	s.workloads = append(s.workloads, w)
	s.mu.Unlock()
	// It reads the Deployment back on every start, as a new pod would.
	return w.name, s.run(ctx, process.Spec{Name: w.name, Prepare: w.prepare})
}

// prepare makes everything a kubelet would, and says what to run.
func (w *workload) prepare(ctx context.Context, spec *process.Spec) error {
	if w.stopFollowing != nil {
		w.stopFollowing()
	}
	plane := w.stack.hub
	deployment, err := plane.client.AppsV1().Deployments(w.namespace).Get(ctx, w.deployment, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := w.leasePorts(deployment); err != nil {
		return err
	}
	plan, err := pod.New(deployment, pod.Place{Name: w.name + "-0", Dir: filepath.Join(w.dir, "volumes"), Ports: w.ports})
	if err != nil {
		return fmt.Errorf("deployment %s/%s: %w", w.namespace, w.deployment, err)
	}
	w.identity = &pod.Identity{Server: w.server, Namespace: w.namespace, Account: plan.ServiceAccount, Dir: filepath.Join(w.dir, "identity")}
	if err := w.identity.Write(ctx, plane.pki.CA(), plane.client); err != nil {
		return err
	}
	if w.volumes, err = plan.Mount(ctx, plane.client); err != nil {
		return err
	}
	w.follow()
	return w.fill(spec, plan)
}

// follow keeps token and volumes up to date until the next start or the end.
func (w *workload) follow() {
	ctx, cancel := context.WithCancel(w.stack.ctx)
	w.stopFollowing = cancel
	client := w.stack.hub.client
	identity := w.identity
	w.stack.wait.Go(func() { identity.Follow(ctx, client) })
	for _, v := range w.volumes {
		w.stack.wait.Go(func() { v.Follow(ctx, client) })
	}
}

func (w *workload) fill(spec *process.Spec, plan *pod.Plan) error {
	var err error
	if spec.Path, err = w.stack.musterBinary(w.deployment, plan.Command); err != nil {
		return err
	}
	spec.Args, spec.Dir = plan.Args, w.dir
	// In a pod the client finds its identity at a fixed path; on a host this variable
	// leads it there.
	spec.Env = append([]string{"KUBECONFIG=" + w.identity.Kubeconfig()}, plan.Env...)
	spec.Env = append(spec.Env, w.stack.options.MusterEnv...)
	if plan.Ready == nil {
		return nil
	}
	spec.Port = plan.Ready.Port
	spec.Ready = plan.Ready.Check()
	w.ready, w.timing = spec.Ready, plan.Ready.Timing
	return nil
}

// leasePorts gives each declared port the same number on the host if it is free.
func (w *workload) leasePorts(deployment *appsv1.Deployment) error {
	container, err := pod.OnlyContainer(deployment)
	if err != nil {
		return err
	}
	for _, port := range pod.DeclaredPorts(container) {
		if _, done := w.ports[port]; done {
			continue
		}
		if w.ports[port], err = w.stack.leases.Port(port); err != nil {
			return err
		}
	}
	return nil
}

// musterBinary finds the program of a container: by its command, or, when the image
// decides, by the last word of the Deployment's name.
func (s *Stack) musterBinary(deployment, command string) (string, error) {
	if command == "" {
		command = deployment[strings.LastIndex(deployment, "-")+1:]
	}
	if binary, ok := s.options.Binaries[command]; ok {
		return binary, nil
	}
	if binary := s.tools.Bin(command); binary != "" && s.options.Binaries == nil {
		return binary, nil
	}
	return "", fmt.Errorf("deployment %s runs %q, but no such program was built", deployment, command)
}

// shippedAs reads a shipped object into its Go type.
func shippedAs[T any](object *unstructured.Unstructured) (*T, error) {
	typed := new(T)
	return typed, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
}
