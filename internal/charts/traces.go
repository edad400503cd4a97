package charts

import (
	"context"
	"slices"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// traces remembers which Secrets were written for HelmChartProxies: nothing but the Bundle or HelmOp
// that names a Secret tells of it, and that may not have been written after it, or be lost.
type traces struct {
	mu  sync.Mutex
	all map[plan.Key]map[client.ObjectKey]trace
	// known are the namespaces of which it is known what was written.
	known map[plan.Key]map[string]bool
	// since is when this program has begun: before, another may have written.
	since time.Time
}

// trace is the digest of a Secret as this program last wrote it, and when that was; zero if it is not
// known what the Secret holds.
type trace struct {
	digest string
	at     time.Time
}

func newTraces(since time.Time) *traces {
	return &traces{all: map[plan.Key]map[client.ObjectKey]trace{}, known: map[plan.Key]map[string]bool{}, since: since}
}

func (w *traces) note(proxy plan.Key, secrets ...client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[proxy] == nil {
		w.all[proxy] = map[client.ObjectKey]trace{}
	}
	for _, secret := range secrets {
		w.all[proxy][secret] = trace{}
	}
}

// wrote notes what a Secret holds now.
func (w *traces) wrote(proxy plan.Key, secret client.ObjectKey, its trace) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[proxy][secret] = its
}

// holds reports whether this program has written a Secret so, within restoreInterval before now.
func (w *traces) holds(proxy plan.Key, secret client.ObjectKey, digest string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	its := w.all[proxy][secret]
	return its.digest == digest && now.Before(its.at.Add(restoreInterval))
}

// empty notes that a Secret is not as it was written any more.
func (w *traces) empty(proxy plan.Key, secret client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, found := w.all[proxy][secret]; found {
		w.all[proxy][secret] = trace{}
	}
}

// guess notes what may have been written in a namespace before this program has begun.
func (w *traces) guess(v *visit, namespace string) {
	w.mu.Lock()
	isKnown := w.known[v.key][namespace] || v.proxy.CreationTimestamp.After(w.since)
	if w.known[v.key] == nil {
		w.known[v.key] = map[string]bool{}
	}
	w.known[v.key][namespace] = true
	w.mu.Unlock()
	if isKnown {
		return
	}
	names := []string{plan.SharedName(v.key, namespace)}
	if slices.ContainsFunc(v.proxy.Spec.ValuesFrom, isFromSecret) {
		names = plan.SharedNames(v.key, namespace)
	}
	if plan.NeedsAccess(v.proxy) {
		names = append(names, plan.AccessName(v.proxy, namespace))
	}
	for _, name := range names {
		w.note(v.key, client.ObjectKey{Namespace: namespace, Name: name})
	}
}

func isFromSecret(from addonsv1.ValuesReference) bool { return from.Kind == plan.SecretKind }

// in returns what was written in a namespace, or in all.
func (w *traces) in(proxy plan.Key, namespace string) []client.ObjectKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	var secrets []client.ObjectKey
	for secret := range w.all[proxy] {
		if namespace == "" || secret.Namespace == namespace {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

func (w *traces) drop(proxy plan.Key, secret client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all[proxy], secret)
}

func (w *traces) forget(proxy plan.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, proxy)
	delete(w.known, proxy)
}

// sweepWritten deletes the Secrets that nothing names and nothing tells of.
func (r *reconciler) sweepWritten(ctx context.Context, v *visit, namespace string, named map[client.ObjectKey]bool) error {
	told := map[client.ObjectKey]bool{} // The end of what tells of it is seen to elsewhere.
	for i := range v.bundles {
		for _, name := range secretsOf(v.key, &v.bundles[i]) {
			told[client.ObjectKey{Namespace: v.bundles[i].Namespace, Name: name}] = true
		}
	}
	for _, secret := range r.traces.in(v.key, namespace) {
		if told[secret] || named[secret] && !v.isConfigMap(secret) || v.here.staged && v.isRead(secret) {
			continue
		}
		if left, err := r.removeUnread(ctx, v, secret); err != nil {
			return err
		} else if !left {
			r.traces.drop(v.key, secret)
		}
	}
	return nil
}

// removeUnread deletes a Secret that was written, and may not be there, unless it is read.
func (r *reconciler) removeUnread(ctx context.Context, v *visit, its client.ObjectKey) (left bool, err error) {
	if v.here.staged {
		if isRead, err := r.isRead(ctx, v, its); err != nil || isRead {
			return true, err
		}
	}
	return false, r.removeSecret(ctx, v.key, its)
}

// clearWritten deletes the Secrets of a HelmChartProxy that is gone, where no Bundle is left: the end of the
// last one brings it back. Whoever forges one holds up no other namespace.
func (r *reconciler) clearWritten(ctx context.Context, proxy plan.Key, bundles []fleetv1.Bundle) error {
	for _, secret := range r.traces.in(proxy, "") {
		if slices.ContainsFunc(bundles, func(its fleetv1.Bundle) bool { return its.Namespace == secret.Namespace }) {
			continue
		}
		if err := r.removeSecret(ctx, proxy, secret); err != nil {
			return err
		}
		r.traces.drop(proxy, secret)
	}
	if len(bundles) == 0 {
		r.traces.forget(proxy)
	}
	return nil
}

// namespaces returns those in which something is, was written, or is to be.
func (r *reconciler) namespaces(v *visit, values []client.Object) []string {
	all := v.namespaces(values)
	for _, secret := range r.traces.in(v.key, "") {
		all = append(all, secret.Namespace)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
