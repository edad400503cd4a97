package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	registrationAnnotation = "fleet.addons.cluster.x-k8s.io/registration"
	rotateAnnotation       = "fleet.addons.cluster.x-k8s.io/rotate-agent-credential"
	registeredAnnotation   = "fleet.addons.cluster.x-k8s.io/registered"
	// fleetServer is the address at which agents reach Fleet.
	fleetServer   = "https://fleet.example.com"
	fleetInterval = 200 * time.Millisecond
)

// withRegistrar runs two replicas of the optional registrar.
func (l *lab) withRegistrar(ctx context.Context) error {
	if l.registrars {
		return nil
	}
	l.registrars = true
	if err := l.env.Apply(ctx, fixture.FleetSettings(fleetServer)); err != nil {
		return err
	}
	if err := l.env.StartComponent(ctx, "registrar"); err != nil {
		return err
	}
	_, err := l.env.StartReplica(ctx, registrar)
	return err
}

// callByAgent makes the Cluster one whose agent registers itself, for good.
func callByAgent(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	p.patchCluster(ctx, "having its agent register itself:", cluster, metadata("annotations", registrationAnnotation, "agent"), false)
}

func rotateCredential(ctx context.Context, p *person, cluster *clusterv1.Cluster) {
	p.patchCluster(ctx, "rotating the credential of", cluster, metadata("annotations", rotateAnnotation, one(p, "1", "2")), false)
}

// playFleet plays Fleet, and the agents that it knows, until it is stopped. It retries failures.
func (w *world) playFleet(ctx context.Context, admin client.Client) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		var last error
		for ctx.Err() == nil {
			if err := w.answer(ctx, admin); ctx.Err() == nil {
				last = err
			}
			_ = sleep(ctx, fleetInterval)
		}
		ended <- last
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

func (w *world) answer(ctx context.Context, admin client.Client) error {
	var clusters fleetv1.ClusterList
	if err := admin.List(ctx, &clusters); err != nil {
		return err
	}
	var errs []error
	for i := range clusters.Items {
		fleet := &clusters.Items[i]
		if strings.HasPrefix(fleet.Namespace, w.id+"-") && fleet.Spec.KubeConfigSecret == "" && fleet.Spec.ClientID != "" {
			if err := w.serve(ctx, admin, fleet); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("playing Fleet for %s: %w", client.ObjectKeyFromObject(fleet), err))
			}
		}
	}
	return errors.Join(errs...)
}

func (w *world) serve(ctx context.Context, admin client.Client, fleet *fleetv1.Cluster) error {
	if fleet.Status.Namespace == "" {
		if err := fixture.AssignNamespace(ctx, admin, fleet); err != nil {
			return err
		}
	}
	if err := admin.Create(ctx, oracle.Agent(fleet)); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	var all fleetv1.ClusterRegistrationList
	if err := admin.List(ctx, &all, client.InNamespace(fleet.Namespace)); err != nil {
		return err
	}
	for i := range all.Items {
		asked := &all.Items[i]
		if len(asked.OwnerReferences) != 1 || asked.OwnerReferences[0].UID != fleet.UID || asked.Spec.ClientID != fleet.Spec.ClientID {
			continue
		}
		if err := w.grant(ctx, admin, fleet, asked, all.Items); err != nil {
			return err
		}
	}
	return nil
}

// grant grants a registration, and deletes those granted earlier for the same clientID. Once the manifest has this
// registration's credential, it makes the agent check in.
func (w *world) grant(ctx context.Context, admin client.Client, fleet *fleetv1.Cluster, asked *fleetv1.ClusterRegistration, all []fleetv1.ClusterRegistration) error {
	if !asked.Status.Granted {
		for i := range all {
			if earlier := &all[i]; earlier.Status.Granted && earlier.Spec.ClientID == asked.Spec.ClientID {
				if err := client.IgnoreNotFound(admin.Delete(ctx, earlier)); err != nil {
					return err
				}
			}
		}
		if err := admin.Create(ctx, oracle.Credential(asked, fleet, tokenOf(fleet))); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		return fixture.Grant(ctx, admin, asked, fleet.Name)
	}
	secret := &corev1.Secret{}
	if err := admin.Get(ctx, oracle.ManifestOf(client.ObjectKeyFromObject(fleet)), secret); err != nil {
		return err
	}
	if secret.Annotations[registeredAnnotation] != string(asked.UID) || !fleet.Status.Agent.LastSeen.IsZero() {
		return nil
	}
	return fixture.Call(ctx, admin, fleet, time.Now())
}

// tokenOf returns a token that names the Fleet Cluster whose credential it is.
func tokenOf(fleet *fleetv1.Cluster) string { return "of " + fleet.Namespace + "/" + fleet.Name }
