package pod

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Plan is a Deployment's pod template, translated for a host process.
type Plan struct {
	namespace string
	// ServiceAccount is the name of the process's ServiceAccount.
	ServiceAccount string
	// Command is the base name of the program, empty if the image decides.
	Command string
	Args    []string
	Env     []string
	volumes []volumePlan
	// Ready is the readiness probe, nil if there is none.
	Ready *Probe
	// Dir is the working directory and Tmp replaces /tmp; both are empty if the template does not mention them.
	Dir, Tmp string
	// Token means that the ServiceAccount's token is mounted, at Dirs.Identity.
	Token bool
}

// tokenMount is the path at which the API server's admission mounts the token of a ServiceAccount.
const tokenMount = "/var/run/secrets/kubernetes.io/serviceaccount"

// volumePlan is a directory that the kubelet would mount.
type volumePlan struct {
	name    string
	hostDir string
	// file means that it is a file and not a directory.
	file bool
	// kind is Secret, ConfigMap or empty; source is the name of the object.
	kind, source string
	optional     bool
	items        []corev1.KeyToPath
	mode         int32
}

// Probe is an HTTP probe.
type Probe struct {
	Scheme string
	Path   string
	Port   int
	Timing ProbeTiming
}

// ProbeTiming specifies when a kubelet probes.
type ProbeTiming struct {
	Period, Timeout time.Duration
	// Failures is the number of failures in a row that make a replica not ready. One success makes it ready.
	Failures int
}

// Dirs are the directories and ports of a pod on this host.
type Dirs struct {
	// Name is the name of the pod.
	Name string
	// Dir holds the volumes.
	Dir string
	// Node is the name of the pod's node, and Root the directory that stands for the node's file system. If they
	// are empty, there is no node, and Translate refuses settings that need one.
	Node, Root string
	// Identity is the directory of its ServiceAccount's token.
	Identity string
	// Ports maps the ports that the container declares to ports of this host.
	Ports map[int]int
}

// New translates the pod template of a Deployment.
func New(deployment *appsv1.Deployment, dirs Dirs) (*Plan, error) {
	container, err := OnlyContainer(deployment)
	if err != nil {
		return nil, err
	}
	return Translate(deployment.Namespace, &deployment.Spec.Template.Spec, container, dirs)
}

// Translate translates one container of a pod. It refuses settings that it cannot give a host process, because a
// test must not pass with a setting silently ignored. It skips resources, security context and scheduling, which
// mean nothing to a process, and lifecycle, because the caller that ends a process decides the order itself.
func Translate(namespace string, spec *corev1.PodSpec, container *corev1.Container, dirs Dirs) (*Plan, error) {
	if len(container.EnvFrom) > 0 {
		return nil, fmt.Errorf("envFrom is not translated")
	}
	plan := &Plan{namespace: namespace, ServiceAccount: cmp.Or(spec.ServiceAccountName, "default")}
	mounts, err := plan.mountVolumes(spec.Volumes, container, dirs)
	if err != nil {
		return nil, err
	}
	rewrite := rewriter{mounts: mounts, ports: dirs.Ports}
	plan.Dir, plan.Tmp = rewrite.value(container.WorkingDir), mounts["/tmp"]
	values := map[string]string{}
	for _, variable := range container.Env {
		value, err := envValue(variable, plan, dirs, values)
		if err != nil {
			return nil, err
		}
		values[variable.Name] = rewrite.value(value)
		plan.Env = append(plan.Env, variable.Name+"="+values[variable.Name])
	}
	if len(container.Command) > 0 {
		plan.Command = path.Base(container.Command[0])
		plan.Args = append(plan.Args, container.Command[1:]...)
	}
	plan.Args = append(plan.Args, container.Args...)
	for i, arg := range plan.Args {
		plan.Args[i] = rewrite.arg(expand(arg, values))
	}
	plan.Ready, err = planProbe(container, dirs.Ports)
	return plan, err
}

// OnlyContainer returns the only container of a Deployment, or an error if it has others.
func OnlyContainer(deployment *appsv1.Deployment) (*corev1.Container, error) {
	spec := deployment.Spec.Template.Spec
	if len(spec.Containers) != 1 || len(spec.InitContainers) != 0 {
		return nil, fmt.Errorf("a host process stands for one container, there are %d and %d init containers",
			len(spec.Containers), len(spec.InitContainers))
	}
	return &spec.Containers[0], nil
}

