package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
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
)

const (
	// workers is the number of people, who each do one action after another.
	workers = 3
	slots   = 6 // for each worker, a place for one Cluster
	// convergence is how many Clusters each person has before the fault strikes.
	convergence = 2
	// thinks is how long a person pauses at most.
	thinks = 80 * time.Millisecond

	pinAnnotation = "fleet.addons.cluster.x-k8s.io/cluster-name"
)

// churn is people at work: they change everything from which Muster derives objects.
type churn struct {
	*run
	names atomic.Int64
	stop  context.CancelFunc
	wait  sync.WaitGroup
}

// person is one worker. Each has Clusters of its own.
type person struct {
	*churn
	rng   *rand.Rand
	first bool // One of them also changes the classes, the FleetAddonConfig and the HelmChartProxies.
	slots [slots]oracle.Key
}

// action is one change by a person, to an existing Cluster if it needs one.
type action struct {
	weight int
	// created means that it needs a Cluster, free that it needs a free slot.
	created, free bool
	first         bool
	do            func(context.Context, *person, *clusterv1.Cluster)
}

func (p *person) actions() []action {
	all := []action{
		{weight: 24, free: true, do: create},
		{weight: 24, created: true, do: initialize},
		{weight: 10, created: true, do: rebase},
		{weight: 12, created: true, do: relabel},
		{weight: 4, created: true, do: annotate},
		{weight: 8, created: true, do: scaleControlPlane},
		{weight: 8, created: true, do: remove},
		{weight: 3, created: true, do: removeFleetCluster},
		{weight: 4, first: true, do: relabelClass},
		{weight: 3, first: true, do: editConfig},
		{weight: 4, do: useForbiddenClass},
		{weight: 2, do: breakConfig},
	}
	if p.agentInitiated {
		all = append(all, action{weight: 6, created: true, do: callByAgent}, action{weight: 3, created: true, do: rotateCredential})
	}
	if p.charts != nil && p.first {
		all = append(all, action{weight: 40, do: wishForChart}, action{weight: 8, do: dropChart})
	}
	return all
}

// newChurn lets people work until finish. It returns when each has created some Clusters.
func newChurn(patient context.Context, r *run, seed uint64) *churn {
	// The current action is completed even if the churn ends meanwhile.
	ctx, stop := context.WithCancel(patient)
	c := &churn{run: r, stop: stop}
	var begun sync.WaitGroup
	for number := range workers {
		begun.Add(1)
		p := &person{churn: c, rng: rand.New(rand.NewPCG(seed, uint64(number))), first: number == 0}
		c.wait.Go(func() {
			for slot := range convergence {
				create(patient, p, p.blank(slot))
				if cluster := p.cluster(slot); cluster != nil {
					initialize(patient, p, cluster)
				}
			}
			begun.Done()
			for ctx.Err() == nil {
				p.act(patient)
				_ = sleep(ctx, time.Duration(p.rng.Int64N(int64(thinks))))
			}
		})
	}
	begun.Wait()
	return c
}

// finish waits until each person has completed the current action, retries included.
func (c *churn) finish() {
	c.stop()
	c.wait.Wait()
}

// act does one action, or nothing if it cannot be done now.
func (p *person) act(ctx context.Context) {
	all := p.actions()
	total := 0
	for _, a := range all {
		total += a.weight
	}
	pick := p.rng.IntN(total)
	a := all[slices.IndexFunc(all, func(a action) bool { pick -= a.weight; return pick < 0 })]
	slot := p.rng.IntN(slots)
	cluster := p.cluster(slot)
	switch {
	case a.first && !p.first, a.created && cluster == nil, a.free && cluster != nil:
	case a.free:
		a.do(ctx, p, p.blank(slot))
	default:
		a.do(ctx, p, cluster)
	}
}

// cluster returns the Cluster in a slot from the API server's last answer, or nil.
func (p *person) cluster(slot int) (cluster *clusterv1.Cluster) {
	p.change(func(s *oracle.State) { cluster = s.Clusters[p.slots[slot]].DeepCopy() })
	return cluster
}

// blank returns a Cluster with a new name, for a slot.
func (p *person) blank(slot int) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace = p.namespace(teams[p.rng.IntN(len(teams))])
	cluster.Name = fmt.Sprintf("c%d", p.names.Add(1))
	p.slots[slot] = client.ObjectKeyFromObject(cluster)
	return cluster
}

// one returns one of several values.
func one[T any](p *person, of ...T) T { return of[p.rng.IntN(len(of))] }

// make creates an object, and reports whether it exists now. A retry may find that the first attempt created it.
func (p *person) make(ctx context.Context, object client.Object, mayClose bool) bool {
	return p.ask(ctx, request{what: "creating " + object.GetName(), mayClose: mayClose, do: func(ctx context.Context, again bool) error {
		err := p.author.Create(ctx, object)
		if again && apierrors.IsAlreadyExists(err) && !isGoing(err) {
			return p.author.Get(ctx, client.ObjectKeyFromObject(object), object)
		}
		return err
	}})
}

// patch changes an object, and reports whether the API server accepted that.
func (p *person) patch(ctx context.Context, what string, object client.Object, patch any, mayClose bool) bool {
	text, err := json.Marshal(patch)
	if err != nil {
		panic(err)
	}
	return p.ask(ctx, request{what: what + " " + object.GetName(), mayClose: mayClose, do: func(ctx context.Context, _ bool) error {
		return p.author.Patch(ctx, object, client.RawPatch(types.MergePatchType, text))
	}})
}

