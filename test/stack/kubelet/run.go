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

// restartAfter is how long a container that has ended stays down, and how long a Pod that cannot be started waits.
const restartAfter = time.Second

// podRun is one Pod on the node.
type podRun struct {
	node  *Node
	pod   *corev1.Pod
	dir   string
	ports *portMap
	// stop ends the Pod; done is closed when none of its processes runs.
	stop context.CancelFunc
	done chan struct{}

	begun      metav1.Time
	mu         sync.Mutex // guards the Pod's status
	containers []containerRun
}

// containerRun is the state of a container.
type containerRun struct {
	state    corev1.ContainerState
	ready    bool
	over     bool // It is not started again.
	restarts int32
	last     *corev1.ContainerStateTerminated
}

func (n *Node) newPodRun(p *corev1.Pod, stop context.CancelFunc) *podRun {
	run := &podRun{
		node: n, pod: p, dir: filepath.Join(n.Dir, "pods", p.Namespace+"."+p.Name), ports: &portMap{host: n.Host},
		stop: stop, done: make(chan struct{}), begun: metav1.Now(), containers: make([]containerRun, len(p.Spec.Containers)),
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
			r.all(ctx, waiting("CreateContainerError", err.Error()))
		}
		pause(ctx, restartAfter)
	}
}

// start runs the init containers and then the containers, and restarts them as the Pod requires. An error means
// that something could not be started.
func (r *podRun) start(ctx context.Context) error {
	spec := &r.pod.Spec
	r.all(ctx, waiting("ContainerCreating", ""))
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
			r.all(ctx, waiting("PodInitializing", ""))
			r.report(ctx, corev1.PodFailed)
			return nil
		}
		if exit != nil {
			return fmt.Errorf("init container %s: %w", spec.InitContainers[i].Name, exit)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	problems := make([]error, len(spec.Containers))
	var containers sync.WaitGroup
	for i := range spec.Containers {
		containers.Go(func() {
			if problems[i] = r.keep(ctx, i); problems[i] != nil {
				cancel() // All of them, or none.
			}
		})
	}
	containers.Wait()
	return errors.Join(problems...)
}

// keep runs a container, and restarts it as its Pod requires. An error means that it could not be started.
func (r *podRun) keep(ctx context.Context, i int) error {
	policy := r.pod.Spec.RestartPolicy
	for ctx.Err() == nil {
		exit, err := r.runToEnd(ctx, &r.pod.Spec.Containers[i], func(ready bool) {
			r.reportContainer(ctx, i, func(c *containerRun) { c.state, c.ready = runs(), ready })
		})
		if err != nil || ctx.Err() != nil {
			return err
		}
		last := terminated(exit)
		if policy == corev1.RestartPolicyNever || exit == nil && policy == corev1.RestartPolicyOnFailure {
			r.reportContainer(ctx, i, func(c *containerRun) {
				c.state, c.ready, c.over, c.last = corev1.ContainerState{Terminated: last}, false, true, last
			})
			return nil
		}
		r.reportContainer(ctx, i, func(c *containerRun) {
			c.state, c.ready, c.last = waiting("CrashLoopBackOff", ""), false, last
			c.restarts++
		})
		pause(ctx, restartAfter)
	}
	return nil
}

// runToEnd runs a container. It returns how the container ended, and separately the error that prevented it from
// running. It reports when the container runs, and whenever its readiness changes.
func (r *podRun) runToEnd(ctx context.Context, container *corev1.Container, report func(ready bool)) (exit, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	spec, ready, err := r.prepare(ctx, container)
	if err != nil {
		return nil, err
	}
	p, err := r.node.Host.Start(spec)
	defer r.node.Host.Drop(p)
	if err != nil {
		return nil, err
	}
	if report != nil {
		report(ready == nil)
		if ready != nil {
			go r.probe(ctx, ready, report)
		}
	}
	if exit = p.Wait(ctx); ctx.Err() != nil {
		// A process that had to be killed has left its log.
		_ = p.SignalAndWait(syscall.SIGTERM)
	}
	return exit, nil
}

// prepare makes what a kubelet would make for a container, and keeps it up to date until ctx ends. It returns the
// process to run, and the container's readiness probe if it has one.
func (r *podRun) prepare(ctx context.Context, container *corev1.Container) (process.Spec, func(context.Context) error, error) {
	n := r.node
	var none process.Spec
	image, program, err := n.Images.find(container.Image, append(container.Command, "")[0])
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
	plan, err := pod.Translate(r.pod.Namespace, &r.pod.Spec, container, pod.Dirs{
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

// probe reports every change of readiness.
func (r *podRun) probe(ctx context.Context, ready func(context.Context) error, report func(bool)) {
	was := false
	for ctx.Err() == nil {
		probe, done := context.WithTimeout(ctx, time.Second)
		is := ready(probe) == nil
		done()
		if is != was && ctx.Err() == nil {
			report(is)
			was = is
		}
		pause(ctx, time.Second)
	}
}

// all sets the same state for all containers while none runs.
func (r *podRun) all(ctx context.Context, state corev1.ContainerState) {
	r.mu.Lock()
	for i := range r.containers {
		r.containers[i].state, r.containers[i].ready = state, false
	}
	r.mu.Unlock()
	r.report(ctx, corev1.PodPending)
}

// reportContainer records the state of a container, and reports the Pod.
func (r *podRun) reportContainer(ctx context.Context, i int, change func(*containerRun)) {
	r.mu.Lock()
	change(&r.containers[i])
	phase := r.phase()
	r.mu.Unlock()
	r.report(ctx, phase)
}

// phase returns the phase of a Pod whose init containers have ended.
func (r *podRun) phase() corev1.PodPhase {
	over, failed := true, false
	for _, c := range r.containers {
		if c.state.Waiting != nil && c.restarts == 0 {
			return corev1.PodPending
		}
		over = over && c.over
		failed = failed || c.over && c.last.ExitCode != 0
	}
	switch {
	case over && failed:
		return corev1.PodFailed
	case over:
		return corev1.PodSucceeded
	default:
		return corev1.PodRunning
	}
}

// report writes the status of the Pod. It ignores a failure, because the next change is reported again.
func (r *podRun) report(ctx context.Context, phase corev1.PodPhase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := &corev1.PodStatus{
		Phase: phase, StartTime: &r.begun, HostIP: "127.0.0.1", PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		HostIPs: []corev1.HostIP{{IP: "127.0.0.1"}},
	}
	ready := true
	for i, c := range r.containers {
		container := &r.pod.Spec.Containers[i]
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: container.Image, Ready: c.ready, RestartCount: c.restarts,
			Started: ptr.To(c.state.Running != nil), State: c.state, LastTerminationState: corev1.ContainerState{Terminated: c.last},
		})
		ready = ready && c.ready
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

// correct writes the status again if another client has changed it, as a kubelet does: while the node is not ready,
// the node controller sets all its Pods to not ready.
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
