package helm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
)

// player plays the agents of Clusters that exist in memory only. It reads the values that Fleet has copied for
// a Cluster, and reports first that they are installed, and then that everything is ready; but values with the
// word bad never become ready. At every event, it counts the Clusters that are not ready, or are not in the
// state that Fleet wants.
type player struct {
	all   client.WithWatch
	proxy string
	// of are the labels of the BundleDeployments.
	of client.MatchingLabels

	mu          sync.Mutex
	deployments map[client.ObjectKey]*fleetv1.BundleDeployment
	working     map[client.ObjectKey]bool
	// installed holds the values of each Cluster, by its name, and seen each Cluster with values that the
	// player has installed.
	installed map[string]string
	seen      map[string]bool
	// most is the highest number of Clusters that were unavailable at once, and trace lists them.
	most     int
	trace    []string
	problems []string
}

// play simulates the agents until the test ends.
func play(t *testing.T, proxy string) *player {
	g := NewWithT(t)
	all, err := fixture.Client(env)
	g.Expect(err).NotTo(HaveOccurred())
	p := &player{
		all: all, proxy: proxy, of: client.MatchingLabels{"helmchartproxy-name.fleet.addons.cluster.x-k8s.io": proxy},
		deployments: map[client.ObjectKey]*fleetv1.BundleDeployment{}, working: map[client.ObjectKey]bool{},
		installed: map[string]string{}, seen: map[string]bool{},
	}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	for _, list := range []client.ObjectList{&fleetv1.BundleDeploymentList{}, &corev1.ConfigMapList{}} {
		watched, err := all.Watch(ctx, list, p.of)
		g.Expect(err).NotTo(HaveOccurred())
		wait.Go(func() {
			for event := range watched.ResultChan() {
				p.notice(ctx, event, &wait)
			}
			if ctx.Err() == nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.problems = append(p.problems, fmt.Sprintf("the watch of %T has ended", list))
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wait.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Error(problem)
		}
	})
	return p
}

func (p *player) notice(ctx context.Context, event watch.Event, wait *sync.WaitGroup) {
	switch its := event.Object.(type) {
	case *corev1.ConfigMap:
		if event.Type == watch.Deleted {
			p.isUnnamed(ctx, its.Name)
		}
	case *fleetv1.BundleDeployment:
		if clusterOf(its) == "" { // It keeps a Content.
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		key := client.ObjectKeyFromObject(its)
		if event.Type == watch.Deleted {
			delete(p.deployments, key)
			delete(p.installed, clusterOf(its))
			return
		}
		p.deployments[key] = its
		p.count()
		if !p.working[key] {
			p.working[key] = true
			wait.Go(func() { p.work(ctx, key) })
		}
	}
}

// isUnnamed checks that no Bundle or BundleDeployment names a deleted object.
func (p *player) isUnnamed(ctx context.Context, name string) {
	var bundles fleetv1.BundleList
	var deployments fleetv1.BundleDeploymentList
	if p.all.List(ctx, &bundles, p.of) != nil || p.all.List(ctx, &deployments, p.of) != nil {
		return // The test is over.
	}
	var named []string
	note := func(by string, resources []fleetv1.DownstreamResource) {
		for _, its := range resources {
			if its.Name == name {
				named = append(named, by)
			}
		}
	}
	for _, bundle := range bundles.Items {
		note("Bundle", bundle.Spec.DownstreamResources)
		for _, target := range bundle.Spec.Targets {
			note("target "+target.ClusterName, target.DownstreamResources)
		}
	}
	for _, its := range deployments.Items {
		if its.DeletionTimestamp.IsZero() {
			note("BundleDeployment of "+clusterOf(&its), its.Spec.Options.DownstreamResources)
			note("BundleDeployment of "+clusterOf(&its), its.Spec.StagedOptions.DownstreamResources)
		}
	}
	err := p.all.Get(ctx, client.ObjectKey{Namespace: rolling, Name: name}, &corev1.ConfigMap{})
	isLeft := p.all.Get(ctx, client.ObjectKey{Namespace: rolling, Name: p.proxy}, &addonsv1.HelmChartProxy{}) == nil
	if len(named) > 0 && isLeft && apierrors.IsNotFound(err) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problems = append(p.problems, fmt.Sprintf("ConfigMap %s was deleted, and is named by %v", name, named))
	}
}

func clusterOf(its *fleetv1.BundleDeployment) string { return its.Labels["fleet.cattle.io/cluster"] }

// lacks describes the difference between a Cluster and a ready Cluster in the state that Fleet wants.
func lacks(its *fleetv1.BundleDeployment) (what string) {
	if its.Status.AppliedDeploymentID != its.Spec.DeploymentID {
		what += " not installed"
	}
	if its.Status.DownstreamResourcesGeneration != its.Spec.DownstreamResourcesGeneration {
		what += " not copied"
	}
	if !its.Status.Ready {
		what += " not ready"
	}
	return what
}