func (p *person) delete(ctx context.Context, object client.Object) bool {
	return p.ask(ctx, request{what: "deleting " + object.GetName(), do: func(ctx context.Context, _ bool) error {
		return client.IgnoreNotFound(p.author.Delete(ctx, object))
	}})
}

func create(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	cluster.Labels = map[string]string{"env": one(p, "prod", "prod", "test", "dev")}
	cluster.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.7.0.0/16"}
	class := p.class(p.rng)
	if class.Name != "" {
		cluster.Spec.Topology = clusterv1.Topology{ClassRef: class, Version: fixture.KubernetesVersion}
	}
	if p.agentInitiated && p.rng.IntN(2) == 0 {
		cluster.Annotations = map[string]string{registrationAnnotation: "agent"}
	}
	if p.make(ctx, cluster, class.Namespace != "") {
		p.remember(cluster)
	}
}

func (p *person) remember(cluster *clusterv1.Cluster) {
	p.change(func(s *oracle.State) { s.Clusters[client.ObjectKeyFromObject(cluster)] = cluster })
}

// patchCluster changes a Cluster.
func (p *person) patchCluster(ctx context.Context, what string, cluster *clusterv1.Cluster, patch object, mayClose bool) bool {
	isDone := p.patch(ctx, what, cluster, patch, mayClose)
	if isDone {
		p.remember(cluster)
	}
	return isDone
}

// object is nested maps, for patches.
type object = map[string]any

func metadata(field, key string, value any) object {
	return object{"metadata": object{field: object{key: value}}}
}

func isInitialized(cluster *clusterv1.Cluster) bool {
	return ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)
}

func rebase(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	// A Cluster that registers itself waits for the objects of its first class, but is in Fleet already if it had no
	// class.
	if p.agentInitiated && !isInitialized(cluster) {
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
	p.patchCluster(ctx, "rebasing", cluster, object{"spec": object{"topology": topology}}, class.Namespace != "")
}

func relabel(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	p.patchCluster(ctx, "relabelling", cluster, metadata("labels", "env", one[any](p, "prod", "test", "dev", nil)), false)
}

func annotate(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	p.patchCluster(ctx, "annotating", cluster, metadata("annotations", "note", one[any](p, "a", "b", nil)), false)
}

// initialize simulates Cluster API.
func initialize(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	if isInitialized(cluster) {
		return
	}
	for _, referenced := range []*unstructured.Unstructured{fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)} {
		if p.make(ctx, referenced, false) {
			p.refer(referenced)
		}
	}
	if !p.patchCluster(ctx, "completing", cluster, object{"spec": object{
		"controlPlaneRef":   fixture.ReferenceTo(fixture.ControlPlane(cluster)),
		"infrastructureRef": fixture.ReferenceTo(fixture.Infrastructure(cluster)),
	}}, false) {
		return
	}
	if p.ask(ctx, request{what: "initializing " + cluster.Name, do: func(ctx context.Context, _ bool) error {
		return p.author.Status().Patch(ctx, cluster, client.RawPatch(types.MergePatchType, []byte(`{"status":{"initialization":{"controlPlaneInitialized":true}}}`)))
	}}) {
		p.remember(cluster)
	}
}

// refer notes an object that a Cluster refers to.
func (p *person) refer(referenced *unstructured.Unstructured) {
	p.change(func(s *oracle.State) { s.Referenced[oracle.ReferenceTo(referenced)] = referenced })
}

func scaleControlPlane(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	scaled := fixture.ControlPlane(cluster)
	if isInitialized(cluster) && p.patch(ctx, "scaling", scaled, object{"spec": object{"replicas": one(p, 1, 3, 5)}}, false) {
		p.refer(scaled)
	}
}

// remove deletes a Cluster, and then the objects that it referred to.
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

// removeFleetCluster deletes a Fleet Cluster of Muster. The wishes stay the same, so it must come back.
func removeFleetCluster(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	fleetCluster := &fleetv1.Cluster{}
	fleetCluster.Namespace, fleetCluster.Name = cluster.Namespace, cluster.Name
	if isInitialized(cluster) {
		p.delete(ctx, fleetCluster)
	}
}

func relabelClass(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	class := &clusterv1.ClusterClass{}
	class.Namespace, class.Name = p.namespace(platform), one(p, "small", "large")
	if p.patch(ctx, "relabelling ClusterClass", class, metadata("labels", "tier", one[any](p, "gold", "iron", nil)), false) {
		p.change(func(s *oracle.State) { s.Classes[client.ObjectKeyFromObject(class)] = class })
	}
}

func editConfig(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	config := fixture.Config()
	patch := object{"spec": object{"cluster": object{"agentNamespace": one[any](p, "agents-a", "agents-b", nil)}}}
	if p.patch(ctx, "changing", config, patch, true) {
		p.change(func(s *oracle.State) { s.Config = config })
	}
}

// useForbiddenClass tries to use a class that its author may not get.
func useForbiddenClass(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	cluster := p.forbidden()
	p.tryForbidden(ctx, "a Cluster with a class that its author may not get", func(ctx context.Context) error {
		return p.intruder.Create(ctx, cluster, client.DryRunAll)
	})
}

func (w *world) forbidden() *clusterv1.Cluster {
	return fixture.Cluster(w.namespace(teams[0]), "forbidden", "small", w.namespace(platform))
}

// breakConfig tries to set a selector that does not parse.
func breakConfig(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	const patch = `{"spec":{"cluster":{"selector":{"matchExpressions":[{"key":"env","operator":"In"}]}}}}`
	p.tryForbidden(ctx, "a FleetAddonConfig with a selector that does not parse", func(ctx context.Context) error {
		return p.author.Patch(ctx, fixture.Config(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
	})
}
