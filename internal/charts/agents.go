package charts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/fetch"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// helmOpFinalizer is Fleet's: as long as a HelmOp has it, its Bundle is deleted with it.
const helmOpFinalizer = "fleet.cattle.io/helmop-finalizer"

// put writes a Bundle, or a HelmOp. Where one was carried out by the other, the release stays: both
// have the same name, and so has what Fleet makes of them.
func (r *reconciler) put(ctx context.Context, v *visit, want, have *fleetv1.Bundle) error {
	if plan.IsHelmOp(want) {
		return r.putHelmOp(ctx, v, want)
	}
	if have == nil || !plan.IsHelmOp(have) {
		return r.putOwn(ctx, v, want, have)
	}
	made, err := r.made(ctx, client.ObjectKeyFromObject(want))
	if err != nil {
		return err
	}
	if v.leaving == nil {
		v.leaving = map[client.ObjectKey]bool{}
	}
	v.leaving[client.ObjectKeyFromObject(have)] = true
	return r.putOwn(ctx, v, want, made)
}

// putOwn writes a Bundle, and notes if Fleet does not know yet what is wanted.
func (r *reconciler) putOwn(ctx context.Context, v *visit, want, have *fleetv1.Bundle) error {
	taken, err := r.putBundle(ctx, v.key, want, have)
	if err == nil && !taken {
		v.ahead(plan.NotTaken(want))
	}
	return err
}

// dissolve deletes a HelmOp, and not what Fleet has made of it.
func (r *reconciler) dissolve(ctx context.Context, have *fleetv1.Bundle) error {
	if slices.Contains(have.Finalizers, helmOpFinalizer) {
		if err := r.patch(ctx, have, withoutFinalizer(have, helmOpFinalizer)); err != nil {
			return err
		}
	}
	return r.remove(ctx, have)
}

// made returns the Bundle of a name, whoever has made it; nil if there is none.
func (r *reconciler) made(ctx context.Context, key client.ObjectKey) (*fleetv1.Bundle, error) {
	made := &fleetv1.Bundle{}
	if err := r.Get(ctx, key, made); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading Bundle %s: %w", key, err)
	}
	return made, nil
}

// putHelmOp writes a HelmOp, and notes if Fleet does not know yet what is wanted.
func (r *reconciler) putHelmOp(ctx context.Context, v *visit, bundle *fleetv1.Bundle) error {
	bundle.Spec.TargetCustomizationMode = fleetv1.TargetCustomizationModeFirstMatch // The API server's default.
	key, want := client.ObjectKeyFromObject(bundle), plan.HelmOpOf(bundle)
	made, err := r.made(ctx, key)
	if err != nil {
		return err
	}
	if made != nil && made.Spec.HelmOpOptions == nil && made.DeletionTimestamp.IsZero() {
		if err := r.handOver(ctx, v.key, want, made); err != nil {
			return err
		}
	}
	have := &fleetv1.HelmOp{}
	if err := r.Get(ctx, key, have); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading HelmOp %s: %w", key, err)
	} else if err != nil {
		exists, err := r.createOr(ctx, v.key, want, have)
		if err != nil {
			return err
		}
		if !exists {
			v.ahead(plan.NotTaken(bundle))
			return nil
		}
	}
	if isCut(have) {
		if err := r.live.Get(ctx, key, have); err != nil {
			return fmt.Errorf("reading HelmOp %s: %w", key, err)
		}
	}
	spec, err := difference(have.Spec, want.Spec)
	if err != nil {
		return err
	}
	follows, trouble := plan.Follows(have, made)
	if !follows || !plan.IsTaken(made) {
		v.ahead(plan.NotTaken(bundle))
	}
	switch {
	case len(spec) > 0 || !isSameMeta(want, have):
		trouble = ""
		v.ahead(plan.NotTaken(bundle))
		err = r.patch(ctx, have, toJSON(map[string]any{"metadata": metaOf(want, have), "spec": spec}))
	case !follows:
		v.again = pollInterval
		err = r.nudge(ctx, have)
	}
	if trouble != "" {
		v.failTargets(bundle, addonsv1.HelmReleaseProxyCreationFailedReason, trouble)
	}
	return err
}

// noteSecrets notes what the Secrets hold that a Bundle or HelmOp names. Of access it is a label, which has
// what Fleet makes of the HelmOp change with the Secret: Fleet does not notice when that does.
func (r *reconciler) noteSecrets(ctx context.Context, want, have *fleetv1.Bundle, values []client.Object) error {
	access := ""
	if want.Spec.HelmOpOptions != nil {
		access = want.Spec.HelmOpOptions.SecretName
	}
	if access != "" && have != nil && have.Labels[plan.AccessLabel] != "" { // If it is not known, it stays.
		want.Labels[plan.AccessLabel] = have.Labels[plan.AccessLabel]
	}
	for _, its := range values {
		secret, ok := its.(*corev1.Secret)
		if !ok {
			continue
		}
		digest, err := r.digests.of(ctx, secret)
		if err != nil {
			return err
		}
		if secret.Name == access {
			want.Labels[plan.AccessLabel] = digest
		} else {
			want.Annotations[plan.ValuesDigestAnnotation] = digest
		}
	}
	return nil
}

