package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// mostReleaseNamespaces bounds how many namespaces are searched for the releases on one Cluster.
const mostReleaseNamespaces = 20

// addOnReader reads the add-ons of held Clusters from the API server.
type addOnReader struct {
	live     client.Reader
	settings *settings.Reader
	scopes   *scopeReader
	now      func() time.Time
}

// deployments returns the BundleDeployments of a Cluster, except that of Fleet's agent. Their namespace
// follows from names: what a Fleet Cluster says of it, tenants can write.
func (r addOnReader) deployments(ctx context.Context, cluster *clusterv1.Cluster) ([]fleetv1.BundleDeployment, error) {
	name := stamp.PinOf(cluster.Annotations).ClusterName
	var all fleetv1.BundleDeploymentList
	if err := r.live.List(ctx, &all, client.InNamespace(stamp.FleetNamespace(cluster.Namespace, name)), client.MatchingLabels{
		fleetv1.ClusterNamespaceLabel: cluster.Namespace, fleetv1.ClusterLabel: name,
	}); err != nil {
		return nil, fmt.Errorf("listing the BundleDeployments of a held Cluster: %w", err)
	}
	var result []fleetv1.BundleDeployment
	for i := range all.Items {
		if all.Items[i].Labels[fleetv1.BundleLabel] != stamp.AgentBundle(name) {
			result = append(result, all.Items[i])
		}
	}
	return result, nil
}

// inFleet returns which Fleet Cluster and namespace a Cluster has in Fleet, since when, and whether the Fleet Cluster has the
// new version or will not get it. Home is empty while one of them is missing or being deleted: Fleet then takes the
// BundleDeployments away, and deploys everything again afterwards.
func (r addOnReader) inFleet(ctx context.Context, cluster *clusterv1.Cluster, of hold.Hold) (hold.AddOns, error) {
	in, err := r.settings.Current(ctx)
	if err != nil {
		return hold.AddOns{}, err
	}
	fleet, namespace := &fleetv1.Cluster{}, namespaceMetadata()
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	err = r.live.Get(ctx, key, fleet)
	if err == nil && fleet.Labels[fleetv1.ClusterManagementLabel] == "" { // Otherwise Fleet ignores it.
		err = r.live.Get(ctx, client.ObjectKey{Name: stamp.FleetNamespace(key.Namespace, key.Name)}, namespace)
	}
	if err != nil {
		if kube.IsAbsent(err) {
			return hold.AddOns{}, nil
		}
		return hold.AddOns{}, fmt.Errorf("reading the Fleet Cluster of a held Cluster: %w", err)
	}
	relation, _ := r.scopes.relationOf(ctx, fleet, cluster)
	if relation != stamp.Own || !fleet.DeletionTimestamp.IsZero() || namespace.DeletionTimestamp != nil {
		return hold.AddOns{}, nil
	}
	seen := hold.AddOns{Home: string(fleet.UID + namespace.UID), Since: fleet.CreationTimestamp.Time}
	if namespace.CreationTimestamp.After(seen.Since) {
		seen.Since = namespace.CreationTimestamp.Time
	}
	version, found := "", false
	if fleet.Spec.TemplateValues != nil {
		version, found, _ = unstructured.NestedString(fleet.Spec.TemplateValues.Data, hold.TopologyVersion...)
	}
	switch {
	case in.Invalid != nil: // The Fleet Cluster may get the version later.
		seen.Handed = found && version == of.To
	case !in.Cluster.Enabled, !in.Cluster.PatchResource:
		seen.Handed = true
	default:
		seen.Handed = !found || version == of.To // It is not found if the settings exclude it.
	}
	return seen, nil
}

