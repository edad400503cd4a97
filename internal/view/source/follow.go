package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/view"
)

// Follower keeps the objects of a graph up to date: it lists each kind once and then watches it.
type Follower struct {
	ctx    context.Context //nolint:containedctx // Select starts watches that end with it.
	client client.WithWatch
	scope  Scope

	mu      sync.Mutex
	objects *view.Objects
	// unreadBeyond has the kinds that could not be read outside the namespace in scope. It is separate,
	// because each note goes with the next successful read of the same part.
	unreadBeyond map[view.Kind]string
	changed      chan struct{}
	synced       sync.WaitGroup
	// selected are the Clusters whose BundleDeployments are watched; the one that was selected last is last.
	selected []*selected
}

const (
	// again is the first pause before another list or watch, and longest is the longest one, after many useless
	// attempts: no object says when the API server, or a proxy before it, answers again. A watch that lives longer than
	// again is useful even without events.
	again   = time.Second
	longest = 30 * time.Second
)

// pause is the time between attempts; it doubles with each useless one.
type pause struct{ last time.Duration }

func (p *pause) take(ctx context.Context) {
	p.last = min(max(2*p.last, again), longest)
	select {
	case <-ctx.Done():
	case <-time.After(p.last):
	}
}

// Follow starts a Follower, and returns once every kind has been listed or has failed. The objects note the kinds
// that cannot be read, then or later; the Follower keeps trying.
func Follow(ctx context.Context, from client.WithWatch, scope Scope) (*Follower, error) {
	f := &Follower{ctx: ctx, client: from, scope: scope, objects: view.NewObjects(), changed: make(chan struct{}, 1)}
	failed := make(chan error, len(feeds()))
	for _, feed := range feeds() {
		if scope.Namespace != "" && feed.kind == view.Namespace {
			continue
		}
		f.synced.Add(1)
		go f.follow(ctx, feed, failed)
	}
	f.synced.Wait()
	if scope.Namespace != "" {
		if err := f.readBeyond(ctx); err != nil {
			return nil, err
		}
		go f.poll(ctx)
	}
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	if len(errs) == len(feeds()) {
		return nil, errors.Join(errs...) // No kind could be read: there is no API server.
	}
	return f, ctx.Err()
}

// Snapshot returns the current objects, in new maps.
func (f *Follower) Snapshot() *view.Objects {
	f.mu.Lock()
	defer f.mu.Unlock()
	copied := f.objects.Clone()
	copied.Now = time.Now()
	for kind, why := range f.unreadBeyond {
		if copied.Unread[kind] == "" {
			copied.Unread[kind] = why
		}
	}
	for _, own := range f.selected {
		its := own.Snapshot()
		maps.Copy(copied.Deployments, its.Deployments)
		maps.Copy(copied.Unread, its.Unread)
	}
	return copied
}

// Changed receives after changes; several may be merged into one.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Wait returns at the next change, but not sooner than again, so that changes come together. It also returns after
// longest: an agent that falls silent causes no event.
func (f *Follower) Wait(ctx context.Context) {
	(&pause{}).take(ctx)
	select {
	case <-ctx.Done():
	case <-f.changed:
	case <-time.After(longest):
	}
}

func (f *Follower) update(change func(*view.Objects)) {
	f.mu.Lock()
	change(f.objects)
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// follow lists and watches a kind until the context ends. It sends the error of the first list.
func (f *Follower) follow(ctx context.Context, feed feed, failed chan<- error) {
	var pause pause
	since := time.Now()
	for first := true; ctx.Err() == nil; first = false {
		version, err := f.list(ctx, feed)
		if first {
			if err != nil && unreadable(err, feed.by) == "" {
				failed <- err
			}
			f.synced.Done()
		}
		why := unreadable(err, feed.by)
		if err == nil {
			err = f.keep(ctx, feed, version, &pause)
			since = time.Now()
		}
		if ctx.Err() != nil {
			return
		}
		if why == "" {
			why = staleness(err, since)
		}
		f.update(func(objects *view.Objects) { objects.Unread[feed.kind] = why })
		pause.take(ctx)
	}
}

// keep watches a kind from a version on, again and again, until a watch fails.
func (f *Follower) keep(ctx context.Context, feed feed, version string, pause *pause) error {
	for ctx.Err() == nil {
		begin := time.Now()
		seen, err := f.watch(ctx, feed, version)
		hasLasted := time.Since(begin) > again
		if hasLasted || seen != version {
			pause.last = 0
		}
		if err != nil {
			return err
		}
		if version = seen; !hasLasted {
			pause.take(ctx) // Some proxies end each watch at once, without an error.
		}
	}
	return ctx.Err()
}

func staleness(err error, since time.Time) string {
	return fmt.Sprintf("not updated since %s: %s", since.Format(time.TimeOnly), err)
}

// list lists a kind and replaces the earlier objects.
func (f *Follower) list(ctx context.Context, feed feed) (string, error) {
	fresh := view.NewObjects()
	version, err := feed.read(ctx, f.client, f.scope, fresh)
	if err != nil {
		return "", err
	}
	f.update(func(objects *view.Objects) {
		feed.move(f.scope, fresh, objects)
		delete(objects.Unread, feed.kind)
	})
	return version, nil
}

// watch follows a kind from a version on until the watch ends, and returns the last version, even with an
// error.
func (f *Follower) watch(ctx context.Context, feed feed, version string) (string, error) {
	options := append(feed.within(f.scope), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}})
	watcher, err := f.client.Watch(ctx, feed.list.DeepCopyObject().(client.ObjectList), options...)
	if feed.isAbsent(err) {
		select {
		case <-ctx.Done():
		case <-time.After(longest):
		}
		return version, nil
	}
	if err != nil {
		return version, err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, isObject := event.Object.(client.Object)
		switch {
		case event.Type == watch.Error:
			return version, apierrors.FromObject(event.Object)
		case !isObject:
			continue
		case event.Type == watch.Added, event.Type == watch.Modified:
			f.update(func(objects *view.Objects) { feed.put(objects, object) })
		case event.Type == watch.Deleted:
			f.update(func(objects *view.Objects) { feed.drop(objects, client.ObjectKeyFromObject(object)) })
		}
		version = object.GetResourceVersion()
	}
	return version, nil
}