func isCurrent(its *fleetv1.BundleDeployment) bool { return lacks(its) == "" }

// count notes how many Clusters are unavailable.
func (p *player) count() {
	var names []string
	for _, its := range p.deployments {
		if why := lacks(its); why != "" {
			names = append(names, clusterOf(its)+why)
		}
	}
	slices.Sort(names)
	p.most = max(p.most, len(names))
	if line := strings.Join(names, ", "); len(p.trace) == 0 || p.trace[len(p.trace)-1] != line {
		p.trace = append(p.trace, line)
	}
}

// begin restarts the count, once every Cluster is available.
func (p *player) begin(g Gomega) {
	g.Eventually(func(g Gomega) {
		p.mu.Lock()
		defer p.mu.Unlock()
		g.Expect(p.deployments).To(HaveLen(clusters))
		for _, its := range p.deployments {
			g.Expect(isCurrent(its) && its.Spec.StagedDeploymentID == its.Spec.DeploymentID).To(BeTrue(), clusterOf(its))
		}
		p.most, p.trace = 0, nil
	}).Should(Succeed())
}

// have returns the Clusters whose values contain all of these texts.
func (p *player) have(texts ...string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name, values := range p.installed {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(values, text) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// bounded checks that the number of unavailable Clusters stayed within the bound, and that the player counted
// them.
func (p *player) bounded(g Gomega) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.Expect(p.most).To(And(BeNumerically(">=", 1), BeNumerically("<=", bound)), "unavailable at once:\n%s", strings.Join(p.trace, "\n"))
}

// work installs the state that Fleet wants on a Cluster, step by step.
func (p *player) work(ctx context.Context, key client.ObjectKey) {
	waited := 0
	for ctx.Err() == nil {
		p.mu.Lock()
		its := p.deployments[key]
		if its == nil || isCurrent(its) || p.isBad(its) {
			p.working[key] = false
			p.mu.Unlock()
			return
		}
		its = its.DeepCopy()
		p.mu.Unlock()
		if !its.DeletionTimestamp.IsZero() || !p.install(ctx, its, waited > 40) {
			waited++
		} else {
			waited = 0
		}
		time.Sleep(50 * time.Millisecond) // Installing takes a while.
	}
}

// isBad reports whether a Cluster is in the state that Fleet wants, but never becomes ready.
func (p *player) isBad(its *fleetv1.BundleDeployment) bool {
	return its.Status.AppliedDeploymentID == its.Spec.DeploymentID && strings.Contains(p.installed[clusterOf(its)], "bad") &&
		its.Status.DownstreamResourcesGeneration == its.Spec.DownstreamResourcesGeneration
}

// install takes one step. Fleet counts its copies for a Cluster a moment after it writes them; install waits
// for the count, unless impatient.
func (p *player) install(ctx context.Context, its *fleetv1.BundleDeployment, impatient bool) bool {
	values, found := p.read(ctx, its)
	if !found {
		return false
	}
	cluster := clusterOf(its)
	isCounted := its.Spec.DownstreamResourcesGeneration != its.Status.DownstreamResourcesGeneration
	p.mu.Lock()
	isNew := !p.seen[cluster+values]
	if isNew && !isCounted && !impatient {
		p.mu.Unlock()
		return false
	}
	p.seen[cluster+values], p.installed[cluster] = true, values
	p.mu.Unlock()
	before := its.DeepCopy()
	isInstalled := its.Status.AppliedDeploymentID == its.Spec.DeploymentID && !isCounted
	its.Status.AppliedDeploymentID, its.Status.DownstreamResourcesGeneration = its.Spec.DeploymentID, its.Spec.DownstreamResourcesGeneration
	its.Status.Release, its.Status.NonModified = "rolling/"+its.Name+":1", true
	its.Status.Ready = isInstalled && !strings.Contains(values, "bad")
	// The observed object may be old: a Cluster that is ready by now must not become unready.
	return p.all.Status().Patch(ctx, its, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})) == nil
}

// read reads the values of a Cluster from Fleet's copies.
func (p *player) read(ctx context.Context, its *fleetv1.BundleDeployment) (values string, found bool) {
	if its.Spec.Options.Helm == nil {
		return "", true
	}
	for _, from := range its.Spec.Options.Helm.ValuesFrom {
		name, key, text := "", "", ""
		if from.SecretKeyRef != nil {
			var secret corev1.Secret
			name, key = from.SecretKeyRef.Name, from.SecretKeyRef.Key
			if p.all.Get(ctx, client.ObjectKey{Namespace: its.Namespace, Name: name}, &secret) == nil {
				text = string(secret.Data[key])
			}
		} else {
			var configMap corev1.ConfigMap
			name, key = from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key
			if p.all.Get(ctx, client.ObjectKey{Namespace: its.Namespace, Name: name}, &configMap) == nil {
				text = configMap.Data[key]
			}
		}
		if text == "" {
			return "", false
		}
		values += name + " " + key + " " + text + "\n"
	}
	return values, true
}
