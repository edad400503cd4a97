package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/rollout"
	"github.com/muster-fleet/muster/internal/view/targets"
)

const (
	// bundlePage is how many Bundles are read at a time: one can be larger than a megabyte.
	bundlePage = 25
	// appliedLabel is on the Bundles of Fleet's agents, one for each Cluster, and of HelmChartProxies.
	appliedLabel = "objectset.rio.cattle.io/hash"
	// mostUnchecked is how many Bundles a note names.
	mostUnchecked = 5
)

// Rollouts reads the Bundles of a scope, and returns warnings about partitions that people wrote. Notes name the
// kinds that could not be read. It reads Clusters, groups and mappings only if a Bundle has partitions.
func Rollouts(ctx context.Context, reader client.Reader, scope Scope) (warnings []*view.Node, notes []string, err error) {
	r := &rollouts{reader: reader, unread: map[view.Kind]string{}}
	if err := r.readBundles(ctx, scope); err != nil {
		return nil, nil, err
	}
	if why := r.unread[view.Bundle]; why != "" {
		return nil, []string{fmt.Sprintf("%s: %s; their partitions were not checked", view.Bundle.Plural(), view.Text(why))}, nil
	}
	if len(r.bundles) == 0 {
		return nil, nil, nil
	}
	index, err := r.index(ctx, scope)
	if err != nil {
		return nil, nil, err
	}
	unchecked := map[view.Kind][]string{}
	for _, bundle := range r.bundles {
		if kind := r.missing(index, bundle); kind != "" {
			unchecked[kind] = append(unchecked[kind], bundle.Namespace+"/"+bundle.Name)
			continue
		}
		members, err := index.MembersOf(bundle)
		if err != nil {
			continue // Fleet says so itself, in the Bundle's conditions.
		}
		warnings = append(warnings, rollout.Warnings(bundle, members)...)
	}
	for _, kind := range []view.Kind{view.FleetCluster, view.ClusterGroup, view.Mapping, view.Namespace} {
		if names := unchecked[kind]; len(names) > 0 {
			if more := len(names) - mostUnchecked; more > 1 {
				names = append(names[:mostUnchecked], fmt.Sprintf("and %d more", more))
			}
			notes = append(notes, view.Text(fmt.Sprintf("%s: %s; the partitions of %s were not checked", kind.Plural(), r.unread[kind], strings.Join(names, ", "))))
		}
	}
	return warnings, notes, nil
}

type rollouts struct {
	reader  client.Reader
	bundles []*fleetv1.Bundle
	unread  map[view.Kind]string
}

// note records a kind that could not be read, and returns any other error.
func (r *rollouts) note(kind view.Kind, by string, err error) error {
	if err == nil {
		return nil
	}
	why := unreadable(err, by)
	if why == "" {
		return fmt.Errorf("reading %s: %w", kind.Plural(), err)
	}
	r.unread[kind] = why
	return nil
}

func (r *rollouts) readBundles(ctx context.Context, scope Scope) error {
	others, err := labels.NewRequirement(appliedLabel, selection.DoesNotExist, nil)
	utilruntime.Must(err) // The label is constant.
	_, err = pager.Each(ctx, r.reader, &fleetv1.BundleList{}, func(list *fleetv1.BundleList) {
		for i := range list.Items {
			if rollout.IsChecked(&list.Items[i]) {
				r.bundles = append(r.bundles, cutBundle(&list.Items[i]))
			}
		}
	}, client.InNamespace(scope.Namespace), client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*others)}, client.Limit(bundlePage))
	if errors.Is(err, errNotInFile) {
		return nil // In a file, it is not an error to have none: the cluster may have none, or they were not exported.
	}
	slices.SortFunc(r.bundles, func(a, b *fleetv1.Bundle) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return r.note(view.Bundle, "Fleet", err)
}

