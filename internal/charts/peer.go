package charts

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// proxyCRD is the name of the CRD of HelmChartProxies.
const proxyCRD = stamp.ChartsCRD

// Finalizers of cluster-api-addon-provider-helm. It puts them back as long as it runs.
const (
	peersProxyFinalizer   = "helmchartproxy.addons.cluster.x-k8s.io"
	peersReleaseFinalizer = "helmreleaseproxy.addons.cluster.x-k8s.io"
)

// reasonPeer says that somebody else carries HelmChartProxies out, too.
const reasonPeer = "AnotherController"

// peer knows cluster-api-addon-provider-helm, whose API this is. The two must not carry out
// the same HelmChartProxies: both would install, and each uninstall what the other has.
type peer struct {
	client.Client

	mu sync.Mutex
	// released are the HelmChartProxies whose finalizer was removed here, as long as they are there.
	released map[plan.Key]releasedAs
	said     bool
}

// releasedAs says of which HelmChartProxy of a name a finalizer was removed, and in which version.
type releasedAs struct {
	uid     types.UID
	version string
}

func newPeer(c client.Client) *peer { return &peer{Client: c, released: map[plan.Key]releasedAs{}} }

// forget forgets one that is gone: anybody may make up names.
func (p *peer) forget(proxy plan.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.released, proxy)
}

// isOurs reports whether the CRD is Muster's: if not, HelmChartProxies are somebody else's.
func (p *peer) isOurs(ctx context.Context) (bool, error) {
	crd := sources.CRD()
	if err := p.Get(ctx, client.ObjectKey{Name: proxyCRD}, crd); err != nil {
		return false, fmt.Errorf("reading CustomResourceDefinition %q: %w", proxyCRD, err)
	}
	ours := crd.Labels[stamp.ManagedByLabel] == stamp.ManagedBy
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ours && !p.said {
		ctrl.LoggerFrom(ctx).Info("HelmChartProxies are left alone: their CustomResourceDefinition is not Muster's; apply manifests/helm to have Muster carry them out",
			"crd", proxyCRD, "label", stamp.ManagedByLabel+"="+stamp.ManagedBy)
	}
	p.said = !ours
	return ours, nil
}

// tellLeftAlone says on a HelmChartProxy that it is not carried out here, and leaves what else is
// said there to whoever says it.
func (r *reconciler) tellLeftAlone(ctx context.Context, key plan.Key) error {
	proxy := &addonsv1.HelmChartProxy{}
	if err := r.Get(ctx, key, proxy); err != nil || r.WatchFilter != "" && !capilabels.HasWatchLabel(proxy, r.WatchFilter) {
		return client.IgnoreNotFound(err)
	}
	before := proxy.DeepCopy()
	changed := meta.SetStatusCondition(&proxy.Status.Conditions, metav1.Condition{
		Type: addonsv1.LeftAloneCondition, Status: metav1.ConditionTrue, Reason: reasonPeer, LastTransitionTime: metav1.NewTime(r.now().Truncate(time.Second)),
		Message: "Muster does not carry it out: CustomResourceDefinition " + proxyCRD + " has no label " + stamp.ManagedByLabel + "=" + stamp.ManagedBy +
			"; stop cluster-api-addon-provider-helm and apply manifests/helm to have Muster carry it out",
	})
	if !changed {
		return nil
	}
	if proxy.Status.MatchingClusters == nil { // The CRD demands it.
		proxy.Status.MatchingClusters = []corev1.ObjectReference{}
	}
	// Somebody else writes the other conditions, and a list is written as a whole.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Status().Patch(ctx, proxy, patch, client.FieldOwner(FieldManager)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	return nil
}

// release removes the finalizer of cluster-api-addon-provider-helm from a HelmChartProxy, once. It
// returns what is wrong if it comes back: somebody puts it there, and is to find it there.
func (p *peer) release(ctx context.Context, proxy *addonsv1.HelmChartProxy) (wrong string, err error) {
	if !slices.Contains(proxy.Finalizers, peersProxyFinalizer) {
		return "", nil
	}
	p.mu.Lock()
	before := p.released[client.ObjectKeyFromObject(proxy)]
	p.mu.Unlock()
	switch {
	case before == releasedAs{}, before.uid != proxy.UID:
	case before.version == proxy.ResourceVersion:
		return "", nil // The cache is behind.
	default:
		return "cluster-api-addon-provider-helm runs and carries it out, too; stop it, and remove its finalizer " + peersProxyFinalizer, nil
	}
	if err := p.removeFinalizer(ctx, proxy, peersProxyFinalizer); err != nil {
		return "", err
	}
	p.mu.Lock()
	p.released[client.ObjectKeyFromObject(proxy)] = releasedAs{proxy.UID, proxy.ResourceVersion}
	p.mu.Unlock()
	return "", nil
}

