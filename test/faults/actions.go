package main

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	classLabel    = "clusterclass-name.fleet.addons.cluster.x-k8s.io"
	pinAnnotation = "fleet.addons.cluster.x-k8s.io/cluster-name"
)

func create(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	cluster.Labels = map[string]string{"env": []string{"prod", "prod", "test", "dev"}[p.rng.IntN(4)]}
	cluster.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.7.0.0/16"}
	class := p.class(p.rng)
	if class.Name != "" {
		cluster.Spec.Topology = clusterv1.Topology{ClassRef: class, Version: fixture.KubernetesVersion}
	}
	if p.calls && p.rng.IntN(2) == 0 {
		cluster.Annotations = map[string]string{registrationAnnotation: "agent"}
	}
	created, answered := cluster, false
	if !p.ask(ctx, request{what: "creating Cluster " + cluster.Name, admission: true, mayClose: class.Namespace != "",
		do: func(ctx context.Context, again bool) error {
			created = cluster.DeepCopy()
			err := p.author.Create(ctx, created)
			if answered = err == nil; again && apierrors.IsAlreadyExists(err) {
				return p.author.Get(ctx, client.ObjectKeyFromObject(cluster), created)
			}
			return err
		}}) {
		return
	}
	selected := cluster.Labels["env"] != "dev"
	if answered && (selected && created.Annotations[pinAnnotation] == "" || created.Labels[classLabel] != class.Name) {
		p.unstamped.Add(1)
	}
	p.remember(created)
}

func (p *person) remember(cluster *clusterv1.Cluster) {
	p.change(func(s *oracle.State) { s.Clusters[client.ObjectKeyFromObject(cluster)] = cluster })
}

// patch changes a Cluster, or its status.
func (p *person) patch(ctx context.Context, what string, mayClose bool, cluster *clusterv1.Cluster, patch any, status bool) bool {
	text, err := json.Marshal(patch)
	if err != nil {
		panic(err)
	}
	ok := p.ask(ctx, request{what: what + " Cluster " + cluster.Name, admission: !status, mayClose: mayClose,
		do: func(ctx context.Context, _ bool) error {
			if status {
				return p.author.Status().Patch(ctx, cluster, client.RawPatch(types.MergePatchType, text))
			}
			return p.author.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, text))
		}})
	if ok {
		p.remember(cluster)
	}
	return ok
}

// object is nested maps, for patches.
type object = map[string]any

func rebase(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	// One that calls waits with its first class for what that makes, but is in Fleet if it had none.
	if p.calls && !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return
	}
	class := p.class(p.rng)
	var topology any
	if class.Name != "" {
		ref := object{"name": class.Name, "namespace": nil}
		if class.Namespace != "" {
			ref["namespace"] = class.Namespace
		}
		topology = object{"version": fixture.KubernetesVersion, "classRef": ref}
	}
	p.patch(ctx, "rebasing", class.Namespace != "", cluster, object{"spec": object{"topology": topology}}, false)
}

func relabel(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	value := []any{"prod", "test", "dev", nil}[p.rng.IntN(4)]
	p.patch(ctx, "relabelling", false, cluster, object{"metadata": object{"labels": object{"env": value}}}, false)
}

func annotate(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	value := []any{"a", "b", nil}[p.rng.IntN(3)]
	p.patch(ctx, "annotating", false, cluster, object{"metadata": object{"annotations": object{"note": value}}}, false)
}

// initialize plays Cluster API.
func initialize(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	if ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return
	}
	for _, referenced := range []*unstructured.Unstructured{fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)} {
		p.ask(ctx, request{what: "creating " + referenced.GetKind() + " " + referenced.GetName(), do: func(ctx context.Context, again bool) error {
			created := referenced.DeepCopy()
			err := p.author.Create(ctx, created)
			if again && apierrors.IsAlreadyExists(err) {
				err = p.author.Get(ctx, client.ObjectKeyFromObject(created), created)
			}
			if err == nil {
				p.refer(created)
			}
			return err
		}})
	}
	if p.patch(ctx, "completing", false, cluster, object{"spec": object{
		"controlPlaneRef":   fixture.ReferenceTo(fixture.ControlPlane(cluster)),
		"infrastructureRef": fixture.ReferenceTo(fixture.Infrastructure(cluster)),
	}}, false) {
		p.patch(ctx, "initializing", false, cluster, object{"status": object{"initialization": object{"controlPlaneInitialized": true}}}, true)
	}
}

// refer takes note of an object that a Cluster refers to.
func (p *person) refer(referenced *unstructured.Unstructured) {
	p.change(func(s *oracle.State) { s.Referenced[oracle.ReferenceTo(referenced)] = referenced })
}

func scaleControlPlane(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	if !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return
	}
	scaled := fixture.ControlPlane(cluster)
	patch := `{"spec":{"replicas":` + strconv.Itoa(1+2*p.rng.IntN(3)) + `}}`
	if p.ask(ctx, request{what: "scaling " + scaled.GetName(), do: func(ctx context.Context, _ bool) error {
		return p.author.Patch(ctx, scaled, client.RawPatch(types.MergePatchType, []byte(patch)))
	}}) {
		p.refer(scaled)
	}
}

