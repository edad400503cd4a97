package faults

import (
	"context"
	"errors"
	"syscall"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	apiServerAway = 30 * time.Second
	etcdAway      = 20 * time.Second
)

// stopAPIServer kills the API server, and restarts it after longer than any lease.
func stopAPIServer(ctx context.Context, r *run) error { return r.withoutAPIServer(ctx, apiServerAway) }

func (r *run) withoutAPIServer(ctx context.Context, length time.Duration) error {
	r.apiDown.Store(true)
	if err := r.kill(ctx, apiServer); err != nil {
		return err
	}
	if err := sleep(ctx, length); err != nil {
		return err
	}
	r.over = time.Now()
	if err := r.env.Start(ctx, apiServer); err != nil {
		return err
	}
	return r.restartControllers(ctx)
}

// stopEtcd freezes etcd, or kills it: if frozen, the API server waits for answers; if killed, it gets none.
func stopEtcd(ctx context.Context, r *run) error {
	r.apiDown.Store(true)
	stop, start := func() error { return r.kill(ctx, etcd) }, func() error { return r.env.Start(ctx, etcd) }
	if r.rng.IntN(2) == 0 {
		stop, start = func() error { return r.env.Signal(etcd, syscall.SIGSTOP) }, func() error { return r.env.Signal(etcd, syscall.SIGCONT) }
	}
	if err := stop(); err != nil {
		return err
	}
	err := sleep(ctx, etcdAway)
	r.over = time.Now()
	if err := errors.Join(err, start()); err != nil {
		return err
	}
	// The API server may have ended itself.
	if err := r.env.Start(ctx, apiServer); err != nil {
		return err
	}
	if err := poll.Until(ctx, "the API server to read and write", time.Minute, func(ctx context.Context) error {
		return r.admin.Get(ctx, client.ObjectKeyFromObject(fixture.Config()), fixture.Config())
	}); err != nil {
		return err
	}
	return r.restartControllers(ctx)
}

// removeFleetCRDs uninstalls Fleet's CRDs, and so deletes every object of Fleet, and installs them again.
func removeFleetCRDs(ctx context.Context, r *run) error {
	deletion := []string{"delete", "crd"}
	var fresh []object
	// Muster writes or reads objects of these kinds.
	for _, kind := range []string{"clusters", "clustergroups", "bundlenamespacemappings", "bundles", "bundledeployments", "helmops"} {
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		if err := r.admin.Get(ctx, client.ObjectKey{Name: kind + ".fleet.cattle.io"}, crd); err != nil {
			return err
		}
		deletion = append(deletion, crd.GetName())
		fresh = append(fresh, object{"apiVersion": crd.GetAPIVersion(), "kind": crd.GetKind(), "metadata": object{"name": crd.GetName()}, "spec": crd.Object["spec"]})
	}
	if _, err := r.env.Kubectl(ctx, deletion...); err != nil { // The command waits until they are gone.
		return err
	}
	if err := r.pause(ctx, 500*time.Millisecond, 8*time.Second); err != nil {
		return err
	}
	for _, crd := range fresh {
		if err := r.admin.Create(ctx, &unstructured.Unstructured{Object: crd}); err != nil {
			return err
		}
	}
	r.over = time.Now()
	return poll.Until(ctx, "Fleet's CRDs to be served", time.Minute, func(ctx context.Context) error {
		_, err := r.observe(ctx, r.admin)
		return err
	})
}
