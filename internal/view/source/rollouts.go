package source

import (
	"context"
	"fmt"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/rollout"
	"github.com/muster-fleet/muster/internal/view/targets"
)

// mostUnchecked is how many Bundles a note names.
const mostUnchecked = 5

// Rollouts returns warnings about partitions that people wrote, in the Bundles of the scope. Notes name the kinds that
// could not be read. It reads Clusters, groups and mappings only if a Bundle has partitions.
func (i *Inspection) Rollouts(ctx context.Context) (warnings []*view.Node, notes []string, err error) {
	r := &rollouts{reader: i.reader, unread: map[view.Kind]string{}}
	for _, bundle := range i.bundles {
		if rollout.IsChecked(bundle) && (i.scope.Namespace == "" || i.scope.Namespace == bundle.Namespace) {
			r.bundles = append(r.bundles, bundle)
		}
	}
	if len(r.bundles) == 0 {
		return nil, nil, nil
	}
	index, err := r.index(ctx, i.scope)
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
			notes = append(notes, message.Text(fmt.Sprintf("%s: %s; the partitions of %s were not checked", kind.Plural(), r.unread[kind], strings.Join(names, ", "))))
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
		clusters = append(clusters, withLabels(list)...)
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