// remove deletes a Cluster, and then what it referred to.
func remove(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	if !p.delete(ctx, cluster.DeepCopy()) {
		return
	}
	p.change(func(s *oracle.State) { delete(s.Clusters, client.ObjectKeyFromObject(cluster)) })
	for _, referenced := range []*unstructured.Unstructured{fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)} {
		p.delete(ctx, referenced)
		p.change(func(s *oracle.State) { delete(s.Referenced, oracle.ReferenceTo(referenced)) })
	}
}

func (p *person) delete(ctx context.Context, object client.Object) bool {
	return p.ask(ctx, request{what: "deleting " + object.GetName(), do: func(ctx context.Context, _ bool) error {
		return client.IgnoreNotFound(p.author.Delete(ctx, object))
	}})
}

// removeFleetCluster deletes what Muster made. It is not what they wish for: it comes back.
func removeFleetCluster(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	if !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return
	}
	fleetCluster := &fleetv1.Cluster{}
	fleetCluster.Namespace, fleetCluster.Name = cluster.Namespace, cluster.Name
	p.delete(ctx, fleetCluster)
}

func relabelClass(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	class := &clusterv1.ClusterClass{}
	class.Namespace, class.Name = p.namespace(platform), []string{"small", "large"}[p.rng.IntN(2)]
	patch := []string{`"gold"`, `"iron"`, `null`}[p.rng.IntN(3)]
	if p.ask(ctx, request{what: "relabelling ClusterClass " + class.Name, do: func(ctx context.Context, _ bool) error {
		return p.author.Patch(ctx, class, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"tier":`+patch+`}}}`)))
	}}) {
		p.change(func(s *oracle.State) { s.Classes[client.ObjectKeyFromObject(class)] = class })
	}
}

func editConfig(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	config := fixture.Config()
	value := []string{`"agents-a"`, `"agents-b"`, `null`}[p.rng.IntN(3)]
	if p.ask(ctx, request{what: "changing the FleetAddonConfig", admission: true, mayClose: true, do: func(ctx context.Context, _ bool) error {
		return p.author.Patch(ctx, config, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"cluster":{"agentNamespace":`+value+`}}}`)))
	}}) {
		p.change(func(s *oracle.State) { s.Config = config })
	}
}

// useForbiddenClass lets somebody name a class that they may not see.
func useForbiddenClass(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	cluster := p.forbidden()
	p.tryForbidden(ctx, "a Cluster with a class that its author may not get", func(ctx context.Context) error {
		return p.intruder.Create(ctx, cluster, client.DryRunAll)
	})
}

func (w *world) forbidden() *clusterv1.Cluster {
	return fixture.Cluster(w.namespace(teams[0]), "forbidden", "small", w.namespace(platform))
}

// breakConfig tries a selector that does not parse.
func breakConfig(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	const patch = `{"spec":{"cluster":{"selector":{"matchExpressions":[{"key":"env","operator":"In"}]}}}}`
	p.tryForbidden(ctx, "a FleetAddonConfig with a selector that does not parse", func(ctx context.Context) error {
		return p.author.Patch(ctx, fixture.Config(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
	})
}

const (
	kubeletInterval = 100 * time.Millisecond
	// firstBackOff is how long a kubelet waits before it starts a container for the
	// second time; it doubles with each time after that.
	firstBackOff = 10 * time.Second
)

// kubelet starts processes that have ended, but those that a fault holds down.
type kubelet struct {
	env  *stack.Stack
	done sync.WaitGroup

	mu       sync.Mutex
	held     map[string]bool
	starts   map[string]int
	notUntil map[string]time.Time
}

func newKubelet(ctx context.Context, env *stack.Stack) *kubelet {
	k := &kubelet{env: env}
	k.reset()
	k.held = map[string]bool{apiServer: true, etcd: true} // Started by who stopped them.
	k.done.Go(func() {
		for ctx.Err() == nil {
			k.look()
			select {
			case <-ctx.Done():
			case <-time.After(kubeletInterval):
			}
		}
	})
	return k
}

func (k *kubelet) wait() { k.done.Wait() }

func (k *kubelet) look() {
	for _, process := range k.env.Processes() {
		k.mu.Lock()
		if process.Running || k.held[process.Name] || time.Now().Before(k.notUntil[process.Name]) {
			k.mu.Unlock()
			continue
		}
		k.notUntil[process.Name] = time.Now().Add(firstBackOff << k.starts[process.Name])
		k.starts[process.Name]++
		k.mu.Unlock()
		// It fails only when the stack goes down.
		_ = k.env.Respawn(process.Name)
	}
}

// hold keeps processes down when they end, until they are released.
func (k *kubelet) hold(names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		k.held[name] = true
	}
}

func (k *kubelet) release(names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		delete(k.held, name)
	}
}

// reset forgets how often processes were started: each run begins anew.
func (k *kubelet) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts, k.notUntil = map[string]int{}, map[string]time.Time{}
}

// restarts returns how often processes of Muster were started since the last reset.
func (k *kubelet) restarts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	count := 0
	for name, starts := range k.starts {
		if strings.HasPrefix(name, "muster-") {
			count += starts
		}
	}
	return count
}
