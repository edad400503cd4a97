// Package hostprovider is a provider of Cluster API for tests: the infrastructure, bootstrap and control plane of a
// cluster are processes on this host. Its kinds follow the contract and have templates, so that Cluster API's own
// controllers make a Cluster of a ClusterClass from them, down to the worker's Machine and its Node.
//
// It plays what a provider does to its objects. It knows nothing of the processes, which are behind the interface
// Hosts.
package hostprovider

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clusterLabel is on every object that Cluster API makes for a Cluster.
const clusterLabel = "cluster.x-k8s.io/cluster-name"

// every is how often the provider checks its objects.
const every = 300 * time.Millisecond

// ControlPlane says how to reach a cluster.
type ControlPlane struct {
	Kubeconfig []byte
	Host       string
	Port       int
}

// Machine describes a node before it exists.
type Machine struct {
	Name, ProviderID string
	Taints           []corev1.Taint
}

// Hosts makes what the objects of the provider stand for. It does not start what runs already: a cluster that has
// moved to another management cluster continues.
type Hosts interface {
	StartControlPlane(ctx context.Context, cluster types.NamespacedName) (*ControlPlane, error)
	StopControlPlane(cluster types.NamespacedName) error
	StartNode(cluster types.NamespacedName, machine Machine) error
	StopNode(cluster types.NamespacedName, name string)
}

// Provider plays the provider's controllers.
type Provider struct {
	Client client.Client
	Hosts  Hosts
	// Say reports a failure; the provider tries again.
	Say func(format string, args ...any)

	// paused holds the Clusters that were paused at the last check. Until a Cluster is not paused, the provider
	// does not touch its objects. Objects that disappear meanwhile have been moved.
	paused map[types.NamespacedName]bool

	mu sync.Mutex
	// planes and nodes hold what the provider has started, by the object that asked for it.
	planes map[types.NamespacedName]*plane
	nodes  map[types.NamespacedName]types.NamespacedName
}

// plane is the control plane of a cluster: it runs, or it failed, or, with neither field set, it is starting.
type plane struct {
	cluster types.NamespacedName
	is      *ControlPlane
	err     error
}

// Run plays until ctx ends.
func (p *Provider) Run(ctx context.Context) {
	p.planes, p.nodes, p.paused = map[types.NamespacedName]*plane{}, map[types.NamespacedName]types.NamespacedName{}, map[types.NamespacedName]bool{}
	var wait sync.WaitGroup
	defer wait.Wait()
	status := ""
	for ctx.Err() == nil {
		err := p.checkPaused(ctx)
		if err != nil {
			// The provider does not touch objects that may be paused.
			p.say(ctx, err, &status)
			continue
		}
		err = errors.Join(
			p.each(ctx, clusterKind, p.cluster, nil),
			p.each(ctx, configKind, p.config, nil),
			p.each(ctx, machineKind, p.machine, p.endNodes),
			p.each(ctx, controlPlaneKind, func(ctx context.Context, object *unstructured.Unstructured) error {
				return p.controlPlane(ctx, object, &wait)
			}, p.endPlanes),
		)
		p.say(ctx, err, &status)
	}
}

// say reports a failure once, and waits before the next attempt.
func (p *Provider) say(ctx context.Context, err error, status *string) {
	if err != nil && err.Error() != *status && ctx.Err() == nil {
		*status = err.Error()
		p.Say("host provider: %v", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(every):
	}
}

func (p *Provider) checkPaused(ctx context.Context) error {
	var clusters clusterv1.ClusterList
	if err := p.Client.List(ctx, &clusters); err != nil {
		return err
	}
	for _, cluster := range clusters.Items {
		p.paused[client.ObjectKeyFromObject(&cluster)] = ptr.Deref(cluster.Spec.Paused, false)
	}
	return nil
}

// each checks every object of a kind, and then handles objects that have disappeared.
func (p *Provider) each(ctx context.Context, kind schema.GroupVersionKind, check func(context.Context, *unstructured.Unstructured) error, after func(there map[types.NamespacedName]bool) error) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if err := p.Client.List(ctx, list); err != nil {
		return err
	}
	var problems []error
	there := map[types.NamespacedName]bool{}
	for i := range list.Items {
		object := &list.Items[i]
		there[client.ObjectKeyFromObject(object)] = true
		if object.GetDeletionTimestamp() == nil && !p.paused[clusterOf(object)] {
			problems = append(problems, check(ctx, object))
		}
	}
	if after != nil {
		problems = append(problems, after(there))
	}
	return errors.Join(problems...)
}

func (p *Provider) cluster(ctx context.Context, object *unstructured.Unstructured) error {
	return p.set(ctx, object, "status", done("provisioned", object))
}

// config reports success without data, because the node needs none. Nothing reads the Secret that it names.
func (p *Provider) config(ctx context.Context, object *unstructured.Unstructured) error {
	status := done("dataSecretCreated", object)
	status["dataSecretName"] = object.GetName()
	return p.set(ctx, object, "status", status)
}

