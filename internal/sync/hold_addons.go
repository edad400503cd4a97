package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// addOnReader reads the add-ons of a held Cluster from the API server: its BundleDeployments, and the
// releases of HelmChartProxies.
type addOnReader struct {
	live     client.Reader
	settings *settings.Reader
	scopes   *scopeReader
}

func (r addOnReader) read(ctx context.Context, cluster *clusterv1.Cluster, of hold.Hold) (hold.AddOns, error) {
	name := stamp.PinOf(cluster.Annotations).ClusterName
	isHanded, err := r.isHanded(ctx, cluster, name, of)
	if err != nil {
		return hold.AddOns{}, err
	}
	var deployments fleetv1.BundleDeploymentList
	if err := r.live.List(ctx, &deployments, client.InNamespace(stamp.FleetNamespace(cluster.Namespace, name)), client.MatchingLabels{
		fleetv1.ClusterNamespaceLabel: cluster.Namespace, fleetv1.ClusterLabel: name,
	}); err != nil {
		return hold.AddOns{}, fmt.Errorf("listing the BundleDeployments of a held Cluster: %w", err)
	}
	releases, isKnown, err := r.releases(ctx, cluster, deployments.Items)
	if err != nil {
		return hold.AddOns{}, err
	}
	all := releases
	for i := range deployments.Items {
		its := &deployments.Items[i]
		bundle := its.Labels[fleetv1.BundleLabel]
		switch {
		case bundle == stamp.AgentBundle(name): // Fleet's own.
		case isKnown && plan.MayBeOurs(bundle):
			all = append(all, addOnOf(its, cluster.Namespace, false))
		default:
			all = append(all, addOnOf(its, cluster.Namespace, hasValues(its)))
		}
	}
	return hold.AddOns{Handed: isHanded, All: all}, nil
}

// isHanded reports whether the Fleet Cluster has the new version, or will not get it.
func (r addOnReader) isHanded(ctx context.Context, cluster *clusterv1.Cluster, name string, of hold.Hold) (bool, error) {
	in, err := r.settings.Current(ctx)
	if err != nil {
		return false, err
	}
	fleet := &fleetv1.Cluster{}
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: name}
	if err := r.live.Get(ctx, key, fleet); err != nil {
		return false, fmt.Errorf("reading the Fleet Cluster of a held Cluster: %w", err)
	}
	if relation, _ := r.scopes.relationOf(ctx, fleet, cluster); relation != stamp.Own {
		return false, fmt.Errorf("Fleet Cluster %s belongs to somebody else", key) //nolint:staticcheck // It begins with a kind.
	}
	if !in.Cluster.Enabled || !in.Cluster.PatchResource || fleet.Spec.TemplateValues == nil {
		return true, nil
	}
	version, found, _ := unstructured.NestedString(fleet.Spec.TemplateValues.Data, hold.TopologyVersion...)
	return !found || version == of.To, nil // It is not found if the settings exclude it.
}

// hasValues reports whether Fleet renders values for a BundleDeployment. It keeps them in a Secret, and of
// a template in them only the result: whether they depend on the version cannot be seen.
func hasValues(deployment *fleetv1.BundleDeployment) bool {
	helm := deployment.Spec.Options.Helm
	return (helm == nil || !helm.DisablePreProcess) &&
		(deployment.Spec.ValuesHash != "" || helm != nil && (len(helm.TemplateValues) > 0 || helm.Values != nil && len(helm.Values.Data) > 0))
}

func addOnOf(deployment *fleetv1.BundleDeployment, namespace string, hasValues bool) hold.AddOn {
	name := deployment.Labels[fleetv1.BundleLabel]
	if of := deployment.Labels[fleetv1.BundleNamespaceLabel]; of != namespace {
		name = of + "/" + name
	}
	spec, status := &deployment.Spec, &deployment.Status
	return hold.AddOn{
		Name: "Bundle " + name, ID: spec.StagedDeploymentID, Patience: hold.PatienceForBundle(hasValues),
		Ready: spec.StagedDeploymentID == spec.DeploymentID && status.AppliedDeploymentID == spec.DeploymentID && status.Ready,
	}
}

// releases returns the releases of HelmChartProxies on a Cluster; isKnown is false if they cannot be read,
// for example because the component is not installed.
func (r addOnReader) releases(ctx context.Context, cluster *clusterv1.Cluster, deployments []fleetv1.BundleDeployment) (all []hold.AddOn, isKnown bool, err error) {
	var releases addonsv1.HelmReleaseProxyList
	label, _ := stamp.LabelValue(cluster.Name)
	err = r.live.List(ctx, &releases, client.MatchingLabels{clusterv1.ClusterNameLabel: label})
	switch {
	case kube.IsUnserved(err) || meta.IsNoMatchError(err) || apierrors.IsForbidden(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("listing the HelmReleaseProxies of a held Cluster: %w", err)
	}
	for i := range releases.Items {
		release := &releases.Items[i]
		if plan.ClusterOf(release) != client.ObjectKeyFromObject(cluster) || !release.DeletionTimestamp.IsZero() {
			continue
		}
		addOn, err := r.release(ctx, release, deployments)
		if err != nil {
			return nil, false, err
		}
		all = append(all, addOn...)
	}
	return all, true, nil
}

// release returns the add-on of a HelmReleaseProxy; none if its HelmChartProxy is gone.
func (r addOnReader) release(ctx context.Context, release *addonsv1.HelmReleaseProxy, deployments []fleetv1.BundleDeployment) ([]hold.AddOn, error) {
	proxy := &addonsv1.HelmChartProxy{}
	for _, owner := range release.OwnerReferences {
		if owner.Kind == "HelmChartProxy" {
			proxy.Name = owner.Name
		}
	}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: release.Namespace, Name: proxy.Name}, proxy)
	if apierrors.IsNotFound(err) || proxy.Name == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the HelmChartProxy of a held Cluster: %w", err)
	}
	record := plan.RecordOf(release)
	addOn := hold.AddOn{Name: "HelmChartProxy " + proxy.Name, ID: fmt.Sprintf("%s %d", record.Digest, record.Revision)}
	if proxy.Namespace != release.Spec.ClusterRef.Namespace {
		addOn.Name = "HelmChartProxy " + proxy.Namespace + "/" + proxy.Name
	}
	if plan.IsInstallOnce(proxy) && record.Installed {
		addOn.Ready = true
		return []hold.AddOn{addOn}, nil
	}
	addOn.Patience = hold.PatienceForTemplate(proxy.Spec.ValuesTemplate)
	target, isTarget := plan.TargetOf(proxy, release)
	for i := range deployments {
		its := &deployments[i]
		if isTarget && its.Name == release.Annotations[plan.BundleAnnotation] {
			seen := plan.Observe(its, plan.Wanted{Content: its.Labels[plan.ContentLabel], Target: target})
			addOn.Ready = seen.Ready && (record.Rollout == nil || record.Rollout.Pending == "")
		}
	}
	return []hold.AddOn{addOn}, nil
}