// hasValues reports whether Fleet renders values for a BundleDeployment. It keeps them in a Secret, and of
// a template in them only the result: whether they depend on the version cannot be seen.
func hasValues(deployment *fleetv1.BundleDeployment) bool {
	helm := deployment.Spec.Options.Helm
	return (helm == nil || !helm.DisablePreProcess) &&
		(deployment.Spec.ValuesHash != "" || helm != nil && (len(helm.TemplateValues) > 0 || helm.Values != nil && len(helm.Values.Data) > 0))
}

// bundleOn returns the add-on of a BundleDeployment. The values of Bundles that Muster made for
// HelmChartProxies are not Fleet's to render.
func bundleOn(deployment *fleetv1.BundleDeployment, namespace string) hold.AddOn {
	bundle := deployment.Labels[fleetv1.BundleLabel]
	name := bundle
	if of := deployment.Labels[fleetv1.BundleNamespaceLabel]; of != namespace {
		name = of + "/" + name
	}
	spec, status := &deployment.Spec, &deployment.Status
	its := hold.AddOn{
		Name: "Bundle " + name, ID: spec.StagedDeploymentID, Changed: specTime(deployment), ByFleet: true,
		Ready: spec.StagedDeploymentID == spec.DeploymentID && status.AppliedDeploymentID == spec.DeploymentID && status.Ready,
	}
	if hasValues(deployment) && !plan.MayBeOurs(bundle) {
		its.Patience = hold.Settle
	}
	return its
}

// specTime returns when the fields of an object, other than its status, were last changed.
func specTime(object metav1.Object) time.Time {
	var last time.Time
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}

const (
	// A page fits into the memory of the syncer, even if each of its objects has the size that etcd accepts.
	addOnPage = 20
	// mostReleasePages bounds the HelmReleaseProxies of one Cluster in one namespace, and mostProxyPages all
	// HelmChartProxies that one look reads: some tools make one for each Cluster and add-on.
	mostReleasePages, mostProxyPages = 25, 500
	// mostSelecting bounds the HelmChartProxies that select one Cluster.
	mostSelecting = 500
)

// releases returns the releases of HelmChartProxies on a Cluster; none if there are no such kinds.
func (r addOnReader) releases(ctx context.Context, cluster *clusterv1.Cluster, deployments []fleetv1.BundleDeployment) ([]hold.AddOn, error) {
	round := &releaseRound{addOnReader: r, cluster: cluster, deployments: deployments, proxyPages: mostProxyPages, proxies: map[types.NamespacedName]*chartProxy{}, has: map[types.NamespacedName]bool{}}
	for namespace := range releaseNamespaces(cluster, deployments) {
		err := round.list(ctx, namespace)
		if kube.IsUnserved(err) || meta.IsNoMatchError(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the HelmChartProxies of a held Cluster in namespace %s: %w", namespace, err)
		}
	}
	return round.all, nil
}

// list adds the releases of the HelmChartProxies in a namespace that select the Cluster, also those that do not exist
// yet. Anyone who may write HelmReleaseProxies somewhere could hold the upgrade, so the others do not count.
func (r *releaseRound) list(ctx context.Context, namespace string) error {
	var proxies addonsv1.HelmChartProxyList
	if err := r.pages(ctx, &proxies, &r.proxyPages, func() {
		for i := range proxies.Items {
			// With the finalizer of cluster-api-addon-provider-helm, that installs the release.
			its := &proxies.Items[i]
			isOfOthers := len(its.Finalizers) > 0 && !controllerutil.ContainsFinalizer(its, plan.Finalizer)
			if its.DeletionTimestamp.IsZero() && !isOfOthers && len(r.proxies) <= mostSelecting && r.selects(ctx, its, r.cluster) {
				r.proxies[client.ObjectKeyFromObject(its)] = newChartProxy(its, r.now())
			}
		}
		proxies.Items = nil
	}, client.InNamespace(namespace)); err != nil {
		return err
	}
	if len(r.proxies) > mostSelecting {
		return fmt.Errorf("more than %d select it", mostSelecting)
	}
	label, _ := stamp.LabelValue(r.cluster.Name)
	var releases addonsv1.HelmReleaseProxyList
	left := mostReleasePages
	if err := r.pages(ctx, &releases, &left, func() {
		for i := range releases.Items {
			r.add(&releases.Items[i])
		}
		releases.Items = nil
	}, client.InNamespace(namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: label}); err != nil {
		return err
	}
	for key, proxy := range r.proxies {
		if key.Namespace == namespace && !r.has[key] && proxy.isAwaited {
			r.all = append(r.all, hold.AddOn{Name: r.nameOf(proxy)})
		}
	}
	return nil
}

