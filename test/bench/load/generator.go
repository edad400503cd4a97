package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// Generator makes the Clusters of a shape.
type Generator struct {
	Shape
	Client client.Client
	// Concurrency is how many requests are under way at once.
	Concurrency int
}

// Prepare makes the classes and the namespaces.
func (g *Generator) Prepare(ctx context.Context) error {
	namespace := Shape{Prefix: ClassNamespace, Namespaces: 1}.namespaceObject(0)
	namespace.SetName(ClassNamespace)
	if err := g.Client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for i := range g.Classes {
		class := fixture.Class(ClassNamespace, className(i), map[string]string{"platform.example.com/release": "r1"})
		if err := g.Client.Create(ctx, class); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	for i := range g.Namespaces {
		if err := g.Client.Create(ctx, g.namespaceObject(i)); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// Create makes the Clusters from one number up to another, and what they refer to; their
// control planes are not initialized.
func (g *Generator) Create(ctx context.Context, from, to int, files ...string) error {
	if len(files) == 0 {
		files = []string{ControlPlaneFile, InfrastructureFile, ClusterFile}
	}
	return g.Each(ctx, from, to, func(ctx context.Context, i int) error {
		for _, file := range files {
			object, err := g.Object(file, i)
			if err != nil {
				return err
			}
			if err := g.Client.Create(ctx, object); err != nil {
				return fmt.Errorf("%s: %w", g.Key(i), err)
			}
		}
		return nil
	})
}

// Initialize says of one Cluster that its control plane is initialized, as Cluster API does.
func (g *Generator) Initialize(ctx context.Context, i int) error {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = g.Key(i).Namespace, g.Key(i).Name
	patch := client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"phase":"Provisioned","initialization":{"infrastructureProvisioned":true,"controlPlaneInitialized":true}}}`))
	return g.Client.Status().Patch(ctx, cluster, patch)
}

// InitializeAll initializes Clusters as fast as they can be.
func (g *Generator) InitializeAll(ctx context.Context, from, to int) error {
	return g.Each(ctx, from, to, g.Initialize)
}

// Each calls do for each number, as many at a time as there may be requests.
func (g *Generator) Each(ctx context.Context, from, to int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(g.Concurrency)
	for i := from; i < to && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// Pace calls do for each number at a rate, whether or not earlier calls have returned: what
// is measured cannot slow down what it is measured with. It returns when all have.
func Pace(ctx context.Context, perSecond float64, from, to int, do func(context.Context, int) error) error {
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	begin := time.Now()
	for i := from; i < to; i++ {
		due := begin.Add(time.Duration(float64(i-from) / perSecond * float64(time.Second)))
		select {
		case <-ctx.Done():
			wait.Wait()
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
		wait.Go(func() {
			if err := do(ctx, i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	wait.Wait()
	return first
}
