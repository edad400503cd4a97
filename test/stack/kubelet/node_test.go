package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// host runs processes for a test and counts those that are known.
type host struct {
	dir   string
	known atomic.Int32
	port  atomic.Int32
}

func (h *host) Add(spec process.Spec) *process.Process {
	h.known.Add(1)
	return process.New(spec, filepath.Join(h.dir, "logs", spec.Name))
}
func (h *host) Drop(*process.Process) { h.known.Add(-1) }
func (h *host) Port(int) (int, error) { return int(h.port.Add(1)), nil }

func podOf(name string, spec corev1.PodSpec) *corev1.Pod {
	spec.NodeName = "node"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       spec, Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// The node becomes ready, and takes ordinary Pods, by what a Pod in its own network has
// written to its file system.
func TestNodeIsReadyOnceItsNetworkIs(t *testing.T) {
	ctx := t.Context()
	api, processes := fake.NewClientset(), &host{dir: t.TempDir()}
	node := &Node{
		Name: "node", Client: api, Host: processes, Dir: processes.dir,
		Images: Images{"example.com/shell": {Programs: map[string][]string{
			"touch": {"touch"}, "": {"/bin/sh", "-c", "exec sleep infinity"},
		}}},
	}
	ended := make(chan struct{})
	playing, stop := context.WithCancel(ctx)
	go func() { node.Run(playing); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })

	waits := []corev1.Container{{Name: "c", Image: "example.com/shell:v1@sha256:0"}}
	create := func(pod *corev1.Pod) {
		t.Helper()
		if _, err := api.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(podOf("ordinary", corev1.PodSpec{Containers: waits}))
	until(t, "the ordinary Pod to wait", func(ctx context.Context) error {
		return is(ctx, api, "ordinary", corev1.PodPending, "ContainerCreating")
	})
	if ready(ctx, api) == nil {
		t.Fatal("the node is ready without a network")
	}
	create(podOf("cni", corev1.PodSpec{
		HostNetwork: true, Containers: waits,
		InitContainers: []corev1.Container{{
			Name: "i", Image: "example.com/shell:v1", Command: []string{"/usr/bin/touch", "/etc/cni/net.d/10.conflist"},
			VolumeMounts: []corev1.VolumeMount{{Name: "cni", MountPath: "/etc/cni/net.d"}},
		}},
		Volumes: []corev1.Volume{{Name: "cni", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/cni/net.d"}}}},
	}))
	until(t, "the node to be ready", func(ctx context.Context) error { return ready(ctx, api) })
	for _, name := range []string{"cni", "ordinary"} {
		until(t, name+" to run", func(ctx context.Context) error { return is(ctx, api, name, corev1.PodRunning, "") })
	}

	if _, err := api.CoreV1().Pods("default").Patch(ctx, "cni", types.MergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	until(t, "the node to say again that its Pod is ready", func(ctx context.Context) error {
		pod, err := api.CoreV1().Pods("default").Get(ctx, "cni", metav1.GetOptions{})
		if err == nil && readiness(pod) != corev1.ConditionTrue {
			err = errors.New("it is not")
		}
		return err
	})
	create(podOf("unknown", corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/other"}}}))
	until(t, "the Pod of an unknown image to say so", func(ctx context.Context) error {
		return is(ctx, api, "unknown", corev1.PodPending, "CreateContainerError")
	})
	if err := api.CoreV1().Pods("default").Delete(ctx, "ordinary", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the process of the deleted Pod to end", func(context.Context) error {
		if left := processes.known.Load(); left != 1 {
			return fmt.Errorf("%d run", left)
		}
		return nil
	})
}

func TestPodsThatEnd(t *testing.T) {
	ctx := t.Context()
	api, processes := fake.NewClientset(), &host{dir: t.TempDir()}
	node := &Node{Name: "node", Client: api, Host: processes, Dir: processes.dir, Images: Images{
		"ends": {Programs: map[string][]string{"": {"/bin/sh", "-c"}}},
	}}
	ended := make(chan struct{})
	playing, stop := context.WithCancel(ctx)
	go func() { node.Run(playing); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	for name, test := range map[string]struct {
		first, script string
		policy        corev1.RestartPolicy
		phase         corev1.PodPhase
		reason        string
	}{
		"done":          {"exit 0", "exit 0", corev1.RestartPolicyNever, corev1.PodSucceeded, "Completed"},
		"failed":        {"exit 0", "exit 3", corev1.RestartPolicyNever, corev1.PodFailed, "Error"},
		"failed-before": {"exit 3", "exit 0", corev1.RestartPolicyNever, corev1.PodFailed, "PodInitializing"},
		"restarted":     {"exit 0", "exit 3", corev1.RestartPolicyAlways, corev1.PodRunning, "CrashLoopBackOff"},
	} {
		pod := podOf(name, corev1.PodSpec{
			HostNetwork: true, RestartPolicy: test.policy,
			InitContainers: []corev1.Container{{Name: "i", Image: "ends", Args: []string{test.first}}},
			Containers:     []corev1.Container{{Name: "c", Image: "ends", Args: []string{test.script}}},
		})
		if _, err := api.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, name, func(ctx context.Context) error { return is(ctx, api, name, test.phase, test.reason) })
	}
}

func until(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	if err := poll.Until(t.Context(), what, 30*time.Second, condition); err != nil {
		t.Fatal(err)
	}
}

func ready(ctx context.Context, api *fake.Clientset) error {
	node, err := api.CoreV1().Nodes().Get(ctx, "node", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return errors.New("not ready")
}

// is is a condition: a Pod is in this phase, and its container waits or ended for this
// reason, or runs if there is none.
func is(ctx context.Context, api *fake.Clientset, name string, phase corev1.PodPhase, reason string) error {
	pod, err := api.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	got := "no status"
	for _, container := range pod.Status.ContainerStatuses {
		switch state := container.State; {
		case state.Waiting != nil:
			got = state.Waiting.Reason
		case state.Terminated != nil:
			got = state.Terminated.Reason
		case container.Ready:
			got = ""
		}
	}
	if pod.Status.Phase != phase || got != reason {
		return fmt.Errorf("it is %s, %q", pod.Status.Phase, got)
	}
	return nil
}

func TestPortsClashOnlyWithinOneNetwork(t *testing.T) {
	processes := &host{}
	one, other := &portMap{host: processes}, &portMap{host: processes}
	a, _ := one.move([]int{8080})
	b, _ := one.move([]int{8080, 8081})
	c, _ := other.move([]int{8080})
	if a[8080] != b[8080] || b[8080] == b[8081] || c[8080] == a[8080] {
		t.Errorf("moved to %v, %v and %v", a, b, c)
	}
}

func TestImagesAreFoundByRepositoryAndProgram(t *testing.T) {
	images := Images{"registry:5000/a/b": {Programs: map[string][]string{"cp": {"cp"}, "": {"entry"}}}}
	for _, test := range []struct{ image, command, want string }{
		{"registry:5000/a/b", "", "entry"},
		{"registry:5000/a/b:v1", "/usr/bin/cp", "cp"},
		{"registry:5000/a/b:v1@sha256:0", "cp", "cp"},
		{"registry:5000/a/b", "mv", ""},
		{"registry:5000/a", "", ""},
	} {
		_, program, err := images.find(test.image, test.command)
		if (err == nil) != (test.want != "") || (err == nil && program[0] != test.want) {
			t.Errorf("%s %q: %v, %v", test.image, test.command, program, err)
		}
	}
}