// pages lists objects, and calls each after each page. It takes the pages from left.
func (r addOnReader) pages(ctx context.Context, list client.ObjectList, left *int, each func(), options ...client.ListOption) error {
	for ; *left > 0; *left-- {
		next := list.GetContinue()
		list.SetContinue("") // The last page leaves it as it is.
		if err := r.live.List(ctx, list, append(options, client.Limit(addOnPage), client.Continue(next))...); err != nil {
			return err
		}
		each()
		if list.GetContinue() == "" {
			return nil
		}
	}
	return errors.New("there are too many")
}

// releaseNamespaces returns the namespaces whose HelmChartProxies reach the Cluster.
func releaseNamespaces(cluster *clusterv1.Cluster, deployments []fleetv1.BundleDeployment) map[string]bool {
	namespaces := map[string]bool{cluster.Namespace: true}
	for i := range deployments {
		its := deployments[i].Labels
		if namespace := its[plan.ProxyNamespaceLabel]; namespace != "" && plan.MayBeOurs(its[fleetv1.BundleLabel]) && len(namespaces) < mostReleaseNamespaces {
			namespaces[namespace] = true
		}
	}
	return namespaces
}

// releaseRound collects the releases on one Cluster.
type releaseRound struct {
	addOnReader
	cluster     *clusterv1.Cluster
	deployments []fleetv1.BundleDeployment
	// proxyPages is how many more pages of HelmChartProxies may be read.
	proxyPages int
	// proxies are the HelmChartProxies that select the Cluster, and has those with a HelmReleaseProxy for it.
	proxies map[types.NamespacedName]*chartProxy
	has     map[types.NamespacedName]bool
	all     []hold.AddOn
}

// chartProxy is the part of a HelmChartProxy that a round keeps. The object itself may have a megabyte, and tenants may
// write hundreds. The fields below are computed once for all HelmReleaseProxies, as many of them may be forged.
type chartProxy struct {
	// HelmChartProxy has only the fields that count here for plan.TargetOf and plan.IsInstallOnce.
	*addonsv1.HelmChartProxy
	isUpToDate, isPolled, isAwaited bool
}

func newChartProxy(of *addonsv1.HelmChartProxy, now time.Time) *chartProxy {
	its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name, UID: of.UID}}
	if plan.IsInstallOnce(of) {
		its.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce
	}
	if plan.HasValues(of) {
		its.Spec.ValuesTemplate = "any"
	}
	return &chartProxy{HelmChartProxy: its, isUpToDate: plan.IsUpToDate(of), isPolled: len(of.Spec.ValuesFrom) > 0, isAwaited: isAwaited(of, now)}
}

// mostUnclaimed is the age at which a HelmChartProxy without Muster's finalizer no longer holds upgrades: component helm is
// off, or its watch filter excludes the HelmChartProxy.
const mostUnclaimed = time.Minute

// isAwaited reports whether Muster installs a HelmChartProxy on Clusters that have no HelmReleaseProxy for it yet.
func isAwaited(proxy *addonsv1.HelmChartProxy, now time.Time) bool {
	return controllerutil.ContainsFinalizer(proxy, plan.Finalizer) || !capiannotations.HasPaused(proxy) &&
		!meta.IsStatusConditionTrue(proxy.Status.Conditions, addonsv1.NotManagedCondition) && now.Sub(proxy.CreationTimestamp.Time) < mostUnclaimed
}

