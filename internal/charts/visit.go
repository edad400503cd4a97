package charts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// visit is one look at a HelmChartProxy.
type visit struct {
	key   plan.Key
	proxy *addonsv1.HelmChartProxy
	// clusters are the selected Clusters.
	clusters []*selected
	// bundles and deployments are what is there. HelmOps are looked at as the Bundles that they
	// stand for, and hide those that Fleet makes of them.
	bundles     []fleetv1.Bundle
	deployments map[deploymentKey]*fleetv1.BundleDeployment
	// names and others are what was found out of bundles: see releaseNames and isOfOtherRelease.
	names  map[deploymentKey]string
	others map[client.ObjectKey]bool
	// looked says that it is known what is there and which Clusters are selected, and wrote that
	// everything was tried, and what has failed is noted.
	looked, wrote bool

	shared *plan.Shared
	// frozen are the Clusters that were installed once and for all: what is there for them
	// stays as it is.
	frozen map[deploymentKey]*fleetv1.Bundle

	// chart is the chart that is meant, with its files only if some Bundle lacks them.
	chart *plan.Chart

	// access is how agents reach the repository; nil if they need not, or it is not known.
	access *plan.Access
	// aside is what is said although nothing is wrong.
	aside string
	// again is when to look at a HelmOp again.
	again time.Duration

	// lacks is why the chart could not be downloaded.
	lacks error
	// stays are the targets that stay although their Cluster is not selected: see keep.
	stays map[deploymentKey]bool

	// leaving are the HelmOps whose Bundle holds a chart now, and former says which Secrets with access
	// HelmOps named before.
	leaving map[client.ObjectKey]bool
	former  map[client.ObjectKey]string

	// untaken is what Fleet does not know yet.
	untaken string

	// here is what was found out in the namespace that is written.
	here here

	// trouble is what is wrong with the HelmChartProxy itself.
	trouble, reason string
	// ready is the reason of Ready.
	ready string
}

// deploymentKey names the Fleet Cluster that Fleet has made something of a Bundle for.
type deploymentKey struct{ namespace, fleetCluster string }

// selected is a Cluster that is selected.
type selected struct {
	*clusterv1.Cluster
	// fleet is the name of its Fleet Cluster; empty if it has none yet.
	fleet string
	// paused says that nothing new reaches it: it keeps what it has. So does one that is lost:
	// its pin does not say any more where it was.
	paused  bool
	lost    bool
	values  []byte
	kept    bool
	outcome plan.Outcome
	// releaseName is the name of its release, if it is not that of the others; installed says that
	// the release is installed once and for all, and not by us: see inherit.
	releaseName string
	installed   bool
	// alive are the Clusters among which its Fleet Cluster may have another.
	alive living
}

// ahead says what Fleet does not know yet. It is not said of each Cluster: what is wanted for most of
// them may be what it was.
func (v *visit) ahead(message string) {
	v.here.untaken = true
	if v.untaken == "" {
		v.untaken = message
	}
}

// here is what was found out in one namespace.
type here struct {
	// staged says that values that have changed get another place, and untaken that Fleet does not know
	// something yet.
	staged, untaken bool
	// asked says that the BundleDeployments were read past the cache.
	asked bool
	// shared are the values for all Clusters if they stay as they are.
	shared *plan.Shared
}

func (v *visit) fail(reason, message string) {
	if v.trouble == "" {
		v.reason, v.trouble = reason, message
	}
}

func (s *selected) fail(reason, message string) {
	s.outcome.Reason, s.outcome.Trouble = reason, message
}

// look reads what there is, from the cache.
func (r *reconciler) look(ctx context.Context, v *visit) error {
	var err error
	if v.bundles, err = r.bundlesOf(ctx, v.key, v.proxy); err != nil {
		return err
	}
	v.freeze()
	if err := r.lookAtDeployments(ctx, v); err != nil {
		return err
	}
	if err := r.choose(ctx, v); err != nil || !v.looked {
		return err
	}
	if err := r.keep(ctx, v); err != nil {
		return err
	}
	return r.inherit(ctx, v)
}

// lookAtDeployments reads what Fleet has made of the Bundles.
func (r *reconciler) lookAtDeployments(ctx context.Context, v *visit) error {
	var deployments fleetv1.BundleDeploymentList
	if err := r.List(ctx, &deployments, client.MatchingLabels(plan.Labels(v.key)), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing BundleDeployments: %w", err)
	}
	v.deployments = map[deploymentKey]*fleetv1.BundleDeployment{}
	for i := range deployments.Items {
		v.noteDeployment(&deployments.Items[i])
	}
	return nil
}

