package source

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/picture"
)

// Follower keeps what a picture is made of up to date: each kind is listed once and then
// watched.
type Follower struct {
	client client.WithWatch
	scope  Scope

	mu      sync.Mutex
	objects *picture.Objects
	changed chan struct{}
	synced  sync.WaitGroup
}

const (
	// again is how long to wait before a list or watch that failed is tried again, and
	// longest how long at most.
	again   = time.Second
	longest = 30 * time.Second
)

// Follow starts to follow, and returns once everything was listed, or could not be. What
// cannot be read, then or later, is noted in the objects; it is tried again all the time.
func Follow(ctx context.Context, from client.WithWatch, scope Scope) (*Follower, error) {
	f := &Follower{client: from, scope: scope, objects: picture.NewObjects(), changed: make(chan struct{}, 1)}
	failed := make(chan error, len(feeds()))
	for _, feed := range feeds() {
		if scope.Namespace != "" && feed.kind == picture.Namespace {
			continue
		}
		f.synced.Add(1)
		go f.follow(ctx, feed, failed)
	}
	f.synced.Wait()
	if scope.Namespace != "" {
		f.mu.Lock()
		err := beyond(ctx, from, scope, f.objects)
		f.mu.Unlock()
		if err != nil {
			return nil, err
		}
		go f.revisit(ctx)
	}
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	if len(errs) == len(feeds()) {
		return nil, errors.Join(errs...) // Nothing could be read: nobody is there.
	}
	return f, ctx.Err()
}

// Snapshot returns the objects as they are now, in maps of their own.
func (f *Follower) Snapshot() *picture.Objects {
	f.mu.Lock()
	defer f.mu.Unlock()
	copied := f.objects.Clone()
	copied.Now = time.Now()
	return copied
}

// Changed receives after changes, of which several may be one.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

func (f *Follower) update(change func(*picture.Objects)) {
	f.mu.Lock()
	change(f.objects)
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// follow lists and watches a kind for as long as the context lives. The first list is
// waited for; an error of it is sent.
func (f *Follower) follow(ctx context.Context, feed feed, failed chan<- error) {
	first := true
	for wait := again; ctx.Err() == nil; wait = min(2*wait, longest) {
		version, err := f.list(ctx, feed)
		if first {
			if err != nil && unreadable(err, feed.by) == "" {
				failed <- err
			}
			f.synced.Done()
			first = false
		}
		for err == nil && ctx.Err() == nil {
			wait = again
			version, err = f.watch(ctx, feed, version)
		}
		if ctx.Err() != nil {
			return
		}
		f.update(func(objects *picture.Objects) { objects.Unread[feed.kind] = staleness(err, feed.by) })
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func staleness(err error, by string) string {
	if why := unreadable(err, by); why != "" {
		return why
	}
	return fmt.Sprintf("not up to date since %s: %s", time.Now().Format(time.TimeOnly), err)
}

// list lists a kind and puts it in the place of what was there.
func (f *Follower) list(ctx context.Context, feed feed) (string, error) {
	fresh := picture.NewObjects()
	version, err := feed.read(ctx, f.client, f.scope, fresh)
	if err != nil {
		return "", err
	}
	f.update(func(objects *picture.Objects) {
		feed.clear(objects)
		feed.move(fresh, objects)
		delete(objects.Unread, feed.kind)
	})
	return version, nil
}

// watch follows a kind from a version on until the watch ends, and returns how far it came.
func (f *Follower) watch(ctx context.Context, feed feed, version string) (string, error) {
	options := append(feed.within(f.scope), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}})
	watcher, err := f.client.Watch(ctx, feed.list.DeepCopyObject().(client.ObjectList), options...)
	if err != nil {
		return "", err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, isObject := event.Object.(client.Object)
		switch {
		case event.Type == watch.Error:
			return "", apierrors.FromObject(event.Object)
		case !isObject:
			continue
		case event.Type == watch.Added, event.Type == watch.Modified:
			f.update(func(objects *picture.Objects) { feed.put(objects, object) })
		case event.Type == watch.Deleted:
			f.update(func(objects *picture.Objects) { feed.drop(objects, client.ObjectKeyFromObject(object)) })
		}
		version = object.GetResourceVersion()
	}
	return version, nil
}

// revisit reads again, now and then, what lies beyond the namespace and is not watched.
func (f *Follower) revisit(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(longest):
		}
		fresh := picture.NewObjects()
		f.mu.Lock()
		for key, cluster := range f.objects.Clusters {
			fresh.Clusters[key] = cluster
		}
		f.mu.Unlock()
		err := beyond(ctx, f.client, f.scope, fresh)
		f.update(func(objects *picture.Objects) {
			if err != nil {
				objects.Unread[picture.Mapping] = staleness(err, "Fleet")
				return
			}
			objects.Namespaces = fresh.Namespaces
			for key := range fresh.Classes {
				objects.Classes[key] = true
			}
			for key := range objects.Mappings {
				if key.Namespace != f.scope.Namespace && fresh.Mappings[key] == nil {
					delete(objects.Mappings, key)
				}
			}
			for key, mapping := range fresh.Mappings {
				objects.Mappings[key] = mapping
			}
		})
	}
}

// WatchBundles calls changed whenever Fleet changes what it has for a Cluster, until the
// context ends.
func (f *Follower) WatchBundles(ctx context.Context, fleetNamespace string, changed func()) {
	deployments := feed{
		kind: picture.Deployment, list: &fleetv1.BundleDeploymentList{}, by: "Fleet",
		clear: func(*picture.Objects) {}, move: func(_, _ *picture.Objects) {},
		put:  func(*picture.Objects, client.Object) { changed() },
		drop: func(*picture.Objects, types.NamespacedName) { changed() },
	}
	own := &Follower{client: f.client, scope: Scope{Namespace: fleetNamespace}, objects: picture.NewObjects(), changed: make(chan struct{}, 1)}
	own.synced.Add(1)
	own.follow(ctx, deployments, make(chan error, 1))
}
