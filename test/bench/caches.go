package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// childCommand makes this program run as a baseline: as caches, or as a webhook.
const childCommand = "be"

// ready is what a child prints when it is ready.
const ready = "ready"

// beChild runs the baseline that the arguments name, until standard input ends.
func beChild(ctx context.Context, args []string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	switch args[0] {
	case "caches":
		return fill(ctx, args[1])
	case "webhook":
		return serveNoop(ctx, args[1], args[2])
	}
	return fmt.Errorf("unknown: %q", args)
}

// child is a process that runs a baseline.
type child struct {
	command *exec.Cmd
	input   io.Closer
	errors  bytes.Buffer
}

// startChild starts a child with the syncer's GOGC, and waits until it is ready.
func startChild(ctx context.Context, args ...string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{command: exec.CommandContext(ctx, program, append([]string{childCommand}, args...)...)}
	c.command.Env = append(os.Environ(), "GOGC=50")
	c.command.Stderr = &c.errors
	if c.input, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	if line, _ := bufio.NewReader(output).ReadString('\n'); line != ready+"\n" {
		_, err := c.end()
		return nil, errors.Join(fmt.Errorf("%v: it is not ready, but says %q", args, line), err)
	}
	return c, nil
}

// end ends the child, and returns the processor time that it used.
func (c *child) end() (time.Duration, error) {
	_ = c.input.Close()
	if err := c.command.Wait(); err != nil {
		return 0, fmt.Errorf("%v: %w: %s", c.command.Args, err, c.errors.String())
	}
	return c.command.ProcessState.UserTime() + c.command.ProcessState.SystemTime(), nil
}

// fill fills controller-runtime's caches with the objects that the syncer reads the most of: Clusters, Fleet
// Clusters, and the objects that Clusters refer to. It keeps only the name of each object. Then it reports that it is
// ready, and keeps the caches up to date. Any syncer with these libraries costs at least that much.
func fill(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	utilruntime.Must(clusterv1.AddToScheme(scheme))
	utilruntime.Must(fleetv1.AddToScheme(scheme))
	objects, err := cache.New(config, cache.Options{Scheme: scheme, DefaultTransform: nameOnly})
	if err != nil {
		return err
	}
	for _, object := range []client.Object{
		&clusterv1.Cluster{}, &fleetv1.Cluster{},
		fixture.ControlPlane(&clusterv1.Cluster{}), fixture.Infrastructure(&clusterv1.Cluster{}),
	} {
		if _, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false)); err != nil {
			return err
		}
	}
	go func() {
		if objects.WaitForCacheSync(ctx) {
			fmt.Println(ready)
		}
	}()
	return objects.Start(ctx)
}

func nameOnly(object any) (any, error) {
	from, isObject := object.(client.Object)
	if !isObject {
		return object, nil
	}
	kept := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
	kept.GetObjectKind().SetGroupVersionKind(from.GetObjectKind().GroupVersionKind())
	kept.SetNamespace(from.GetNamespace())
	kept.SetName(from.GetName())
	kept.SetResourceVersion(from.GetResourceVersion())
	return kept, nil
}
