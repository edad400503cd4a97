package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/test/stack/pod"
	"github.com/muster-fleet/muster/test/stack/process"
)

// restartAfter is how long a container that has ended stays down, and a Pod that cannot
// be started waits.
const restartAfter = time.Second

// podRun is one Pod on the node.
type podRun struct {
	node  *Node
	pod   *corev1.Pod
	dir   string
	ports *portMap
	// stop ends it; done is closed when nothing of it runs any more.
	stop context.CancelFunc
	done chan struct{}

	begun    metav1.Time
	mu       sync.Mutex // guards the Pod's status
	restarts int32
	last     *corev1.ContainerStateTerminated
}

func (n *Node) newPodRun(p *corev1.Pod, stop context.CancelFunc) *podRun {
	run := &podRun{
		node: n, pod: p, dir: filepath.Join(n.Dir, "pods", p.Namespace+"."+p.Name), ports: &portMap{host: n.Host},
		stop: stop, done: make(chan struct{}), begun: metav1.Now(),
	}
	if p.Spec.HostNetwork {
		run.ports = &n.ports
	}
	return run
}

func (r *podRun) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// play runs the Pod to its end, or until ctx ends.
func (r *podRun) play(ctx context.Context) {
	defer close(r.done)
	for ctx.Err() == nil {
		err := r.start(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			r.report(ctx, corev1.PodPending, waiting("CreateContainerError", err.Error()), false)
		}
		pause(ctx, restartAfter)
	}
}

// start runs the init containers and then the container, again and again if it has to.
// An error means that something could not be started.
func (r *podRun) start(ctx context.Context) error {
	spec := &r.pod.Spec
	if len(spec.Containers) != 1 {
		return fmt.Errorf("a Pod of %d containers is not played", len(spec.Containers))
	}
	r.report(ctx, corev1.PodPending, waiting("ContainerCreating", ""), false)
	for !spec.HostNetwork && !r.node.networkReady() && ctx.Err() == nil {
		pause(ctx, syncEvery)
	}
	for i := range spec.InitContainers {
		if ctx.Err() != nil {
			break
		}
		exit, err := r.runToEnd(ctx, &spec.InitContainers[i], nil)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if exit != nil && spec.RestartPolicy == corev1.RestartPolicyNever {
			r.report(ctx, corev1.PodFailed, waiting("PodInitializing", ""), false)
			return nil
		}
		if exit != nil {
			return fmt.Errorf("init container %s: %w", spec.InitContainers[i].Name, exit)
		}
	}
	for ctx.Err() == nil {
		running := func(ready bool) { r.report(ctx, corev1.PodRunning, runs(), ready) }
		exit, err := r.runToEnd(ctx, &spec.Containers[0], running)
		if err != nil || ctx.Err() != nil {
			return err
		}
		r.last = terminated(exit)
		over := corev1.ContainerState{Terminated: r.last}
		switch {
		case exit == nil && spec.RestartPolicy != corev1.RestartPolicyAlways:
			r.report(ctx, corev1.PodSucceeded, over, false)
			return nil
		case exit != nil && spec.RestartPolicy == corev1.RestartPolicyNever:
			r.report(ctx, corev1.PodFailed, over, false)
			return nil
		}
		r.restarts++
		r.report(ctx, corev1.PodRunning, waiting("CrashLoopBackOff", ""), false)
		pause(ctx, restartAfter)
	}
	return nil
}

// runToEnd runs a container. It returns how it ended, and apart from that what kept it
// from running. It tells when it runs, and when it becomes ready or not any more.
func (r *podRun) runToEnd(ctx context.Context, container *corev1.Container, tell func(ready bool)) (exit, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	spec, ready, err := r.prepare(ctx, container)
	if err != nil {
		return nil, err
	}
	p := r.node.Host.Add(spec)
	defer r.node.Host.Drop(p)
	if err := p.Start(); err != nil {
		return nil, err
	}
	if tell != nil {
		tell(ready == nil)
		if ready != nil {
			go r.probe(ctx, ready, tell)
		}
	}
	if exit = p.Wait(ctx); ctx.Err() != nil {
		// What had to be killed has left its log.
		_ = p.SignalAndWait(syscall.SIGTERM)
	}
	return exit, nil
}

