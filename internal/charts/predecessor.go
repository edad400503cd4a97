package charts

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

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
