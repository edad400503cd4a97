package rollouts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/stack"
)

// Muster is the program that carries rollouts out.
const Muster = "muster-helm"

// operation is something that happens.
type operation struct {
	name   string
	weight int
	do     func(ctx context.Context, s *Scene, cluster string) error
}

// operations are all that can happen.
var operations = []operation{
	{"Version", 10, editProxy(func(rng *rand.Rand, spec *addonsv1.HelmChartProxySpec) {
		spec.Version = other(rng, spec.Version, versions)
	})},
	{"Template", 8, editProxy(func(rng *rand.Rand, spec *addonsv1.HelmChartProxySpec) {
		spec.ValuesTemplate = other(rng, spec.ValuesTemplate, templates())
	})},
	{"Option", 4, editProxy(func(rng *rand.Rand, spec *addonsv1.HelmChartProxySpec) {
		spec.Options.Upgrade.MaxHistory = one(rng, 0, 5)
	})},
	{"Stages", 5, editProxy(editStages)},
	{"Who", 8, label(who, "1", "2", "3", badly)},
	{"Tier", 6, label(tier, "canary", "production", "")},
	{"Choose", 5, label(chosen, "yes", "yes", "no")},
	{"Pause", 3, pauseCluster},
	{"Unpause", 4, unpauseCluster},
	{"Agent", 10, func(ctx context.Context, s *Scene, cluster string) error {
		return s.agents.become(ctx, cluster, one(s.rng, Healthy, Healthy, Failing, Stuck, Silent))
	}},
	{"Mend", 8, func(ctx context.Context, s *Scene, cluster string) error { return s.mend(ctx, cluster) }},
	{"Approve", 10, func(ctx context.Context, s *Scene, _ string) error { return s.approveWhatWaits(ctx) }},
	{"ApproveOutdated", 8, approveOutdated},
	{"ApproveWithoutRight", 2, approveWithoutRight},
	{"Retry", 3, func(ctx context.Context, s *Scene, _ string) error { return s.retry(ctx) }},
	{"Lose", 2, lose},
	{"Kill", 5, func(_ context.Context, s *Scene, _ string) error {
		if s.kill == nil {
			return nil
		}
		return s.kill(one(s.rng, Muster, Muster, stack.FleetController))
	}},
	{"Settle", 12, func(ctx context.Context, s *Scene, _ string) error { s.settle(ctx); return nil }},
	{"Wait", 12, func(ctx context.Context, s *Scene, _ string) error { s.listen(ctx, 100); return nil }},
}

func one[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// other returns one of several, and not this one.
func other(rng *rand.Rand, than string, of []string) string {
	return one(rng, slices.DeleteFunc(slices.Clone(of), func(its string) bool { return its == than })...)
}

// change changes an object, if it exists.
func change[T client.Object](ctx context.Context, c client.Client, object T, how func(T)) error {
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := object.DeepCopyObject().(T)
	how(object)
	return client.IgnoreNotFound(c.Patch(ctx, object, client.MergeFrom(before)))
}

func (s *Scene) changeProxy(ctx context.Context, c client.Client, how func(*addonsv1.HelmChartProxy)) error {
	return change(ctx, c, &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: proxyName}}, how)
}

func (s *Scene) patchCluster(ctx context.Context, name string, how func(*clusterv1.Cluster)) error {
	return change(ctx, s.admin, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}, how)
}

func editProxy(how func(*rand.Rand, *addonsv1.HelmChartProxySpec)) func(context.Context, *Scene, string) error {
	return func(ctx context.Context, s *Scene, _ string) error {
		return s.changeProxy(ctx, s.admin, func(proxy *addonsv1.HelmChartProxy) { how(s.rng, &proxy.Spec) })
	}
}

// drawRollout draws a rollout of some stages.
func drawRollout(rng *rand.Rand) *addonsv1.RolloutStrategy {
	strategy := &addonsv1.RolloutStrategy{MaxUnavailable: one(rng, nil, ptr.To(intstr.FromInt32(1)), ptr.To(intstr.FromString("50%")))}
	if rng.IntN(2) == 0 {
		strategy.OfflineAfter = &metav1.Duration{Duration: time.Hour}
	}
	for range one(rng, 0, 1, 2, 2, 3, 3, 4) {
		addStage(rng, strategy)
	}
	return strategy
}