// noteDeployment notes what Fleet has made of one of the Bundles.
func (v *visit) noteDeployment(its *fleetv1.BundleDeployment) {
	if key, found := v.isDeploymentOf(its); found {
		v.deployments[key] = its
	}
}

// isDeploymentOf returns which Fleet Cluster a BundleDeployment is for, if it is of one of the
// Bundles. Its labels are the word of whoever may write BundleDeployments in its namespace: only
// in that of the Fleet Cluster are these Fleet and the Cluster's own agent.
func (v *visit) isDeploymentOf(its client.Object) (deploymentKey, bool) {
	labels := its.GetLabels()
	bundle := client.ObjectKey{Namespace: labels[fleetv1.BundleNamespaceLabel], Name: labels[fleetv1.BundleLabel]}
	key := deploymentKey{labels[fleetv1.ClusterNamespaceLabel], labels[fleetv1.ClusterLabel]}
	return key, v.bundle(bundle) != nil && key.namespace == bundle.Namespace &&
		its.GetNamespace() == stamp.FleetNamespace(key.namespace, key.fleetCluster)
}

// bundlesOf returns the Bundles of a HelmChartProxy, which is nil if it is gone. Whoever may
// write Bundles in a namespace can make one that looks like ours: what is in one namespace
// must decide nothing in another.
func (r *reconciler) bundlesOf(ctx context.Context, key plan.Key, proxy *addonsv1.HelmChartProxy) ([]fleetv1.Bundle, error) {
	var ops fleetv1.HelmOpList
	if err := r.List(ctx, &ops, client.MatchingLabels(plan.Labels(key)), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing HelmOps: %w", err)
	}
	var all fleetv1.BundleList
	if err := r.List(ctx, &all, client.MatchingLabels(plan.Labels(key)), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Bundles: %w", err)
	}
	result, known := make([]fleetv1.Bundle, 0, len(ops.Items)+len(all.Items)), map[client.ObjectKey]bool{}
	for i := range ops.Items {
		result = append(result, plan.BundleFor(&ops.Items[i]))
	}
	return slices.DeleteFunc(append(result, all.Items...), func(bundle fleetv1.Bundle) bool {
		its := client.ObjectKeyFromObject(&bundle)
		if known[its] || !plan.MayBeOurs(bundle.Name) || !isFor(&bundle, key) && !isFleets(&bundle) {
			return true // The names that are given take longer to work out.
		}
		if !plan.IsGivenName(key, &bundle) && (proxy == nil || !plan.IsBundleName(proxy, &bundle)) {
			return true
		}
		known[its] = true
		return false
	}), nil
}

// isFleets reports whether Fleet has made a Bundle, of a HelmOp. It has our labels, and says
// of nobody that it was made for that; its name does.
func isFleets(bundle *fleetv1.Bundle) bool {
	_, says := plan.ProxyOf(bundle)
	return !says && bundle.Spec.HelmOpOptions != nil
}

// freeze notes which Clusters are frozen.
func (v *visit) freeze() {
	v.frozen = map[deploymentKey]*fleetv1.Bundle{}
	for i := range v.bundles {
		its := &v.bundles[i]
		if !its.Spec.Paused || !its.Spec.KeepResources {
			continue
		}
		for _, target := range its.Spec.Targets {
			v.frozen[deploymentKey{its.Namespace, target.ClusterName}] = its
		}
	}
}

// thaw forgets that a Cluster was installed once and for all if that was an earlier one of its name.
func (v *visit) thaw(cluster *selected) {
	key := deploymentKey{cluster.Namespace, cluster.fleet}
	if its := v.frozen[key]; its != nil && its.Annotations[plan.InstalledOnAnnotation] != "" &&
		its.Annotations[plan.InstalledOnAnnotation] != string(cluster.UID) {
		delete(v.frozen, key)
	}
}

func (v *visit) isFrozen(cluster *selected) bool {
	return v.frozen[deploymentKey{cluster.Namespace, cluster.fleet}] != nil
}

// isFor reports whether an object was made for a HelmChartProxy. Labels alone do not say it:
// long names are shortened there.
func isFor(object client.Object, proxy plan.Key) bool {
	made, found := plan.ProxyOf(object)
	return found && made == proxy
}

