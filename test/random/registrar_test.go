package random

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const registrarProcess = "muster-registrar"

// registrar says whether runs have the optional component. Without it, Clusters whose agents
// are to call say so, and nothing else comes of it.
var registrar, registrarInstalled bool

var registrarOperations = []operation{
	{name: "RegistrarStop", weight: 1, draw: nothing, do: func(r *run, _ Step) (bool, error) { return r.stopRegistrar(env.Stop) }},
	{name: "RegistrarKill", weight: 2, draw: nothing, do: func(r *run, _ Step) (bool, error) { return r.stopRegistrar(env.Kill) }},
}

// withRegistrar has the registrar run, or not. MUSTER_REGISTRAR=on or off has the last word.
// The syncer looks for it anew: it remembers for a minute what it has seen.
func withRegistrar(wanted bool) error {
	if wanted = asked("MUSTER_REGISTRAR", wanted); wanted == registrar {
		return nil
	}
	var err error
	switch {
	case !wanted:
		if err = env.Stop(ctx, registrarProcess); err == nil {
			err = admin.Delete(ctx, registrarLease())
		}
	case registrarInstalled:
		err = env.Start(ctx, registrarProcess)
	default:
		// The component has Roles in Fleet's namespaces.
		if err = env.Apply(ctx, fixture.FleetSettings("")); err == nil {
			err = env.StartComponent(ctx, "registrar")
		}
	}
	if err != nil {
		return err
	}
	registrar, registrarInstalled = wanted, true
	if wanted {
		if err := registrarLeads(); err != nil {
			return err
		}
	}
	return env.Restart(ctx, syncerProcess)
}

func registrarLease() *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = "muster-system", registrarProcess
	return lease
}

func registrarLeads() error {
	return poll.Until(ctx, "the registrar to lead", time.Minute, func(context.Context) error {
		lease := registrarLease()
		if err := admin.Get(ctx, client.ObjectKeyFromObject(lease), lease); err != nil {
			return err
		}
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
			return errors.New("nobody holds the lease")
		}
		return nil
	})
}

// stopRegistrar stops the registrar, to be started later. The Lease of one that was killed is
// given back for it: without one, the syncer would say so, and lapsing takes it some seconds.
func (r *run) stopRegistrar(end func(context.Context, string) error) (bool, error) {
	if !r.registrarUp {
		return false, nil
	}
	r.registrarUp = false
	if err := end(ctx, registrarProcess); err != nil {
		return false, err
	}
	return true, patch(registrarLease(), map[string]any{"spec": map[string]any{"holderIdentity": ""}})
}

func (r *run) startRegistrar() error {
	if r.registrarUp || !registrar {
		return nil
	}
	r.registrarUp = true
	if err := env.Start(ctx, registrarProcess); err != nil {
		return err
	}
	return registrarLeads()
}

// noteWished notes what is to be registered as things are now, each once.
func (r *run) noteWished() {
	want := oracle.Settle(r.state)
	for key, asked := range want.Calling.Registrations {
		if asked.Name != "" {
			continue
		}
		of := asked.OwnerReferences[0]
		wish := fmt.Sprint(key, of.UID, asked.Spec.ClientID)
		if fleet := want.FleetClusters[oracle.Key{Namespace: key.Namespace, Name: of.Name}]; fleet != nil && len(fleet.OwnerReferences) > 0 {
			uid := fleet.OwnerReferences[0].UID
			wish += fmt.Sprint(uid, want.Calling.Rotated[uid])
		}
		if r.wished[key.Namespace] == nil {
			r.wished[key.Namespace] = map[string]bool{}
		}
		r.wished[key.Namespace][wish] = true
	}
}

// nothingTwice fails if since the last quiet point the registrar has registered more than was
// to be registered: each time, an agent that has the earlier credential is cut off.
func (r *run) nothingTwice() error {
	events, err := r.registered.Read(stack.AuditFilter{
		User: stack.ServiceAccount("muster-system", registrarProcess),
		Where: func(event stack.AuditEvent) bool {
			return event.Code == 201 && event.Resource == "clusterregistrations" && r.state.Namespaces[event.Namespace] != nil
		},
	})
	if err != nil {
		return err
	}
	made := map[string]int{}
	for _, event := range events {
		made[event.Namespace]++
	}
	for namespace, count := range made {
		r.callers += count
		if wished := len(r.wished[namespace]); count > wished {
			return &oracleError{fmt.Sprintf("%d ClusterRegistrations were made in %s, and %d were to be made", count, namespace, wished)}
		}
	}
	clear(r.wished)
	r.noteWished()
	return nil
}

// sweepCalling deletes what Fleet and others have made for Clusters that call, as they played it.
func (r *run) sweepCalling() error {
	var all []client.Object
	for _, bundle := range r.state.Calling.Bundles {
		all = append(all, bundle.DeepCopy())
	}
	for _, left := range r.state.Calling.Credentials {
		all = append(all, left.DeepCopy())
	}
	for _, secret := range r.state.Calling.Manifests {
		if len(secret.OwnerReferences) == 0 {
			all = append(all, secret.DeepCopy())
		}
	}
	for _, object := range all {
		if err := admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	r.state.Calling.Bundles, r.state.Calling.Credentials = oracle.NewState().Calling.Bundles, oracle.NewState().Calling.Credentials
	for key, secret := range r.state.Calling.Manifests {
		if len(secret.OwnerReferences) == 0 {
			delete(r.state.Calling.Manifests, key)
		}
	}
	return nil
}