// withoutFinalizer returns the patch that removes a finalizer, if nobody has changed the object meanwhile.
func withoutFinalizer(object client.Object, finalizer string) []byte {
	left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(its string) bool { return its == finalizer })
	return toJSON(map[string]any{"metadata": map[string]any{"finalizers": left, "resourceVersion": object.GetResourceVersion()}})
}

// removeFinalizer removes a finalizer. Where it was is the last version that we have seen.
func (p *peer) removeFinalizer(ctx context.Context, object client.Object, finalizer string) error {
	patch := withoutFinalizer(object, finalizer)
	target := object.DeepCopyObject().(client.Object)
	if err := p.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("removing the finalizer from %s: %w", describe(object), err))
	}
	ctrl.LoggerFrom(ctx).Info("Removed a finalizer of cluster-api-addon-provider-helm", "object", describe(object))
	return nil
}

// inherit finds what cluster-api-addon-provider-helm has left on the selected Clusters: a release
// has one name on all of them, but where that had Helm generate names, it keeps them; and what is
// installed once and for all is not touched.
func (r *reconciler) inherit(ctx context.Context, v *visit) error {
	mirrors, err := r.mirrorsOf(ctx, v.key)
	if err != nil {
		return err
	}
	left := map[plan.Key]*addonsv1.HelmReleaseProxy{}
	for i := range mirrors {
		its := &mirrors[i]
		left[plan.Key{Namespace: its.Spec.ClusterRef.Namespace, Name: its.Spec.ClusterRef.Name}] = its
	}
	targets := v.releaseNames()
	for _, cluster := range v.clusters {
		mirror := left[plan.Key{Namespace: cluster.Namespace, Name: cluster.Name}]
		cluster.outcome.Release = cluster.outcome.Release.After(mirror)
		name, isTarget := targets[deploymentKey{cluster.Namespace, cluster.fleet}]
		switch {
		case isTarget:
			cluster.releaseName = name
		case mirror == nil:
			continue
		case isGenerated(mirror, v.proxy):
			cluster.releaseName = mirror.Spec.ReleaseName
		}
		if v.proxy.Spec.ReconcileStrategy == addonsv1.ReconcileStrategyInstallOnce && !isTarget && isInstalled(mirror, v.proxy) {
			cluster.installed = true
			cluster.outcome.Release = plan.Installed(mirror)
		}
	}
	return nil
}

// releaseNames are the names that targets of the release have of their own; empty for none.
func (v *visit) releaseNames() map[deploymentKey]string {
	if v.names == nil {
		v.names = v.findReleaseNames()
	}
	return v.names
}

func (v *visit) findReleaseNames() map[deploymentKey]string {
	names := map[deploymentKey]string{}
	for i := range v.bundles {
		its := &v.bundles[i]
		if v.isOfOtherRelease(its) {
			continue
		}
		for _, target := range its.Spec.Targets {
			name := ""
			if target.Helm != nil && v.proxy.Spec.ReleaseName == "" && plan.IsGeneratedOf(v.proxy.Spec.ChartName, target.Helm.ReleaseName) {
				name = target.Helm.ReleaseName
			}
			names[deploymentKey{its.Namespace, target.ClusterName}] = name
		}
	}
	return names
}

// isGenerated reports whether a HelmReleaseProxy says that its release has a name that Helm has
// generated, and that it is one of the chart: whoever may write HelmReleaseProxies is not to have
// another release overwritten.
func isGenerated(mirror *addonsv1.HelmReleaseProxy, proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.ReleaseName == "" && mirror.Annotations[addonsv1.ReleaseNameGeneratedAnnotation] == "true" &&
		mirror.Spec.ReleaseNamespace == plan.ReleaseNamespace(proxy) &&
		plan.IsGeneratedOf(proxy.Spec.ChartName, mirror.Spec.ReleaseName)
}

// isInstalled reports whether a HelmReleaseProxy of a HelmChartProxy says that its release is installed,
// as cluster-api-addon-provider-helm leaves it, and not only by an annotation.
func isInstalled(mirror *addonsv1.HelmReleaseProxy, proxy *addonsv1.HelmChartProxy) bool {
	if mirror == nil || mirror.Annotations[addonsv1.ReleaseInstalledAnnotation] != "true" {
		return false
	}
	owner := metav1.GetControllerOf(mirror)
	return owner != nil && isProxy(*owner) && owner.Name == proxy.Name &&
		mirror.Status.Status == plan.Deployed && mirror.Status.Revision > 0
}

// annotationsOf are those of a HelmReleaseProxy by which cluster-api-addon-provider-helm, should it
// come back, knows the release.
func annotationsOf(v *visit, cluster *selected) map[string]string {
	annotations := map[string]string{}
	if v.proxy.Spec.ReleaseName == "" {
		annotations[addonsv1.ReleaseNameGeneratedAnnotation] = "true"
	}
	if v.proxy.Spec.ReconcileStrategy == addonsv1.ReconcileStrategyInstallOnce && cluster.outcome.Release.Ready {
		annotations[addonsv1.ReleaseInstalledAnnotation] = "true"
	}
	return annotations
}
