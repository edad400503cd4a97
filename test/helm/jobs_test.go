package helm

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (c cluster) client(g Gomega) client.Client {
	config, err := clientcmd.BuildConfigFromFlags("", env.HostedKubeconfig(c.namespace, c.name))
	g.Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	on, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	return on
}

// endJobs marks all Jobs of a cluster as succeeded: its nodes do not have the images to run them.
func endJobs(on client.Client) (stop func()) {
	ending, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for ending.Err() == nil {
			endOnce(ending, on)
			select {
			case <-ending.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	return func() { cancel(); wait.Wait() }
}

// endOnce ignores errors, such as conflicts with the controller of Jobs: the caller calls it again.
func endOnce(ctx context.Context, on client.Client) {
	var jobs batchv1.JobList
	_ = on.List(ctx, &jobs)
	for i := range jobs.Items {
		its := &jobs.Items[i]
		if its.Status.CompletionTime != nil {
			continue
		}
		now := metav1.Now()
		if its.Status.StartTime == nil {
			its.Status.StartTime = &now
		}
		its.Status.CompletionTime, its.Status.Succeeded = &now, 1
		its.Status.Active, its.Status.Ready, its.Status.Terminating = 0, nil, nil
		for _, of := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			its.Status.Conditions = append(its.Status.Conditions, batchv1.JobCondition{Type: of, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
		_ = on.Status().Update(ctx, its)
	}
}

const hookTemplate = `
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-hook
  annotations: {helm.sh/hook: "pre-install,post-install,pre-upgrade"}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/none}]}}}
`

// By default, Fleet gives each hook 30 seconds, and then starts again.
func TestLongHook(t *testing.T) {
	g := NewWithT(t)
	g.Expect(charts.Publish("hooked", "1.0.0", map[string]string{"values.yaml": simpleTemplate, "hook.yaml": hookTemplate})).To(Succeed())
	g.Expect(env.Apply(ctx, repositorySecret())).To(Succeed())
	one.label(g, "hooked=yes")
	t.Cleanup(func() { one.label(NewWithT(t), "hooked-") })
	g.Expect(env.Apply(ctx, strings.Replace(simple("hooked", "1.0.0", "  valuesTemplate: 'who: me'"), "chartName: simple", "chartName: hooked", 1))).To(Succeed())
	// Fleet may deploy a release with values twice in a row, and begin the hook again: see docs/internals/conformance.md. But it
	// does not end a hook after 30 s, as it would without a timeout.
	g.Eventually(func(g Gomega) {
		out, err := one.kubectl("-n", "hooked", "get", "job", "hooked-hook", "-o", "jsonpath={.metadata.creationTimestamp}")
		g.Expect(err).NotTo(HaveOccurred(), out)
		created, err := time.Parse(time.RFC3339, out)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(time.Since(created)).To(BeNumerically(">", 45*time.Second))
	}).WithTimeout(4 * time.Minute).Should(Succeed())
	its := proxy(g, "hooked")
	g.Expect(meta.IsStatusConditionTrue(its.Status.Conditions, "Ready")).To(BeFalse(), told(its))
	t.Cleanup(endJobs(one.client(g)))
	g.Eventually(func(g Gomega) { isReady(g, "hooked") }).Should(Succeed())
	out, err := one.kubectl("-n", "hooked", "get", "secrets", "-l", "owner=helm", "-o", "jsonpath={.items[*].metadata.name}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(out)).To(Or(HaveLen(1), HaveLen(2)), out)
	deleteProxy(g, team, "hooked")
}