// done returns the status of an object that is Ready and has the given field of its initialization set.
func done(initialized string, object *unstructured.Unstructured) map[string]any {
	return map[string]any{
		"initialization": map[string]any{initialized: true},
		"conditions":     []any{isTrue("Ready", object.GetCreationTimestamp())},
	}
}

func (p *Provider) machine(ctx context.Context, object *unstructured.Unstructured) error {
	key, cluster := client.ObjectKeyFromObject(object), clusterOf(object)
	id := "host://" + key.Namespace + "/" + key.Name
	if _, started := p.nodes[key]; !started {
		if !p.isUp(cluster) {
			return nil
		}
		var machine struct {
			Spec struct {
				Taints []corev1.Taint `json:"taints"`
			} `json:"spec"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &machine); err != nil {
			return err
		}
		if err := p.Hosts.StartNode(cluster, Machine{Name: key.Name, ProviderID: id, Taints: machine.Spec.Taints}); err != nil {
			return err
		}
		p.nodes[key] = cluster
	}
	if err := p.set(ctx, object, "spec", map[string]any{"providerID": id}); err != nil {
		return err
	}
	return p.set(ctx, object, "status", done("provisioned", object))
}

func (p *Provider) endNodes(there map[types.NamespacedName]bool) error {
	for key, cluster := range p.nodes {
		if there[key] {
			continue
		}
		if !p.paused[cluster] {
			p.Hosts.StopNode(cluster, key.Name)
		}
		delete(p.nodes, key)
	}
	return nil
}

func (p *Provider) controlPlane(ctx context.Context, object *unstructured.Unstructured, wait *sync.WaitGroup) error {
	key, cluster := client.ObjectKeyFromObject(object), clusterOf(object)
	p.mu.Lock()
	known, asked := p.planes[key]
	if !asked {
		known = &plane{cluster: cluster}
		p.planes[key] = known
		wait.Go(func() {
			is, err := p.Hosts.StartControlPlane(ctx, cluster)
			p.mu.Lock()
			defer p.mu.Unlock()
			known.is, known.err = is, err
		})
	}
	is, err := known.is, known.err
	p.mu.Unlock()
	if is == nil || err != nil {
		return err
	}
	if err := p.writeKubeconfig(ctx, object, cluster, is.Kubeconfig); err != nil {
		return err
	}
	if err := p.set(ctx, object, "spec", map[string]any{
		"controlPlaneEndpoint": map[string]any{"host": is.Host, "port": int64(is.Port)},
	}); err != nil {
		return err
	}
	version, _, _ := unstructured.NestedString(object.Object, "spec", "version")
	replicas, _, _ := unstructured.NestedInt64(object.Object, "spec", "replicas")
	return p.set(ctx, object, "status", map[string]any{
		"initialization":              map[string]any{"controlPlaneInitialized": true},
		"externalManagedControlPlane": true,
		"version":                     version,
		"versions":                    []any{map[string]any{"version": version, "replicas": replicas}},
		"replicas":                    replicas, "readyReplicas": replicas, "availableReplicas": replicas, "upToDateReplicas": replicas,
		"conditions": []any{isTrue("Available", object.GetCreationTimestamp())},
	})
}

func (p *Provider) endPlanes(there map[types.NamespacedName]bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var problems []error
	for key, known := range p.planes {
		if there[key] || known.is == nil {
			continue
		}
		if !p.paused[known.cluster] {
			problems = append(problems, p.Hosts.StopControlPlane(known.cluster))
		}
		delete(p.planes, key)
	}
	return errors.Join(problems...)
}

func (p *Provider) isUp(cluster types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, known := range p.planes {
		if known.cluster == cluster && known.is != nil {
			return true
		}
	}
	return false
}

func (p *Provider) writeKubeconfig(ctx context.Context, owner *unstructured.Unstructured, cluster types.NamespacedName, kubeconfig []byte) error {
	return client.IgnoreAlreadyExists(p.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig", Labels: map[string]string{clusterLabel: cluster.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, controlPlaneKind)},
		},
		Type: "cluster.x-k8s.io/secret",
		Data: map[string][]byte{"value": kubeconfig},
	}))
}

// set writes the fields of a section that differ.
func (p *Provider) set(ctx context.Context, object *unstructured.Unstructured, section string, want map[string]any) error {
	patch := client.MergeFrom(object.DeepCopy())
	for key, value := range want {
		if err := unstructured.SetNestedField(object.Object, value, section, key); err != nil {
			return err
		}
	}
	if data, err := patch.Data(object); err != nil || string(data) == "{}" {
		return err
	}
	if section == "status" {
		return p.Client.Status().Patch(ctx, object, patch)
	}
	return p.Client.Patch(ctx, object, patch)
}

func clusterOf(object *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetLabels()[clusterLabel]}
}