// remember has a Bundle or HelmOp say which Secrets it named before, until they are gone: nothing else
// tells of them. Those that are deleted at once are not said.
func (v *visit) remember(want, have *fleetv1.Bundle) {
	if have == nil {
		return
	}
	wanted := secretsOf(v.key, want)
	former := slices.DeleteFunc(secretsOf(v.key, have), func(name string) bool {
		stays := v.here.staged
		if plan.IsAccessName(v.key, want.Namespace, name) {
			stays = plan.IsHelmOp(want)
		}
		return !stays || slices.Contains(wanted, name)
	})
	if len(former) == 0 {
		return
	}
	if v.former == nil {
		v.former = map[client.ObjectKey]string{}
	}
	v.former[client.ObjectKeyFromObject(want)] = strings.Join(former, " ")
	want.Annotations[plan.FormerAnnotation] = strings.Join(former, " ")
}

// handOver makes of a Bundle with a chart in it what Fleet is to make of a HelmOp: it refuses to
// take over one that is not so already.
func (r *reconciler) handOver(ctx context.Context, proxy plan.Key, op *fleetv1.HelmOp, made *fleetv1.Bundle) error {
	if !isMade(made, proxy) {
		return &takenError{made}
	}
	there, wanted := made.Spec, *plan.MadeOf(op)
	there.Resources, wanted.Resources = nil, nil
	spec, err := difference(there, wanted)
	if err != nil {
		return err
	}
	spec["resources"] = nil
	meta := map[string]any{"ownerReferences": withoutProxies(made.OwnerReferences)} // The HelmOp has it.
	return r.patch(ctx, made, toJSON(map[string]any{"metadata": meta, "spec": spec}))
}

// nudge makes Fleet look at a HelmOp again, if it was left enough time: it does not notice what
// becomes of the Bundle that it has made.
func (r *reconciler) nudge(ctx context.Context, op *fleetv1.HelmOp) error {
	last := op.CreationTimestamp.Time
	if at, err := time.Parse(time.RFC3339, op.Annotations[plan.NudgeAnnotation]); err == nil && at.After(last) {
		last = at
	}
	if r.now().Before(last.Add(pollInterval)) {
		return nil
	}
	change := map[string]any{"metadata": map[string]any{"annotations": map[string]string{plan.NudgeAnnotation: r.now().UTC().Format(time.RFC3339)}}}
	return r.patch(ctx, op, toJSON(change))
}

// failTargets says what is wrong with the Clusters in a Bundle.
func (v *visit) failTargets(bundle *fleetv1.Bundle, reason, message string) {
	targets := map[string]bool{}
	for _, target := range bundle.Spec.Targets {
		targets[target.ClusterName] = true
	}
	for _, cluster := range v.clusters {
		if cluster.Namespace == bundle.Namespace && targets[cluster.fleet] && cluster.outcome.Trouble == "" {
			cluster.fail(reason, message)
		}
	}
}

// grant reads how agents reach the repository.
func (r *reconciler) grant(ctx context.Context, v *visit) (again time.Duration) {
	if !plan.NeedsAccess(v.proxy) {
		return 0
	}
	request := fetch.Request{RepoURL: v.proxy.Spec.RepoURL}
	if err := r.access(ctx, v.proxy, &request); err != nil {
		v.fail(addonsv1.HelmReleaseProxyCreationFailedReason, err.Error())
		return pollInterval
	}
	its := request.Access
	v.access = &plan.Access{Username: its.Username, Password: its.Password, Authorities: its.Authorities}
	return pollInterval // No event tells of Secrets.
}

// large remembers which charts do not fit into a Bundle.
type large struct {
	mu  sync.Mutex
	all map[plan.Key]tooLarge
}

type tooLarge struct{ source, version, message string }

func newLarge() *large { return &large{all: map[plan.Key]tooLarge{}} }

// says returns why the agents download a chart although nobody asks for that; empty if they do not.
func (l *large) says(proxy plan.Key, chart *plan.Chart) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.all[proxy]; known.source == chart.Source && known.version == chart.Version {
		return known.message
	}
	return ""
}

func (l *large) put(proxy plan.Key, chart *plan.Chart, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[proxy] = tooLarge{chart.Source, chart.Version, message}
}

func (l *large) forget(proxy plan.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, proxy)
}
