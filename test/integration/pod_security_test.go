package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The shipped namespace enforces the restricted profile, and the API server admits the
// pods of the shipped Deployments to it. No controller makes them here: the test does.
func TestPodSecurity(t *testing.T) {
	g := NewWithT(t)
	namespace := get(g, &corev1.Namespace{}, "", "muster-system")
	for _, mode := range []string{"enforce", "warn", "audit"} {
		g.Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/"+mode, "restricted"))
		g.Expect(namespace.Labels).To(HaveKey("pod-security.kubernetes.io/" + mode + "-version"))
	}
	for _, name := range []string{"muster-webhook", "muster-syncer"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			deployment := get(g, &appsv1.Deployment{}, "muster-system", name)
			try := func(change func(*corev1.PodSpec)) error {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: name, Labels: deployment.Spec.Template.Labels},
					Spec:       *deployment.Spec.Template.Spec.DeepCopy(),
				}
				change(&pod.Spec)
				return admin.Create(ctx, pod, client.DryRunAll)
			}
			g.Expect(try(func(*corev1.PodSpec) {})).To(Succeed())
			for what, change := range map[string]func(*corev1.PodSpec){
				"privileged": func(pod *corev1.PodSpec) {
					pod.Containers[0].SecurityContext.Privileged = ptr.To(true)
					pod.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
				},
				"runAsNonRoot":             func(pod *corev1.PodSpec) { pod.SecurityContext.RunAsNonRoot = nil },
				"seccompProfile":           func(pod *corev1.PodSpec) { pod.SecurityContext.SeccompProfile = nil },
				"allowPrivilegeEscalation": func(pod *corev1.PodSpec) { pod.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
				"unrestricted capabilities": func(pod *corev1.PodSpec) {
					pod.Containers[0].SecurityContext.Capabilities = nil
				},
				"host namespaces": func(pod *corev1.PodSpec) { pod.HostNetwork = true },
			} {
				g.Expect(try(change)).To(MatchError(And(ContainSubstring(`violates PodSecurity "restricted:v1.36"`), ContainSubstring(what))))
			}
			for _, container := range deployment.Spec.Template.Spec.Containers {
				g.Expect(container.SecurityContext.ReadOnlyRootFilesystem).To(HaveValue(BeTrue()))
			}
		})
	}
}