// cutBundle keeps the fields that decide where and when a Bundle is deployed; its resources are large.
func cutBundle(in *fleetv1.Bundle) *fleetv1.Bundle {
	result := &fleetv1.Bundle{}
	result.Namespace, result.Name, result.Labels = in.Namespace, in.Name, in.Labels
	for i := range in.Spec.Targets {
		target := &in.Spec.Targets[i]
		result.Spec.Targets = append(result.Spec.Targets, fleetv1.BundleTarget{
			Name: target.Name, ClusterName: target.ClusterName, ClusterSelector: target.ClusterSelector,
			ClusterGroup: target.ClusterGroup, ClusterGroupSelector: target.ClusterGroupSelector, DoNotDeploy: target.DoNotDeploy,
		})
	}
	result.Spec.TargetRestrictions, result.Spec.TargetCustomizationMode = in.Spec.TargetRestrictions, in.Spec.TargetCustomizationMode
	result.Spec.RolloutStrategy = in.Spec.RolloutStrategy
	return result
}

// index reads the Clusters that the Bundles may target, with their groups and mappings. A namespace without
// mappings needs only its own Clusters.
func (r *rollouts) index(ctx context.Context, scope Scope) (*targets.Index, error) {
	var mappings []*fleetv1.BundleNamespaceMapping
	_, err := pager.Each(ctx, r.reader, &fleetv1.BundleNamespaceMappingList{}, func(list *fleetv1.BundleNamespaceMappingList) {
		for i := range list.Items {
			mappings = append(mappings, &list.Items[i])
		}
	}, client.InNamespace(scope.Namespace))
	if err := r.note(view.Mapping, "Fleet", err); err != nil {
		return nil, err
	}
	within := scope.Namespace
	namespaces := map[string]map[string]string{}
	if len(mappings) > 0 || r.unread[view.Mapping] != "" {
		within = ""
		_, err := pager.Each(ctx, r.reader, metadataList(corev1.SchemeGroupVersion.WithKind("NamespaceList")), func(list *metav1.PartialObjectMetadataList) {
			for i := range list.Items {
				namespaces[list.Items[i].Name] = list.Items[i].Labels
			}
		})
		if err := r.note(view.Namespace, "Kubernetes", err); err != nil {
			return nil, err
		}
	}
	var clusters []*fleetv1.Cluster
	_, err = pager.Each(ctx, r.reader, metadataList(fleetv1.SchemeGroupVersion.WithKind("ClusterList")), func(list *metav1.PartialObjectMetadataList) {
		for i := range list.Items {
			cluster := &fleetv1.Cluster{}
			cluster.Namespace, cluster.Name, cluster.Labels = list.Items[i].Namespace, list.Items[i].Name, list.Items[i].Labels
			clusters = append(clusters, cluster)
		}
	}, client.InNamespace(within))
	if err := r.note(view.FleetCluster, "Fleet", err); err != nil {
		return nil, err
	}
	var groups []*fleetv1.ClusterGroup
	_, err = pager.Each(ctx, r.reader, &fleetv1.ClusterGroupList{}, func(list *fleetv1.ClusterGroupList) {
		for i := range list.Items {
			groups = append(groups, cutGroup(&list.Items[i]))
		}
	}, client.InNamespace(within))
	return targets.NewIndex(clusters, groups, mappings, namespaces), r.note(view.ClusterGroup, "Fleet", err)
}

// missing returns the unread kind on which a Bundle's Clusters depend, or "".
func (r *rollouts) missing(index *targets.Index, bundle *fleetv1.Bundle) view.Kind {
	switch {
	case r.unread[view.FleetCluster] != "":
		return view.FleetCluster
	case r.unread[view.ClusterGroup] != "" && targets.UsesGroups(bundle):
		return view.ClusterGroup
	case r.unread[view.Mapping] != "" && !index.IsAlone(bundle.Namespace):
		return view.Mapping
	case r.unread[view.Namespace] != "" && index.IsMapped(bundle):
		return view.Namespace
	}
	return ""
}