// prepare makes what a kubelet would make for a container, and keeps it up to date until
// ctx ends. It returns what to run, and its readiness probe if it has one.
func (r *podRun) prepare(ctx context.Context, container *corev1.Container) (process.Spec, func(context.Context) error, error) {
	n := r.node
	var none process.Spec
	image, program, err := n.Images.find(container.Image, first(container.Command))
	if err != nil {
		return none, nil, err
	}
	container = container.DeepCopy()
	for _, name := range slices.Sorted(maps.Keys(image.Env)) {
		if !slices.ContainsFunc(container.Env, func(set corev1.EnvVar) bool { return set.Name == name }) {
			container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: image.Env[name]})
		}
	}
	ports, err := r.ports.move(slices.Concat(pod.DeclaredPorts(container), image.Ports))
	if err != nil {
		return none, nil, err
	}
	identity := &pod.Identity{Server: n.Server, Namespace: r.pod.Namespace, Account: r.pod.Spec.ServiceAccountName, Dir: filepath.Join(r.dir, "identity")}
	plan, err := pod.Translate(r.pod.Namespace, &r.pod.Spec, container, pod.Place{
		Name: r.pod.Name, Dir: filepath.Join(r.dir, "volumes"), Ports: ports,
		Node: n.Name, Root: n.root(), Identity: identity.Dir,
	})
	if err != nil {
		return none, nil, err
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + r.dir, "TMPDIR=" + cmp.Or(plan.Tmp, r.dir)}
	if plan.Token {
		if err := identity.Write(ctx, n.CA, n.Client); err != nil {
			return none, nil, err
		}
		go identity.Follow(ctx, n.Client)
		env = append(env, "KUBECONFIG="+identity.Kubeconfig())
	}
	volumes, err := plan.Mount(ctx, n.Client)
	if err != nil {
		return none, nil, err
	}
	for _, v := range volumes {
		go v.Follow(ctx, n.Client)
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return none, nil, err
	}
	spec := process.Spec{
		Name: n.Name + "." + r.pod.Namespace + "." + r.pod.Name + "." + container.Name,
		Path: program[0], Args: slices.Concat(program[1:], plan.Args), Env: append(env, plan.Env...), Dir: cmp.Or(plan.Dir, r.dir),
	}
	if plan.Ready == nil {
		return spec, nil, nil
	}
	spec.Port = plan.Ready.Port
	return spec, plan.Ready.Check(), nil
}

func first(command []string) string {
	if len(command) == 0 {
		return ""
	}
	return command[0]
}

// probe tells whenever readiness changes.
func (r *podRun) probe(ctx context.Context, ready func(context.Context) error, tell func(bool)) {
	was := false
	for ctx.Err() == nil {
		look, done := context.WithTimeout(ctx, time.Second)
		is := ready(look) == nil
		done()
		if is != was && ctx.Err() == nil {
			tell(is)
			was = is
		}
		pause(ctx, time.Second)
	}
}

// report writes what has become of the Pod. A failure is no reason to stop it: what comes
// next is reported again.
func (r *podRun) report(ctx context.Context, phase corev1.PodPhase, state corev1.ContainerState, ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	container := r.pod.Spec.Containers[0]
	status := &corev1.PodStatus{
		Phase: phase, StartTime: &r.begun, HostIP: "127.0.0.1", PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		HostIPs: []corev1.HostIP{{IP: "127.0.0.1"}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: container.Name, Image: container.Image, ImageID: container.Image, Ready: ready, RestartCount: r.restarts,
			Started: ptr.To(state.Running != nil), State: state, LastTerminationState: corev1.ContainerState{Terminated: r.last},
		}},
	}
	truth := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
	for _, condition := range []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodInitialized, Status: truth[phase != corev1.PodPending]},
		{Type: corev1.ContainersReady, Status: truth[ready]},
		{Type: corev1.PodReady, Status: truth[ready]},
	} {
		condition.LastTransitionTime = metav1.Now()
		for _, before := range r.pod.Status.Conditions {
			if before.Type == condition.Type && before.Status == condition.Status {
				condition.LastTransitionTime = before.LastTransitionTime
			}
		}
		status.Conditions = append(status.Conditions, condition)
	}
	r.pod.Status = *status
	_ = r.node.patchStatus(ctx, r.pod, status)
}

// correct reports again where somebody else has changed what was reported, as a kubelet
// does: while the node is not ready, its controller says so of all Pods on it.
func (r *podRun) correct(ctx context.Context, live *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if readiness(live) != readiness(r.pod) {
		_ = r.node.patchStatus(ctx, r.pod, &r.pod.Status)
	}
}

func readiness(pod *corev1.Pod) corev1.ConditionStatus {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func runs() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

func terminated(exit error) *corev1.ContainerStateTerminated {
	state := &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()}
	if exit != nil {
		state.Reason, state.Message, state.ExitCode = "Error", exit.Error(), 1
		var failed *exec.ExitError
		if errors.As(exit, &failed) && failed.ExitCode() > 0 {
			state.ExitCode = int32(failed.ExitCode())
		}
	}
	return state
}

func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}
