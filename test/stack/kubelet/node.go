// Package kubelet plays a node. It registers as a kubelet does, takes the Pods that the scheduler has bound to it,
// and runs the programs of known images as processes on this host, with the Pods' own arguments, environment,
// tokens and mounts. It reports the Pods' status.
//
// Until a CNI has written its configuration below the directory that stands for the node's file system, the node is
// not ready and starts only Pods in the host's network.
package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/process"
)

const (
	// syncEvery is how often the node checks its Pods.
	syncEvery = 200 * time.Millisecond
	// beatEvery is how often an unchanged node reports that it lives.
	beatEvery = 10 * time.Second
)

// Host runs processes for a node.
type Host interface {
	// Start starts a process, which the host keeps until Drop.
	Start(process.Spec) (*process.Process, error)
	Drop(*process.Process)
	// Port leases a port of this host, the preferred one if it is free.
	Port(preferred int) (int, error)
}

// Node is a node and its kubelet.
type Node struct {
	Name       string
	ProviderID string
	// Taints are the taints that the node registers with; the API server adds not-ready.
	Taints []corev1.Taint
	// Client is the kubelet's own client. With Server and CA its Pods reach the API server.
	Client kubernetes.Interface
	Server string
	CA     []byte
	Images Images
	Host   Host
	// Dir holds the node's files. Below root is its file system.
	Dir string

	pods  map[types.UID]*podRun
	wait  sync.WaitGroup
	beat  time.Time
	ready bool
	ports portMap
}

func (n *Node) root() string { return filepath.Join(n.Dir, "root") }

// Run registers the node and plays it until ctx ends. No process is left when it returns.
func (n *Node) Run(ctx context.Context) {
	n.pods, n.ports = map[types.UID]*podRun{}, portMap{host: n.Host}
	defer n.wait.Wait()
	registered := false
	for ctx.Err() == nil {
		// The next round tries again after a failure.
		if !registered {
			registered = n.register(ctx) == nil
		} else {
			_ = n.report(ctx)
			_ = n.syncPods(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(syncEvery):
		}
	}
}

func (n *Node) register(ctx context.Context) error {
	_, err := n.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
		}},
		Spec: corev1.NodeSpec{ProviderID: n.ProviderID, Taints: n.Taints},
	}, metav1.CreateOptions{})
	return client.IgnoreAlreadyExists(err)
}

// networkReady reports whether a CNI has written its configuration.
func (n *Node) networkReady() bool {
	found, err := filepath.Glob(filepath.Join(n.root(), "etc", "cni", "net.d", "*.conf*"))
	return err == nil && len(found) > 0
}

// report writes the node's status when it changes, and regularly as a sign of life.
func (n *Node) report(ctx context.Context) error {
	ready := n.networkReady()
	if ready == n.ready && time.Since(n.beat) < beatEvery {
		return nil
	}
	live, err := n.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions := nodeConditions(ready)
	for i := range conditions {
		conditions[i].LastHeartbeatTime, conditions[i].LastTransitionTime = metav1.Now(), metav1.Now()
		for _, before := range live.Status.Conditions {
			if before.Type == conditions[i].Type && before.Status == conditions[i].Status {
				conditions[i].LastTransitionTime = before.LastTransitionTime
			}
		}
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	live.Status.Capacity, live.Status.Allocatable = resources, resources
	live.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeHostName, Address: n.Name}}
	live.Status.Conditions = conditions
	live.Status.NodeInfo.OperatingSystem, live.Status.NodeInfo.Architecture = "linux", runtime.GOARCH
	if _, err := n.Client.CoreV1().Nodes().UpdateStatus(ctx, live, metav1.UpdateOptions{}); err != nil {
		return err
	}
	n.ready, n.beat = ready, time.Now()
	return nil
}

// nodeConditions returns the conditions that a kubelet reports. Cluster API checks all of them.
func nodeConditions(ready bool) []corev1.NodeCondition {
	last := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	if !ready {
		last.Status, last.Reason = corev1.ConditionFalse, "KubeletNotReady"
		last.Message = "container runtime network not ready: cni config uninitialized"
	}
	return []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
		last,
	}
}

// syncPods starts the Pods that are bound to the node, and ends the others.
func (n *Node) syncPods(ctx context.Context) error {
	bound, err := n.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String(),
	})
	if err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for _, pod := range bound.Items {
		there[pod.UID] = true
		run, known := n.pods[pod.UID]
		switch {
		case pod.DeletionTimestamp != nil:
			if known {
				run.stop()
			}
			if !known || run.ended() {
				if err := n.forget(ctx, &pod); err != nil {
					return err
				}
			}
		case !known && pod.Status.Phase == corev1.PodPending:
			n.begin(ctx, &pod)
		case known:
			run.correct(ctx, &pod)
		}
	}
	for uid, run := range n.pods {
		if !there[uid] {
			run.stop()
			if run.ended() {
				delete(n.pods, uid)
			}
		}
	}
	return nil
}

// forget deletes a Pod that has ended from the API server.
func (n *Node) forget(ctx context.Context, pod *corev1.Pod) error {
	err := n.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

func (n *Node) begin(ctx context.Context, pod *corev1.Pod) {
	ctx, stop := context.WithCancel(ctx)
	run := n.newPodRun(pod, stop)
	n.pods[pod.UID] = run
	n.wait.Go(func() { run.play(ctx) })
}

// patchStatus writes the status of a Pod unless another Pod has its name now.
func (n *Node) patchStatus(ctx context.Context, pod *corev1.Pod, status *corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = n.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("status of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// portMap moves ports of a network namespace to ports of this host, the same for every process in the namespace:
// two processes that listen on one port clash as on a real node.
type portMap struct {
	host  Host
	mu    sync.Mutex
	moved map[int]int
}

func (m *portMap) move(ports []int) (map[int]int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.moved == nil {
		m.moved = map[int]int{}
	}
	result := map[int]int{}
	for _, port := range ports {
		if _, done := m.moved[port]; !done {
			leased, err := m.host.Port(0)
			if err != nil {
				return nil, err
			}
			m.moved[port] = leased
		}
		result[port] = m.moved[port]
	}
	return result, nil
}

// Image says what a node runs for a container image.
type Image struct {
	// Programs maps the base names of the image's programs to programs on this host: a path, and arguments that
	// come before the container's own. The name "" stands for a container that names no program.
	Programs map[string][]string
	// Env holds variables that the program needs if the container does not set them. Ports in it are written out,
	// so that they can be moved.
	Env map[string]string
	// Ports are the ports in Env.
	Ports []int
}

// Images are known by repository, without tag and digest.
type Images map[string]Image

// find returns the image of a container, and its program.
func (i Images) find(name, command string) (Image, []string, error) {
	repository, _, _ := strings.Cut(name, "@")
	if slash, colon := strings.LastIndex(repository, "/"), strings.LastIndex(repository, ":"); colon > slash {
		repository = repository[:colon]
	}
	image, known := i[repository]
	if !known {
		return image, nil, fmt.Errorf("no image %s is known on this host", repository)
	}
	program, known := image.Programs[path.Base("/"+command)]
	if command == "" {
		program, known = image.Programs[""]
	}
	if !known {
		return image, nil, fmt.Errorf("image %s has no program %q on this host", repository, command)
	}
	return image, program, nil
}
