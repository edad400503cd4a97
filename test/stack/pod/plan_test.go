package pod

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const deploymentYAML = `
metadata: {namespace: muster-system, name: muster-webhook}
spec:
  template:
    spec:
      serviceAccountName: muster-webhook
      containers:
      - name: webhook
        command: [/usr/bin/webhook, serve]
        args: [--webhook-port=9443, --webhook-cert-dir=/certs, --name=$(POD_NAME)]
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: PEER, value: "$(POD_NAME):9443"}
        - {name: CERT, value: /certs/tls.crt}
        ports: [{name: webhook, containerPort: 9443}, {name: health, containerPort: 9440}]
        readinessProbe: {httpGet: {path: /readyz, port: health, scheme: HTTPS}, periodSeconds: 5}
        volumeMounts: [{name: tls, mountPath: /certs/}]
      volumes: [{name: tls, secret: {secretName: muster-webhook-tls, defaultMode: 0400}}]
`

func deploymentOf(t *testing.T, change func(*corev1.PodSpec)) *appsv1.Deployment {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if err := yaml.Unmarshal([]byte(deploymentYAML), deployment); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&deployment.Spec.Template.Spec)
	}
	return deployment
}

func TestPlanFollowsTheDeployment(t *testing.T) {
	dirs := Dirs{Name: "muster-webhook-0", Dir: "/host", Ports: map[int]int{9443: 9443, 9440: 19440}}
	plan, err := New(deploymentOf(t, nil), dirs)
	if err != nil {
		t.Fatal(err)
	}
	want := &Plan{
		namespace: "muster-system", ServiceAccount: "muster-webhook", Command: "webhook",
		Args:    []string{"serve", "--webhook-port=9443", "--webhook-cert-dir=/host/tls", "--name=muster-webhook-0"},
		Env:     []string{"POD_NAME=muster-webhook-0", "PEER=muster-webhook-0:9443", "CERT=/host/tls/tls.crt"},
		volumes: []volumePlan{{name: "tls", hostDir: "/host/tls", kind: "Secret", source: "muster-webhook-tls", mode: 0o400}},
		Ready:   &Probe{Scheme: "https", Path: "/readyz", Port: 19440, Timing: ProbeTiming{Period: 5 * time.Second, Timeout: time.Second, Failures: 3}},
	}
	if diff := cmp.Diff(want, plan, cmp.AllowUnexported(Plan{}, volumePlan{})); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestPlanRefusesWhatItCannotGive(t *testing.T) {
	for want, change := range map[string]func(*corev1.PodSpec){
		"one container": func(p *corev1.PodSpec) { p.Containers = append(p.Containers, p.Containers[0]) },
		"envFrom":       func(p *corev1.PodSpec) { p.Containers[0].EnvFrom = make([]corev1.EnvFromSource, 1) },
		"env KEY: only value and fieldRef": func(p *corev1.PodSpec) {
			p.Containers[0].Env = []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}}
		},
		"field status.hostIP": func(p *corev1.PodSpec) {
			p.Containers[0].Env[0].ValueFrom.FieldRef.FieldPath = "status.hostIP"
		},
		"only secret, configMap and emptyDir": func(p *corev1.PodSpec) {
			p.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}
		},
		"there is no volume":  func(p *corev1.PodSpec) { p.Volumes = nil },
		"subPath":             func(p *corev1.PodSpec) { p.Containers[0].VolumeMounts[0].SubPath = "x" },
		"only httpGet":        func(p *corev1.PodSpec) { p.Containers[0].ReadinessProbe.HTTPGet = nil },
		"no port named \"x\"": func(p *corev1.PodSpec) { p.Containers[0].ReadinessProbe.HTTPGet.Port.StrVal = "x" },
	} {
		_, err := New(deploymentOf(t, change), Dirs{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func TestPlanOnANode(t *testing.T) {
	spec := deploymentOf(t, func(p *corev1.PodSpec) {
		p.Containers[0].Env = append(p.Containers[0].Env,
			corev1.EnvVar{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}})
		p.Containers[0].Args = []string{"/etc/cni/net.d/10.conflist", "/run/xtables.lock", tokenMount + "/token"}
		p.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "cni", MountPath: "/etc/cni/net.d"}, {Name: "lock", MountPath: "/run/xtables.lock"}, {Name: "token", MountPath: tokenMount},
		}
		p.Volumes = []corev1.Volume{
			{Name: "cni", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/cni/net.d"}}},
			{Name: "lock", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: "/run/xtables.lock", Type: ptr.To(corev1.HostPathFileOrCreate)}}},
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
		}
	})
	plan, err := New(spec, Dirs{Name: "p", Dir: "/host", Node: "n", Root: "/node", Identity: "/identity"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"serve", "/node/etc/cni/net.d/10.conflist", "/node/run/xtables.lock", "/identity/token"}
	if diff := cmp.Diff(want, plan.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if !plan.Token || !slices.Contains(plan.Env, "NODE=n") {
		t.Errorf("token: %v, environment: %v", plan.Token, plan.Env)
	}
	if len(plan.volumes) != 2 || plan.volumes[0].file || !plan.volumes[1].file {
		t.Errorf("volumes: %v", plan.volumes)
	}
}
