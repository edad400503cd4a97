package random

import (
	"context"
	"errors"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	webhookProcess   = "muster-webhook"
	syncerProcess    = "muster-syncer"
	registrarProcess = "muster-registrar"
	helmProcess      = "muster-helm"
	// collectorProcess contains the garbage collector, and other controllers that may wait for a while.
	collectorProcess = "kube-controller-manager"
)

var processOperations = []operation{
	{name: quiet, weight: 14},
	{name: "SyncerStop", weight: 2, do: stops(syncerProcess, (*stack.Stack).Stop)},
	{name: "SyncerKill", weight: 2, do: stops(syncerProcess, (*stack.Stack).Kill)},
	{name: "WebhookStop", weight: 2, do: stops(webhookProcess, (*stack.Stack).Stop)},
	{name: "WebhookStart", weight: 6, do: func(r *run, _ Step) (bool, error) {
		wasDown := r.down[webhookProcess]
		return wasDown, r.start(webhookProcess)
	}},
	// The run cannot know what it had already collected when it stopped.
	{name: "StopGC", weight: 3, do: stopCollector, racy: always},
	{name: "StartGC", weight: 5, do: func(r *run, _ Step) (bool, error) {
		wasDown := r.state.GarbageRemains
		return wasDown, r.startCollector()
	}},
}

var registrarOperations = []operation{
	{name: "RegistrarStop", weight: 1, do: stops(registrarProcess, (*stack.Stack).Stop)},
	{name: "RegistrarKill", weight: 2, do: stops(registrarProcess, (*stack.Stack).Kill)},
}

func leaseOf(process string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: process}}
}

// leads waits until a program is the leader.
func leads(process string) error {
	return poll.Until(ctx, process+" to lead", time.Minute, func(context.Context) error {
		lease := leaseOf(process)
		if err := admin.Get(ctx, client.ObjectKeyFromObject(lease), lease); err != nil {
			return err
		}
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
			return errors.New("nobody holds the lease")
		}
		return nil
	})
}

// stops returns a step that ends a program of Muster, which a later step starts. For a killed program it also
// releases the Lease, which would otherwise expire only after some seconds.
func stops(process string, end func(*stack.Stack, context.Context, string) error) func(*run, Step) (bool, error) {
	return func(r *run, _ Step) (bool, error) {
		if !r.isUp(process) {
			return false, nil
		}
		r.down[process] = true
		if process == syncerProcess {
			r.clean = !r.dirty
		}
		if err := end(env, ctx, process); err != nil || process == webhookProcess {
			return true, err
		}
		return true, patch(leaseOf(process), map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	}
}

func (r *run) isUp(process string) bool {
	return !r.down[process] && (registrar || process != registrarProcess)
}

// start starts stopped programs, and gives them time to begin.
func (r *run) start(processes ...string) error {
	for _, process := range processes {
		if !r.down[process] {
			continue
		}
		delete(r.down, process)
		if err := env.Start(ctx, process); err != nil {
			return err
		}
		begins := func() error { return leads(process) }
		if process == webhookProcess {
			begins = r.waitForWebhook
		}
		if err := begins(); err != nil {
			return err
		}
		if process == syncerProcess {
			time.Sleep(2 * calm) // This is the time to fill its caches.
		}
	}
	return nil
}

// stopCollector stops the garbage collector: objects stay when their owner is deleted.
func stopCollector(r *run, _ Step) (bool, error) {
	if r.state.GarbageRemains {
		return false, nil
	}
	if err := r.waitCollected(); err != nil {
		return false, err
	}
	if !r.isUp(syncerProcess) { // Otherwise no other program has changed an object.
		seen, err := r.observe()
		if err != nil {
			return false, err
		}
		r.state = seen
	}
	r.state.GarbageRemains = true
	return true, env.Kill(ctx, collectorProcess)
}

func (r *run) startCollector() error {
	if !r.state.GarbageRemains {
		return nil
	}
	r.state.GarbageRemains = false
	return env.Start(ctx, collectorProcess)
}

var (
	// registrar reports whether runs have the optional component. Without it, Clusters whose agents register
	// themselves say so, and nothing else happens to them.
	registrar, registrarInstalled bool
	// labelled reports whether the API server labels Clusters with their class, through the component class-labels.
	labelled bool
)

// withRegistrar starts or stops the registrar. It makes the syncer look for it anew, because the syncer remembers the
// answer for a minute.
func withRegistrar(wanted bool) error {
	if wanted == registrar {
		return nil
	}
	var err error
	switch {
	case !wanted:
		if err = env.Stop(ctx, registrarProcess); err == nil {
			err = admin.Delete(ctx, leaseOf(registrarProcess))
		}
	case registrarInstalled:
		err = env.Start(ctx, registrarProcess)
	default:
		// The component has Roles in Fleet's namespaces.
		if err = env.Apply(ctx, fixture.FleetSettings("")); err == nil {
			err = env.StartComponent(ctx, "registrar")
		}
	}
	if registrar, registrarInstalled = wanted, true; wanted && err == nil {
		err = leads(registrarProcess)
	}
	if err != nil {
		return err
	}
	return env.Restart(ctx, syncerProcess)
}

// withClassLabels installs the component, or removes it.
func withClassLabels(wanted bool) error {
	if wanted == labelled {
		return nil
	}
	var err error
	if wanted {
		err = env.StartComponent(ctx, "class-labels")
	} else {
		_, err = env.Kubectl(ctx, "delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels")
	}
	labelled = wanted
	time.Sleep(time.Second) // The API server notices a moment later.
	return err
}

// withPolicies keeps the shipped admission policies in force, or removes their bindings: Muster's decisions must not
// rely on them. It returns a function that restores them.
func withPolicies(inForce bool) (restore func() error, err error) {
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	var taken []client.Object
	if !inForce {
		err = admin.List(ctx, &bindings)
	}
	for i := range bindings.Items {
		binding := &bindings.Items[i]
		if !strings.HasPrefix(binding.Name, "muster-") {
			continue
		}
		err = errors.Join(err, admin.Delete(ctx, binding.DeepCopy()))
		binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}
		taken = append(taken, binding)
	}
	wait := func() {
		if len(taken) > 0 {
			time.Sleep(time.Second) // The API server notices a moment later.
		}
	}
	wait()
	return func() error {
		var errs []error
		for _, binding := range taken {
			errs = append(errs, admin.Create(ctx, binding))
		}
		wait()
		return errors.Join(errs...)
	}, err
}