// choose selects Clusters.
func (r *reconciler) choose(ctx context.Context, v *visit) error {
	selector, err := bounds.AsSelector(&v.proxy.Spec.ClusterSelector)
	if err != nil {
		v.fail(addonsv1.ClusterSelectionFailedReason, "spec.clusterSelector: "+err.Error())
		return nil //nolint:nilerr // It is told.
	}
	options := []client.ListOption{client.InNamespace(v.key.Namespace)}
	inNamespace := func(string) (bool, error) { return true, nil }
	if v.proxy.Spec.NamespaceSelector != nil {
		namespaces, err := bounds.AsSelector(v.proxy.Spec.NamespaceSelector)
		if err != nil {
			v.fail(addonsv1.ClusterSelectionFailedReason, "spec.namespaceSelector: "+err.Error())
			return nil //nolint:nilerr // It is told.
		}
		options, inNamespace = nil, r.matching(ctx, namespaces)
	}
	var clusters clusterv1.ClusterList
	if err := r.List(ctx, &clusters, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("listing Clusters: %w", err)
	}
	alive := newLiving(clusters.Items)
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if !selector.Matches(labels.Set(stamp.WithClassLabels(cluster.Labels, cluster.GetClassKey()))) {
			continue
		}
		its, err := inNamespace(cluster.Namespace)
		if err != nil {
			return err
		}
		if !its {
			continue
		}
		chosen, err := r.newSelected(ctx, cluster, alive)
		if err != nil {
			return err
		}
		v.thaw(chosen)
		chosen.outcome.Release = plan.ReleaseOf(v.deployments[deploymentKey{cluster.Namespace, chosen.fleet}])
		v.clusters = append(v.clusters, chosen)
	}
	slices.SortFunc(v.clusters, func(a, b *selected) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	v.looked = true
	return nil
}

// matching says whether the labels of a Namespace match, each looked up once.
func (r *reconciler) matching(ctx context.Context, selector labels.Selector) func(string) (bool, error) {
	known := map[string]bool{}
	return func(name string) (bool, error) {
		if matches, found := known[name]; found {
			return matches, nil
		}
		namespace := namespaceMetadata()
		err := r.Get(ctx, client.ObjectKey{Name: name}, namespace)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading Namespace: %w", err)
		}
		known[name] = err == nil && selector.Matches(labels.Set(namespace.Labels))
		return known[name], nil
	}
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}

// render renders the values of each Cluster. What is wrong with one stops no other.
func (r *reconciler) render(ctx context.Context, v *visit, template *plan.Template) error {
	in, err := r.settings.Current(ctx)
	if err != nil {
		return err
	}
	r.rendered.keep(v.key, v.clusters)
	for _, cluster := range v.clusters {
		if cluster.fleet == "" || template.IsStatic() || v.isFrozen(cluster) || cluster.installed {
			continue
		}
		if cluster.paused || cluster.lost {
			cluster.kept = true
			continue
		}
		read, err := r.rendered.read(v.key, cluster.Cluster, in)
		digest := fnv.New64a()
		fmt.Fprintf(digest, "%s %d %s %s %x ", v.proxy.UID, v.proxy.Generation, cluster.UID, in.Effect, read)
		isWhole := err == nil && r.sources.Digest(ctx, cluster.Cluster, digest)
		if isWhole {
			if known, found := r.rendered.get(v.key, cluster.UID, digest.Sum64()); found {
				cluster.values = known
				continue
			}
		}
		values, err := r.renderOne(ctx, template, cluster.Cluster, in.Cluster.Exclude)
		v.again = sooner(v.again, sources.RetryAfter(err))
		switch {
		case errors.Is(err, sources.ErrListing):
			cluster.kept = true
			cluster.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, "the objects that the Cluster refers to are being listed")
		case err != nil:
			// Its last values stay.
			cluster.kept = true
			cluster.fail(addonsv1.ValueParsingFailedReason, err.Error())
		default:
			cluster.values = values
			if isWhole {
				r.rendered.put(v.key, cluster.UID, digest.Sum64(), values)
			}
		}
	}
	return nil
}

func (r *reconciler) renderOne(ctx context.Context, template *plan.Template, cluster *clusterv1.Cluster, exclude []string) ([]byte, error) {
	controlPlane, infrastructure, err := r.sources.Objects(ctx, cluster)
	if err != nil {
		return nil, err
	}
	data, err := plan.Data(cluster, controlPlane, infrastructure, exclude)
	if err != nil {
		return nil, err
	}
	return template.Render(data)
}