func addStage(rng *rand.Rand, strategy *addonsv1.RolloutStrategy) {
	its := addonsv1.RolloutStage{Name: one(rng, "first", "second", "third", "fourth")}
	if rng.IntN(3) == 0 {
		its.Percent = ptr.To(one[int32](rng, 20, 50, 100))
	} else {
		its.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{tier: one(rng, "canary", "canary", "production")}}
	}
	its.Soak = one(rng, nil, nil, &metav1.Duration{Duration: 3 * time.Second})
	its.MaxUnavailable = one(rng, nil, nil, ptr.To(intstr.FromInt32(1)), ptr.To(intstr.FromInt32(2)))
	its.MaxFailing = one(rng, nil, nil, ptr.To[int32](1))
	its.Approval = one(rng, "", addonsv1.RolloutApprovalManual)
	if !slices.ContainsFunc(strategy.Stages, func(other addonsv1.RolloutStage) bool { return other.Name == its.Name }) {
		strategy.Stages = append(strategy.Stages, its)
	}
}

// editStages adds a stage, or deletes one.
func editStages(rng *rand.Rand, spec *addonsv1.HelmChartProxySpec) {
	if stages := spec.Rollout.Stages; len(stages) > 1 && rng.IntN(2) == 0 {
		i := rng.IntN(len(stages))
		spec.Rollout.Stages = slices.Delete(stages, i, i+1)
		return
	}
	addStage(rng, spec.Rollout)
}

func label(key string, values ...string) func(context.Context, *Scene, string) error {
	return func(ctx context.Context, s *Scene, cluster string) error {
		return s.patchCluster(ctx, cluster, func(its *clusterv1.Cluster) { its.Labels[key] = one(s.rng, values...) })
	}
}

func pauseCluster(ctx context.Context, s *Scene, cluster string) error {
	return s.patchCluster(ctx, cluster, func(its *clusterv1.Cluster) {
		metav1.SetMetaDataAnnotation(&its.ObjectMeta, clusterv1.PausedAnnotation, "")
	})
}

func unpauseCluster(ctx context.Context, s *Scene, cluster string) error {
	return s.patchCluster(ctx, cluster, func(its *clusterv1.Cluster) { delete(its.Annotations, clusterv1.PausedAnnotation) })
}

// approveWhatWaits approves the hash that the status shows, and retries a halted rollout.
func (s *Scene) approveWhatWaits(ctx context.Context) error {
	proxy, err := s.proxyNow(ctx)
	if err != nil || proxy.Status.Rollout == nil {
		return err
	}
	if strings.HasPrefix(reasonOf(proxy), addonsv1.RolloutHaltedReason+":") {
		return s.retry(ctx)
	}
	hash := proxy.Status.Rollout.Approval
	if hash == "" || hash == proxy.Annotations[addonsv1.RolloutApprovedAnnotation] {
		return nil
	}
	return s.annotate(ctx, s.promoter, addonsv1.RolloutApprovedAnnotation, hash)
}

func (s *Scene) retry(ctx context.Context) error {
	proxy, err := s.proxyNow(ctx)
	if err != nil || proxy.Status.Rollout == nil || proxy.Status.Rollout.Retry == "" {
		return err
	}
	return s.annotate(ctx, s.promoter, addonsv1.RolloutRetryAnnotation, proxy.Status.Rollout.Retry)
}

func (s *Scene) annotate(ctx context.Context, c client.Client, key, value string) error {
	return s.changeProxy(ctx, c, func(proxy *addonsv1.HelmChartProxy) { metav1.SetMetaDataAnnotation(&proxy.ObjectMeta, key, value) })
}

// approveOutdated approves a hash that the status showed earlier.
func approveOutdated(ctx context.Context, s *Scene, _ string) error {
	s.mu.Lock()
	hashes := slices.Sorted(maps.Keys(s.shown))
	s.mu.Unlock()
	if len(hashes) == 0 {
		return nil
	}
	return s.annotate(ctx, s.promoter, addonsv1.RolloutApprovedAnnotation, one(s.rng, hashes...))
}

// approveWithoutRight tries to approve a change as a user without the verb promote.
func approveWithoutRight(ctx context.Context, s *Scene, _ string) error {
	err := s.annotate(ctx, s.editor, addonsv1.RolloutApprovedAnnotation, fmt.Sprintf("%032x", s.rng.Uint64()))
	if apierrors.IsForbidden(err) {
		return nil
	}
	return cmp.Or(err, errors.New("somebody without the verb promote has approved a change"))
}

// lose deletes the BundleDeployment of a Cluster, or the ConfigMap with its values.
func lose(ctx context.Context, s *Scene, cluster string) error {
	s.mu.Lock()
	its := s.deployments[cluster].DeepCopy()
	s.mu.Unlock()
	if its == nil || its.Spec.Options.Helm == nil {
		return nil
	}
	if s.rng.IntN(2) == 0 {
		return client.IgnoreNotFound(s.admin.Delete(ctx, its))
	}
	for _, from := range its.Spec.Options.Helm.ValuesFrom {
		if ref := from.ConfigMapKeyRef; ref != nil {
			values := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: ref.Name}}
			return client.IgnoreNotFound(s.admin.Delete(ctx, values))
		}
	}
	return nil
}
