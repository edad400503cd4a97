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
	"k8s.io/apimachinery/pkg/runtime/schema"

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
	// server is the address at which the process reaches the API server.
	server string
	// ready is the readiness probe, nil if there is none; timing is how a kubelet runs it.
	ready  func(context.Context) error
	timing pod.ProbeTiming
	// stopFollowing stops the updates of token and volumes of the previous start.
	stopFollowing context.CancelFunc
}

// startMuster applies the shipped manifests and runs the Deployments in them.
func (s *Stack) startMuster(ctx context.Context) error {
	if err := s.applyMuster(ctx); err != nil {
		return err
	}
	return s.runShipped(ctx, s.shipped)
}

// runShipped runs the Deployments among these objects, and routes the API server to the webhooks among them.
func (s *Stack) runShipped(ctx context.Context, objects []*unstructured.Unstructured) (err error) {
	for _, object := range objects {
		if object.GetKind() != "Deployment" {
			continue
		}
		if _, unknown := s.process(object.GetName()); unknown == nil { // An earlier test stopped it.
			err = s.Restart(ctx, object.GetName())
		} else {
			_, err = s.startReplica(ctx, object.GetNamespace(), object.GetName(), 0)
		}
		if err != nil {
			return err
		}
	}
	return s.route(ctx, objects)
}

// applyMuster applies Muster's manifests. Processes that run already see the change after a Restart.
func (s *Stack) applyMuster(ctx context.Context) (err error) {
	manifests := s.options.Manifests
	if manifests == "" {
		manifests = filepath.Join(s.tools.Root, "manifests", "default")
	}
	s.shipped, err = s.applyKustomization(ctx, manifests)
	return err
}

// applyKustomization applies a kustomization with kubectl, as a user would.
func (s *Stack) applyKustomization(ctx context.Context, dir string) ([]*unstructured.Unstructured, error) {
	rendered, err := s.Kubectl(ctx, "kustomize", dir)
	if err != nil {
		return nil, err
	}
	objects, err := decode([]byte(rendered))
	if err != nil {
		return nil, err
	}
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", dir); err != nil {
		return nil, err
	}
	crds := slices.DeleteFunc(slices.Clone(objects), func(object *unstructured.Unstructured) bool { return object.GetKind() != "CustomResourceDefinition" })
	if err := s.waitServed(ctx, crds); err != nil {
		return nil, err
	}
	s.say("applied %d objects of %s", len(objects), filepath.Base(filepath.Dir(dir))+"/"+filepath.Base(dir))
	return objects, nil
}

// StartHelm starts the component for HelmChartProxies, which may read Secrets in all namespaces.
func (s *Stack) StartHelm(ctx context.Context) error {
	if err := s.StartComponent(ctx, "helm"); err != nil {
		return err
	}
	return s.StartComponent(ctx, "helm-read-secrets")
}

// StartComponent applies an optional part of Muster, a kustomization under manifests/, runs its Deployments, and
// routes its webhooks to their processes.
func (s *Stack) StartComponent(ctx context.Context, name string) error {
	if s.remote != nil {
		return s.remote.do("start-component", name, nil)
	}
	objects, err := s.applyKustomization(ctx, filepath.Join(s.tools.Root, "manifests", name))
	if err != nil {
		return err
	}
	return s.runShipped(ctx, objects)
}

// Reload builds Muster again, applies its manifests and restarts its processes.
func (s *Stack) Reload(ctx context.Context) error {
	if s.remote != nil {
		return s.remote.do("reload", "", nil)
	}
	if err := s.tools.BuildMuster(ctx, s.options.Progress); err != nil {
		return err
	}
	if err := s.applyMuster(ctx); err != nil {
		return err
	}
	for _, w := range s.workloads {
		if err := s.Restart(ctx, w.name); err != nil {
			return err
		}
	}
	return s.route(ctx, s.shipped)
}

// UseMuster applies the manifests of another revision of Muster with kubectl, and routes the API server to the
// webhooks in them. A process keeps its program until its next start; then it runs the program of that name in
// binaries. Without manifests and binaries, UseMuster goes back to the work tree.
func (s *Stack) UseMuster(ctx context.Context, manifests string, binaries map[string]string) error {
	if binaries == nil {
		if err := s.tools.BuildMuster(ctx, s.options.Progress); err != nil {
			return err
		}
	}
	s.options.Manifests, s.options.Binaries = manifests, binaries
	if err := s.applyMuster(ctx); err != nil {
		return err
	}
	return s.route(ctx, s.shipped)
}

// adopted are the kinds that define the processes and how the API server finds them.
var adopted = []schema.GroupVersionKind{
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Version: "v1", Kind: "Service"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"},
}