// nameOf names a HelmChartProxy in a message.
func (r *releaseRound) nameOf(proxy *chartProxy) string {
	if proxy.Namespace != r.cluster.Namespace {
		return "HelmChartProxy " + proxy.Namespace + "/" + proxy.Name
	}
	return "HelmChartProxy " + proxy.Name
}

// add adds the add-on of a HelmReleaseProxy, if there is one.
func (r *releaseRound) add(release *addonsv1.HelmReleaseProxy) {
	owner := plan.OwnerOf(release)
	if owner == nil || plan.ClusterOf(release) != client.ObjectKeyFromObject(r.cluster) || !release.DeletionTimestamp.IsZero() {
		return
	}
	key := types.NamespacedName{Namespace: release.Namespace, Name: owner.Name}
	proxy := r.proxies[key]
	if proxy == nil || proxy.UID != owner.UID {
		return
	}
	r.has[key] = true
	record := plan.RecordOf(release)
	addOn := hold.AddOn{Name: r.nameOf(proxy), ID: fmt.Sprintf("%s %d", record.Digest, record.Revision)}
	if plan.IsInstallOnce(proxy.HelmChartProxy) && record.Installed {
		addOn.Ready = true
		r.all = append(r.all, addOn)
		return
	}
	if proxy.isPolled { // The ConfigMap may have changed together with the version.
		addOn.ReadAtIntervals, addOn.Patience = true, plan.PollInterval+hold.Settle
	}
	// Without a BundleDeployment of its own, the release is that of another HelmChartProxy, if that has deployed it.
	isTaken := plan.IsTaken(release)
	addOn.Ready = isTaken && slices.ContainsFunc(r.deployments, func(its fleetv1.BundleDeployment) bool { return plan.Deploys(&its, plan.ReleaseOf(release)) })
	target, isTarget := plan.TargetOf(proxy.HelmChartProxy, release, record)
	for i := range r.deployments {
		its := &r.deployments[i]
		if !isTarget || its.Name != release.Annotations[plan.BundleAnnotation] {
			continue
		}
		addOn.Changed = specTime(its)
		addOn.Ready = proxy.isUpToDate && r.isRendered(release, record) && plan.Observe(its, plan.Wanted{Content: its.Labels[plan.ContentLabel], Target: target}).Ready &&
			(isTaken || meta.IsStatusConditionTrue(release.Status.Conditions, addonsv1.ReadyCondition)) &&
			(record.Rollout == nil || record.Rollout.Pending == "")
	}
	r.all = append(r.all, addOn)
}

// isRendered reports whether the values of a release are those for the Cluster's version. A record without a version says
// that they cannot depend on it. One that is copied from another release, or older than clusterctl move, is not about this one.
func (r *releaseRound) isRendered(release *addonsv1.HelmReleaseProxy, record plan.Record) bool {
	return record.Version == "" || record.Version == r.cluster.Spec.Topology.Version &&
		record.Of != nil && *record.Of == plan.Of{Cluster: r.cluster.UID, Release: release.UID}
}

// selects reports whether a HelmChartProxy selects a Cluster.
func (r addOnReader) selects(ctx context.Context, proxy *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster) bool {
	selector, trouble := plan.NewSelector(proxy)
	if trouble != nil || selector.Namespace() != "" && selector.Namespace() != cluster.Namespace {
		return false
	}
	return selector.Matches(cluster, func(name string) labels.Set {
		namespace := namespaceMetadata()
		if r.scopes.Get(ctx, client.ObjectKey{Name: name}, namespace, client.UnsafeDisableDeepCopy) != nil {
			return nil // The only error of a cache is NotFound.
		}
		return labels.Merge(nil, namespace.Labels) // Not nil: the Namespace exists.
	})
}