// DeclaredPorts returns the ports that a container declares.
func DeclaredPorts(container *corev1.Container) []int {
	var ports []int
	for _, port := range container.Ports {
		ports = append(ports, int(port.ContainerPort))
	}
	for _, probe := range []*corev1.Probe{container.ReadinessProbe, container.LivenessProbe, container.StartupProbe} {
		if probe != nil && probe.HTTPGet != nil && probe.HTTPGet.Port.Type == intstr.Int {
			ports = append(ports, probe.HTTPGet.Port.IntValue())
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// ContainerPort resolves a port that is given by number or by name.
func ContainerPort(container *corev1.Container, port intstr.IntOrString) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	for _, declared := range container.Ports {
		if declared.Name == port.StrVal {
			return int(declared.ContainerPort), nil
		}
	}
	return 0, fmt.Errorf("the container declares no port named %q", port.StrVal)
}

// mountVolumes plans the volumes and returns the host's path for each mount path.
func (p *Plan) mountVolumes(volumes []corev1.Volume, container *corev1.Container, dirs Dirs) (map[string]string, error) {
	mounts := map[string]string{}
	for _, mount := range container.VolumeMounts {
		if mount.SubPath != "" || mount.SubPathExpr != "" {
			return nil, fmt.Errorf("mount %s: subPath is not translated", mount.MountPath)
		}
		i := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if i < 0 {
			return nil, fmt.Errorf("mount %s: there is no volume %q", mount.MountPath, mount.Name)
		}
		if mount.MountPath == tokenMount && dirs.Identity != "" {
			p.Token, mounts[tokenMount] = true, dirs.Identity
			continue
		}
		volume := volumePlan{name: mount.Name, hostDir: path.Join(dirs.Dir, mount.Name)}
		switch source := volumes[i].VolumeSource; {
		case source.Secret != nil:
			volume.kind, volume.source, volume.items = "Secret", source.Secret.SecretName, source.Secret.Items
			volume.optional, volume.mode = ptr.Deref(source.Secret.Optional, false), ptr.Deref(source.Secret.DefaultMode, 0o644)
		case source.ConfigMap != nil:
			volume.kind, volume.source, volume.items = "ConfigMap", source.ConfigMap.Name, source.ConfigMap.Items
			volume.optional, volume.mode = ptr.Deref(source.ConfigMap.Optional, false), ptr.Deref(source.ConfigMap.DefaultMode, 0o644)
		case source.EmptyDir != nil:
		case source.HostPath != nil && dirs.Root != "":
			volume.hostDir = path.Join(dirs.Root, source.HostPath.Path)
			volume.file = ptr.Deref(source.HostPath.Type, "") == corev1.HostPathFileOrCreate
		default:
			return nil, fmt.Errorf("volume %q: only secret, configMap and emptyDir are translated, and hostPath on a node", mount.Name)
		}
		p.volumes = append(p.volumes, volume)
		mounts[path.Clean(mount.MountPath)] = volume.hostDir
	}
	return mounts, nil
}

func envValue(variable corev1.EnvVar, plan *Plan, dirs Dirs, earlier map[string]string) (string, error) {
	if variable.ValueFrom == nil {
		return expand(variable.Value, earlier), nil
	}
	if variable.ValueFrom.FieldRef == nil {
		return "", fmt.Errorf("env %s: only value and fieldRef are translated", variable.Name)
	}
	field := variable.ValueFrom.FieldRef.FieldPath
	values := map[string]string{
		"metadata.namespace": plan.namespace, "metadata.name": dirs.Name,
		"spec.serviceAccountName": plan.ServiceAccount, "status.podIP": "127.0.0.1",
	}
	if dirs.Node != "" {
		values["spec.nodeName"], values["status.hostIP"] = dirs.Node, "127.0.0.1"
	}
	value, translated := values[field]
	if !translated {
		return "", fmt.Errorf("env %s: field %s is not translated", variable.Name, field)
	}
	return value, nil
}

func planProbe(container *corev1.Container, ports map[int]int) (*Probe, error) {
	if container.ReadinessProbe == nil {
		return nil, nil
	}
	get := container.ReadinessProbe.HTTPGet
	if get == nil {
		return nil, fmt.Errorf("only httpGet readiness probes are translated")
	}
	port, err := ContainerPort(container, get.Port)
	if err != nil {
		return nil, fmt.Errorf("readiness probe: %w", err)
	}
	if moved, ok := ports[port]; ok {
		port = moved
	}
	scheme := strings.ToLower(string(cmp.Or(get.Scheme, corev1.URISchemeHTTP)))
	return &Probe{Scheme: scheme, Path: get.Path, Port: port, Timing: timingOf(container.ReadinessProbe)}, nil
}

// timingOf returns the timing of a probe, with the API server's defaults.
func timingOf(probe *corev1.Probe) ProbeTiming {
	return ProbeTiming{
		Period:   time.Duration(cmp.Or(probe.PeriodSeconds, 10)) * time.Second,
		Timeout:  time.Duration(cmp.Or(probe.TimeoutSeconds, 1)) * time.Second,
		Failures: int(cmp.Or(probe.FailureThreshold, 3)),
	}
}