// Adopt runs the Deployments of Muster that a user installed into a namespace, and routes the API server to their
// webhooks, as the nodes and the Service network of a cluster would. It returns the names of the processes.
func (s *Stack) Adopt(ctx context.Context, namespace string) ([]string, error) {
	if err := s.tools.BuildMuster(ctx, s.options.Progress); err != nil {
		return nil, err
	}
	s.shipped = nil
	return s.AdoptPart(ctx, namespace)
}

// AdoptPart does the same for the Deployments of one of Options.Parts, in addition to Muster.
func (s *Stack) AdoptPart(ctx context.Context, namespace string) ([]string, error) {
	var names []string
	var installed []*unstructured.Unstructured
	for _, kind := range adopted {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := s.client.List(ctx, list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			object := &list.Items[i]
			isIn, err := isIn(object, namespace)
			if err != nil {
				return nil, err
			}
			if isIn {
				installed = append(installed, object)
			}
			if isIn && kind.Kind == "Deployment" {
				names = append(names, object.GetName())
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no Deployment in namespace %s", namespace)
	}
	s.shipped = append(installed, slices.DeleteFunc(s.shipped, func(its *unstructured.Unstructured) bool {
		isIn, _ := isIn(its, namespace)
		return isIn
	})...)
	return names, s.runShipped(ctx, installed)
}

// isIn reports whether an object is in a namespace, or sends requests to one.
func isIn(object *unstructured.Unstructured, namespace string) (bool, error) {
	configuration, err := typed[webhookConfiguration](object)
	for _, webhook := range configuration.Webhooks {
		if to := webhook.ClientConfig.Service; to != nil && to.Namespace == namespace {
			return true, nil
		}
	}
	return object.GetNamespace() == namespace, err
}

// Route routes the API server to the webhooks of the adopted Deployments again, after a user has applied their
// manifests again.
func (s *Stack) Route(ctx context.Context) error { return s.route(ctx, s.shipped) }

// StartReplica runs one more replica of a Deployment of Muster, on ports of its own, and returns the name of its
// process. From then on, a Service that selects the Deployment balances over all ready replicas.
func (s *Stack) StartReplica(ctx context.Context, deployment string) (string, error) {
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
	return name, s.route(ctx, s.shipped)
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
	// The process reads the Deployment again at every start, as a new pod would.
	return w.name, s.run(ctx, process.Spec{Name: w.name, Prepare: w.prepare})
}

// prepare makes everything that a kubelet would make, and sets what the process runs.
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
	plan, err := pod.New(deployment, pod.Dirs{Name: w.name + "-0", Dir: filepath.Join(w.dir, "volumes"), Ports: w.ports})
	if err != nil {
		return fmt.Errorf("deployment %s/%s: %w", w.namespace, w.deployment, err)
	}
	identity := &pod.Identity{Server: w.server, Namespace: w.namespace, Account: plan.ServiceAccount, Dir: filepath.Join(w.dir, "identity")}
	if err := identity.Write(ctx, plane.pki.CA(), plane.client); err != nil {
		return err
	}
	volumes, err := plan.Mount(ctx, plane.client)
	if err != nil {
		return err
	}
	// Token and volumes are kept up to date until the next start or the end.
	following, cancel := context.WithCancel(w.stack.ctx)
	w.stopFollowing = cancel
	w.stack.wait.Go(func() { identity.Follow(following, plane.client) })
	for _, v := range volumes {
		w.stack.wait.Go(func() { v.Follow(following, plane.client) })
	}
	if spec.Path, err = w.stack.binary(w.deployment, plan.Command); err != nil {
		return err
	}
	spec.Args, spec.Dir = plan.Args, w.dir
	if w.deployment == "muster-helm" { // Repositories are on this host.
		spec.Args = append(spec.Args, "--denied-networks=169.254.0.0/16")
	}
	// In a pod the client finds its identity at a fixed path. On a host this variable names the path.
	spec.Env = append([]string{"KUBECONFIG=" + identity.Kubeconfig()}, plan.Env...)
	if plan.Tmp != "" {
		spec.Env = append(spec.Env, "TMPDIR="+plan.Tmp)
	}
	if plan.Ready != nil {
		spec.Port, spec.Ready = plan.Ready.Port, plan.Ready.Check()
		w.ready, w.timing = spec.Ready, plan.Ready.Timing
	}
	return nil
}

// leasePorts gives each declared port the same number on the host if that is free.
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

// binary returns the program of a container: for a part by the Deployment's name; for Muster by the command or, if
// the image decides, by the last word of the Deployment's name.
func (s *Stack) binary(deployment, command string) (string, error) {
	if part := s.tools.Bin(deployment); part != "" {
		return part, nil
	}
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
