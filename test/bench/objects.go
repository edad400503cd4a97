package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/fixture"
)

// classNamespace is the namespace of all classes.
const classNamespace = "bench-classes"

// requestsAtOnce is how many requests the benchmark sends at a time when it makes Clusters.
const requestsAtOnce = 8

//go:embed objects
var files embed.FS

// The objects of a Cluster, by the file with an example of each.
const (
	clusterFile        = "cluster.yaml"
	controlPlaneFile   = "kubeadm_control_plane.yaml"
	infrastructureFile = "dev_cluster.yaml"
)

// allFiles are in the order in which their objects are made.
var allFiles = []string{controlPlaneFile, infrastructureFile, clusterFile}

// fileContent stands for a file that kubeadm writes, in JSON.
var fileContent = strings.Repeat(`vm.overcommit_memory = 1\n`, 22)

// templates are the files as JSON, because parsing JSON is much faster, and there are thousands of objects.
var templates = func() map[string]string {
	result := map[string]string{}
	for _, name := range allFiles {
		content, err := files.ReadFile("objects/" + name)
		if err == nil {
			content, err = yaml.YAMLToJSON(content)
		}
		if err != nil { // The files are part of the program.
			panic(fmt.Sprintf("%s: %v", name, err))
		}
		result[name] = string(content)
	}
	return result
}()

// generator makes many Clusters like those of real platforms, and plays Cluster API for them. Each has a kubeadm
// control plane of about 12 KiB and an infrastructure object. They are of several classes in a namespace of their
// own, used from several namespaces.
type generator struct {
	admin client.Client
	// prefix begins the name of each namespace.
	prefix string
	// namespaces and classes are used in turns: the first Clusters are of the first class, one in each namespace.
	namespaces, classes int
	// labels are on each namespace.
	labels map[string]string
	// next is the lowest number that no Cluster has ever had.
	next int
}

// take reserves this many new Clusters, and returns their range of numbers.
func (g *generator) take(count int) (from, to int) {
	from, g.next = g.next, g.next+count
	return from, g.next
}

// key returns the name of a Cluster, and of the objects that it refers to.
func (g *generator) key(i int) client.ObjectKey {
	return client.ObjectKey{Namespace: g.namespace(i), Name: fmt.Sprintf("cluster-%05d", i)}
}

func (g *generator) namespace(i int) string { return fmt.Sprintf("%s-%02d", g.prefix, i%g.namespaces) }

func className(i int) string { return fmt.Sprintf("class-%d", i) }

// keys returns the names of Clusters, with a time.
func (g *generator) keys(from, to int, at time.Time) map[client.ObjectKey]time.Time {
	keys := make(map[client.ObjectKey]time.Time, to-from)
	for i := from; i < to; i++ {
		keys[g.key(i)] = at
	}
	return keys
}

// object returns the object of a Cluster, made from a file.
func (g *generator) object(file string, i int) *unstructured.Unstructured {
	key := g.key(i)
	text := strings.NewReplacer("CLASSNAMESPACE", classNamespace, "CLASS", className(i/g.namespaces%g.classes),
		"NAMESPACE", key.Namespace, "NAME", key.Name, "CONTENT", fileContent).Replace(templates[file])
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &object.Object); err != nil { // The files are part of the program.
		panic(fmt.Sprintf("%s: %v", file, err))
	}
	return object
}

// prepare makes the classes and the namespaces.
func (g *generator) prepare(ctx context.Context) error {
	var objects []client.Object
	namespace := func(name string) {
		object := &corev1.Namespace{}
		object.Name, object.Labels = name, g.labels
		objects = append(objects, object)
	}
	namespace(classNamespace)
	for i := range g.classes {
		objects = append(objects, fixture.Class(classNamespace, className(i), map[string]string{"platform.example.com/release": "r1"}))
	}
	for i := range g.namespaces {
		namespace(g.namespace(i))
	}
	for _, object := range objects {
		if err := client.IgnoreAlreadyExists(g.admin.Create(ctx, object)); err != nil {
			return err
		}
	}
	return nil
}

// create makes Clusters, and the objects that they refer to; their control planes are not initialized.
func (g *generator) create(ctx context.Context, from, to int, files ...string) error {
	return g.each(ctx, from, to, func(ctx context.Context, i int) error {
		for _, file := range files {
			if err := g.admin.Create(ctx, g.object(file, i)); err != nil {
				return fmt.Errorf("%s: %w", g.key(i), err)
			}
		}
		return nil
	})
}

// initialize reports that one Cluster's control plane is initialized, as Cluster API does.
func (g *generator) initialize(ctx context.Context, i int) error {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = g.key(i).Namespace, g.key(i).Name
	return g.admin.Status().Patch(ctx, cluster, client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"phase":"Provisioned","initialization":{"infrastructureProvisioned":true,"controlPlaneInitialized":true}}}`)))
}

// label gives an object of a Cluster a label.
func (g *generator) label(ctx context.Context, file string, i int, key, value string) error {
	return g.admin.Patch(ctx, g.object(file, i), labelPatch(key, value))
}

func labelPatch(key, value string) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value))
}

// each calls do for each number, with at most requestsAtOnce calls at a time.
func (g *generator) each(ctx context.Context, from, to int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requestsAtOnce)
	for i := from; i < to && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// pace calls do for each number at a rate, whether or not earlier calls have returned, so that a slow program does
// not slow down its load. It returns when all calls have.
func pace(ctx context.Context, perSecond float64, from, to int, do func(context.Context, int) error) error {
	limiter := flowcontrol.NewTokenBucketRateLimiter(float32(perSecond), 1)
	group, ctx := errgroup.WithContext(ctx)
	for i := from; i < to && limiter.Wait(ctx) == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}