// poll rereads the objects outside the namespace from time to time, because they are not watched.
func (f *Follower) poll(ctx context.Context) {
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(longest):
		}
		err := f.readBeyond(ctx)
		if err == nil {
			since = time.Now()
			continue
		}
		why := staleness(err, since)
		f.update(func(*view.Objects) {
			f.unreadBeyond = map[view.Kind]string{view.ClusterClass: why, view.Mapping: why}
		})
	}
}

// readBeyond reads the objects outside the namespace, and replaces the earlier ones.
func (f *Follower) readBeyond(ctx context.Context) error {
	fresh := view.NewObjects()
	f.mu.Lock()
	maps.Copy(fresh.Clusters, f.objects.Clusters)
	f.mu.Unlock()
	if err := beyond(ctx, f.client, f.scope, fresh); err != nil {
		return err
	}
	f.update(func(objects *view.Objects) {
		f.unreadBeyond = fresh.Unread
		objects.Namespaces = fresh.Namespaces
		objects.Classes = merged(f.scope, objects.Classes, fresh.Classes)
		objects.Mappings = merged(f.scope, objects.Mappings, fresh.Mappings)
	})
	return nil
}

// mostSelected is how many Clusters' BundleDeployments are watched at a time.
const mostSelected = 16

// selected has the BundleDeployments of a Cluster.
type selected struct {
	*Follower
	namespace string
	since     time.Time
	cancel    context.CancelFunc
}

// Select keeps the BundleDeployments in a Cluster's namespace in Fleet up to date, too. Since the time that it returns,
// they are in the Snapshot, or the reason why they are not. Those that were selected longest ago are given up.
func (f *Follower) Select(namespace string) time.Time {
	if namespace == "" {
		return time.Time{}
	}
	own := f.selectedOf(namespace)
	own.synced.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if own.since.IsZero() {
		own.since = time.Now()
	}
	return own.since
}

func (f *Follower) selectedOf(namespace string) *selected {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := slices.IndexFunc(f.selected, func(its *selected) bool { return its.namespace == namespace })
	if at >= 0 {
		own := f.selected[at]
		f.selected = append(slices.Delete(f.selected, at, at+1), own)
		return own
	}
	if len(f.selected) == mostSelected {
		f.selected[0].cancel()
		f.selected = slices.Delete(f.selected, 0, 1)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	own := &selected{&Follower{client: f.client, scope: Scope{Namespace: namespace}, objects: view.NewObjects(), changed: f.changed}, namespace, time.Time{}, cancel}
	f.selected = append(f.selected, own)
	own.synced.Add(1)
	go own.follow(ctx, deployments(), make(chan error, 1))
	return own
}

// deployments returns the feed of BundleDeployments.
func deployments() feed {
	update := func(o *view.Objects, key types.NamespacedName, now ...*view.Deployed) {
		// Snapshots have the slice of before.
		others := slices.DeleteFunc(slices.Clone(o.Deployments[key.Namespace]), func(its *view.Deployed) bool { return its.Name == key.Name })
		o.Deployments[key.Namespace] = append(others, now...)
	}
	return feed{
		kind: view.Deployment, list: &fleetv1.BundleDeploymentList{}, by: "Fleet",
		move: func(_ Scope, from, to *view.Objects) { to.Deployments = from.Deployments },
		put: func(o *view.Objects, object client.Object) {
			update(o, client.ObjectKeyFromObject(object), view.CutDeployment(object.(*fleetv1.BundleDeployment)))
		},
		drop: func(o *view.Objects, key types.NamespacedName) { update(o, key) },
	}
}
