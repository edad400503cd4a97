package stack

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/pod"
)

// RunPod runs the only container of a Pod of Muster as a process, with the token of the Pod's ServiceAccount, and
// returns its output when it has ended. The API server must admit the Pod, its namespace's Pod Security included.
func (s *Stack) RunPod(ctx context.Context, its *corev1.Pod) (string, error) {
	if err := s.client.Create(ctx, its.DeepCopy(), client.DryRunAll); err != nil {
		return "", err
	}
	container := &its.Spec.Containers[0]
	dir := filepath.Join(s.dir, "pods", its.Name)
	plan, err := pod.Translate(its.Namespace, &its.Spec, container, pod.Dirs{Name: its.Name, Dir: filepath.Join(dir, "volumes")})
	if err != nil {
		return "", err
	}
	identity := &pod.Identity{Server: s.hub.server, Namespace: its.Namespace, Account: plan.ServiceAccount, Dir: filepath.Join(dir, "identity")}
	if err := identity.Write(ctx, s.hub.pki.CA(), s.hub.client); err != nil {
		return "", err
	}
	image, _, _ := strings.Cut(path.Base(container.Image), ":")
	program, err := s.binary(image, plan.Command)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, plan.Args...)
	cmd.Env = append([]string{"KUBECONFIG=" + identity.Kubeconfig()}, plan.Env...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", its.Name, err, out)
	}
	return string(out), err
}

// RunJobs plays the controller of Jobs in a namespace, once: it runs the Pod of each Job that has not ended, and
// reports how it did. It tries no Pod again. It returns the output of each Job that it ran.
func (s *Stack) RunJobs(ctx context.Context, namespace string) (map[string]string, error) {
	jobs, err := s.hub.client.BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	outputs := map[string]string{}
	for i := range jobs.Items {
		its := &jobs.Items[i]
		if len(its.Status.Conditions) > 0 || its.DeletionTimestamp != nil {
			continue
		}
		start, ends := metav1.Now(), []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete}
		out, failed := s.RunPod(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: its.Name, Labels: its.Spec.Template.Labels},
			Spec:       its.Spec.Template.Spec,
		})
		now := metav1.Now()
		its.Status = batchv1.JobStatus{StartTime: &start, Succeeded: 1, CompletionTime: &now}
		if failed != nil {
			ends = []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed}
			its.Status = batchv1.JobStatus{StartTime: &start, Failed: 1}
			out = failed.Error()
		}
		outputs[its.Name] = out
		for _, of := range ends {
			its.Status.Conditions = append(its.Status.Conditions, batchv1.JobCondition{Type: of, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
		_, wrong := s.hub.client.BatchV1().Jobs(namespace).UpdateStatus(ctx, its, metav1.UpdateOptions{})
		err = errors.Join(err, wrong)
	}
	return outputs, err
}
