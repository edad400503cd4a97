package many

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/test/helm/gates"
)

// agents simulate the agents of all Clusters for one HelmChartProxy, and record all events of the watches.
type agents struct {
	proxy string
	ctx   context.Context
	wait  sync.WaitGroup

	mu     sync.Mutex
	events []gates.Event
	// granted and halted are the revisions at which the rollout let a release move, and halted.
	granted, halted []int64
	// last is the last grant of each release, and the last reason of each rollout.
	last map[string]string
	// seen is the latest revision that each watch has reported.
	seen map[string]int64
	// wanted are the current BundleDeployments, and working those that an agent is working on.
	wanted  map[string]*fleetv1.BundleDeployment
	working map[string]bool
	// away are the Clusters whose agents do nothing.
	away []string
	// has is what each applied state of a BundleDeployment is, and readySince when its agent reported that it is ready.
	has        map[string]string
	readySince map[string]time.Time
	// failed is the state that an agent could not apply, and versions are the versions of the charts in Contents.
	failed, versions map[string]string
	problems         []string
}

// play plays until the test ends.
func play(t *testing.T, proxy string) *agents {
	a := &agents{
		proxy: proxy, seen: map[string]int64{}, wanted: map[string]*fleetv1.BundleDeployment{}, working: map[string]bool{},
		has: map[string]string{}, readySince: map[string]time.Time{}, versions: map[string]string{}, failed: map[string]string{}, last: map[string]string{},
	}
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithCancel(ctx)
	for _, list := range []client.ObjectList{&fleetv1.ContentList{}, &fleetv1.BundleDeploymentList{}, &addonsv1.HelmReleaseProxyList{}, &addonsv1.HelmChartProxyList{}} {
		g := NewWithT(t)
		g.Expect(admin.List(ctx, list)).To(Succeed())
		g.Expect(meta.EachListItem(list, func(object runtime.Object) error {
			object.(client.Object).SetResourceVersion("0") // The initial objects come before all events.
			a.record(watch.Event{Type: watch.Added, Object: object})
			return nil
		})).To(Succeed())
		// When the API server ends a watch, it continues from the last event, and fails if an event is lost.
		watched, err := watchtools.NewRetryWatcherWithContext(a.ctx, list.GetResourceVersion(), watcher{list})
		g.Expect(err).NotTo(HaveOccurred())
		a.wait.Go(func() {
			for event := range watched.ResultChan() {
				if a.ctx.Err() == nil {
					a.record(event)
				}
			}
			if a.ctx.Err() == nil {
				a.fail("the watch of %T has ended", list)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		a.wait.Wait()
		for _, problem := range a.problems {
			t.Error(problem)
		}
	})
	return a
}

// watcher watches the objects of a list.
type watcher struct{ list client.ObjectList }

func (w watcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return admin.Watch(ctx, w.list.DeepCopyObject().(client.ObjectList), &client.ListOptions{Raw: &options})
}

func (a *agents) fail(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.problems = append(a.problems, fmt.Sprintf(format, args...))
}

func revisionOf(object client.Object) int64 {
	revision, _ := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	return revision
}

func (a *agents) record(event watch.Event) {
	object, isObject := event.Object.(client.Object)
	if !isObject {
		a.fail("a watch reports %v", event.Object)
		return
	}
	now, revision := time.Now(), revisionOf(object)
	a.mu.Lock()
	defer a.mu.Unlock()
	isGone := event.Type == watch.Deleted || !object.GetDeletionTimestamp().IsZero()
	switch its := object.(type) {
	case *fleetv1.Content:
		a.events = append(a.events, gates.Event{Revision: revision, At: now, Gone: event.Type == watch.Deleted, Content: its.Name})
	case *fleetv1.BundleDeployment:
		a.deployment(its, gates.Event{Revision: revision, At: now, Gone: isGone})
	case *addonsv1.HelmReleaseProxy:
		if grant := its.Annotations[plan.GrantedAnnotation]; a.isNew("release "+its.Name, grant) && grant != "" {
			a.granted = append(a.granted, revision)
		}
	case *addonsv1.HelmChartProxy:
		if reason, _ := rolloutOf(its); a.isNew("proxy "+its.Name, reason) && reason == addonsv1.RolloutHaltedReason {
			a.halted = append(a.halted, revision)
		}
	}
	a.seen[fmt.Sprintf("%T", object)] = revision
}

func (a *agents) isNew(of, what string) bool {
	last := a.last[of]
	a.last[of] = what
	return last != what
}

// wants is the state that Fleet wants, applies the one that the agent has applied, and id names one for one BundleDeployment.
func wants(its *fleetv1.BundleDeployment) string {
	return fmt.Sprint(its.Spec.DeploymentID, " ", its.Spec.DownstreamResourcesGeneration)
}

func applies(its *fleetv1.BundleDeployment) string {
	return fmt.Sprint(its.Status.AppliedDeploymentID, " ", its.Status.DownstreamResourcesGeneration)
}

func keyOf(its *fleetv1.BundleDeployment) string { return its.Namespace + "/" + its.Name }

func (a *agents) deployment(its *fleetv1.BundleDeployment, e gates.Event) {
	e.Deployment, e.Ready = keyOf(its), its.Status.Ready
	if its.Labels[plan.ProxyLabel] == a.proxy {
		e.Cluster = its.Labels[fleetv1.ClusterLabel]
	}
	e.Wanted, e.Applied = wants(its), applies(its)
	e.Has = a.has[e.Deployment+" "+e.Applied]
	if its.Labels[fleetv1.ContentNameLabel] != "" {
		e.Content, _, _ = strings.Cut(its.Spec.DeploymentID, ":")
	}
	if since := a.readySince[e.Deployment+" "+e.Applied]; e.Ready && e.Applied == e.Wanted && !since.IsZero() {
		e.At = since
	}
	a.events = append(a.events, e)
	switch {
	case e.Gone:
		delete(a.wanted, e.Deployment)
	case e.Cluster != "":
		a.wanted[e.Deployment] = its
		a.begin(e.Deployment)
	}
}

func (a *agents) begin(key string) {
	if !a.working[key] && !a.isAway(a.wanted[key]) {
		a.working[key] = true
		a.wait.Go(func() { a.work(key) })
	}
}

func (a *agents) isAway(its *fleetv1.BundleDeployment) bool {
	return slices.Contains(a.away, its.Labels[fleetv1.ClusterLabel])
}

// leave makes the agents of these Clusters silent from now on, and all others come back.
func (a *agents) leave(clusters []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = clusters
	for key := range a.wanted {
		a.begin(key)
	}
}

// work does what an agent does, until its Cluster has what Fleet wants.
func (a *agents) work(key string) {
	for a.ctx.Err() == nil {
		a.mu.Lock()
		its := a.wanted[key]
		isDone := its == nil || a.isAway(its) || applies(its) == wants(its) && its.Status.Ready || a.failed[key] == wants(its)
		if isDone {
			a.working[key] = false
			a.mu.Unlock()
			return
		}
		its = its.DeepCopy()
		a.mu.Unlock()
		a.step(its)
		time.Sleep(50 * time.Millisecond) // Installing takes a while.
	}
}

// step installs what Fleet wants, or, once it is installed, reports that it is ready.
func (a *agents) step(its *fleetv1.BundleDeployment) {
	has, err := a.read(its)
	if err != nil {
		return // Fleet has not copied the values yet.
	}
	before, status := its.DeepCopy(), &its.Status
	deployed := genericcondition.GenericCondition{Type: fleetv1.BundleDeploymentConditionDeployed, Status: corev1.ConditionTrue, LastUpdateTime: time.Now().UTC().Format(time.RFC3339)}
	isBad := strings.Contains(has, "bad")
	if isBad {
		deployed.Status, deployed.Reason, deployed.Message = corev1.ConditionFalse, "Error", "upgrade failed: the values are bad"
	} else {
		status.Ready, status.NonModified = applies(its) == wants(its), true
		status.AppliedDeploymentID, status.DownstreamResourcesGeneration = its.Spec.DeploymentID, its.Spec.DownstreamResourcesGeneration
		status.Release = namespace + "/" + its.Name + ":1"
	}
	status.Conditions = []genericcondition.GenericCondition{deployed}
	a.mu.Lock()
	switch key := keyOf(its) + " " + wants(its); {
	case isBad:
		a.failed[keyOf(its)] = wants(its)
	case status.Ready:
		a.readySince[key] = time.Now()
	default:
		a.has[key] = has
		delete(a.readySince, key)
	}
	a.mu.Unlock()
	if err := admin.Status().Patch(a.ctx, its, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil && isBad {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.failed, keyOf(its))
	}
}

// read returns the version of the chart, from the Content or from the agent's request to the repository, and the
// values in Fleet's copies.
func (a *agents) read(its *fleetv1.BundleDeployment) (string, error) {
	options := its.Spec.Options.Helm
	version := options.Version
	if its.Labels[fleetv1.ContentNameLabel] != "" {
		name, _, _ := strings.Cut(its.Spec.DeploymentID, ":")
		var err error
		if version, err = a.versionIn(name); err != nil {
			if a.ctx.Err() != nil {
				return "", err
			}
			a.fail("%s deploys Content %s: %v", keyOf(its), name, err)
			return "", err
		}
	}
	text := version
	for _, from := range options.ValuesFrom {
		values := &corev1.ConfigMap{}
		if err := admin.Get(a.ctx, client.ObjectKey{Namespace: its.Namespace, Name: from.ConfigMapKeyRef.Name}, values); err != nil {
			return "", err
		}
		its, found := values.Data[from.ConfigMapKeyRef.Key]
		if !found {
			return "", fmt.Errorf("there is no key %s", from.ConfigMapKeyRef.Key)
		}
		text += " " + strings.TrimSpace(its)
	}
	return text, nil
}

var chartVersion = regexp.MustCompile(`\bversion: "?([0-9.]+)`)

// versionIn reads the version of the chart in a Content.
func (a *agents) versionIn(name string) (string, error) {
	a.mu.Lock()
	version := a.versions[name]
	a.mu.Unlock()
	content := &fleetv1.Content{}
	if err := admin.Get(a.ctx, client.ObjectKey{Name: name}, content); err != nil || version != "" {
		return version, err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(content.Content))
	if err != nil {
		return "", err
	}
	var manifest struct{ Resources []fleetv1.BundleResource }
	if err := json.NewDecoder(unpacked).Decode(&manifest); err != nil {
		return "", err
	}
	for _, its := range manifest.Resources {
		if match := chartVersion.FindStringSubmatch(its.Content); strings.HasSuffix(its.Name, "Chart.yaml") && !strings.Contains(its.Name, "empty") && match != nil {
			version = match[1]
		}
	}
	if version == "" {
		return "", errors.New("it has no Chart.yaml")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.versions[name] = version
	return version, nil
}

// have returns how many Clusters have each state.
func (a *agents) have() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := map[string]int{}
	for key, its := range a.wanted {
		if applies(its) == wants(its) && its.Status.Ready {
			count[strings.ReplaceAll(a.has[key+" "+wants(its)], its.Labels[fleetv1.ClusterLabel], "NAME")]++
		} else {
			count["another"]++
		}
	}
	return count
}

// unavailable returns how many of these Clusters do not have what Fleet wants.
func (a *agents) unavailable(clusters []string) (count int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, its := range a.wanted {
		if slices.Contains(clusters, its.Labels[fleetv1.ClusterLabel]) && (applies(its) != wants(its) || !its.Status.Ready) {
			count++
		}
	}
	return count
}

// moves returns when each Cluster was first to have another state after a revision.
func (a *agents) moves(since int64) (moves []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, isMoved := map[string]string{}, map[string]bool{}
	for _, e := range a.events {
		if e.Cluster != "" && e.Revision > since && before[e.Cluster] != "" && before[e.Cluster] != e.Wanted && !isMoved[e.Cluster] {
			isMoved[e.Cluster] = true
			moves = append(moves, e.At)
		}
		if e.Cluster != "" {
			before[e.Cluster] = e.Wanted
		}
	}
	return moves
}

// history returns the events once each watch has reported everything up to now.
func (a *agents) history(g Gomega) []gates.Event {
	touch := func(object client.Object) int64 {
		before := object.DeepCopyObject().(client.Object)
		object.SetAnnotations(labels.Merge(object.GetAnnotations(), labels.Set{"touched": time.Now().String()}))
		g.Expect(admin.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
		return revisionOf(object)
	}
	content := &fleetv1.Content{}
	content.Name = fmt.Sprintf("last-%d", time.Now().UnixNano())
	deployment := &fleetv1.BundleDeployment{}
	deployment.Namespace, deployment.Name = namespace, content.Name
	g.Expect(admin.Create(ctx, content)).To(Succeed())
	g.Expect(admin.Create(ctx, deployment)).To(Succeed())
	var proxies addonsv1.HelmChartProxyList
	var releases addonsv1.HelmReleaseProxyList
	g.Expect(admin.List(ctx, &proxies)).To(Succeed())
	g.Expect(admin.List(ctx, &releases)).To(Succeed())
	until := map[string]int64{}
	for _, object := range []client.Object{content, deployment} {
		until[fmt.Sprintf("%T", object)] = revisionOf(object)
	}
	until["*v1alpha1.HelmChartProxy"] = touch(&proxies.Items[0])
	until["*v1alpha1.HelmReleaseProxy"] = touch(&releases.Items[0])
	var events []gates.Event
	g.Eventually(func(g Gomega) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for kind, revision := range until {
			g.Expect(a.seen[kind]).To(BeNumerically(">=", revision), kind)
		}
		events = a.events
	}).Should(Succeed())
	return events
}
