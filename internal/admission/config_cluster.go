package admission

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// surprises returns the effects of a FleetAddonConfig on existing Clusters that its author may not expect.
func (v ConfigValidator) surprises(ctx context.Context, old, config *addonsv1.FleetAddonConfig) []string {
	current, err := settings.From(config)
	if err != nil {
		return nil // The webhook refuses the FleetAddonConfig anyway.
	}
	clusters, known := v.clusters(ctx)
	if !known {
		return nil
	}
	var result []string
	if all, known := v.place(ctx, current, clusters); known && current.Cluster.Enabled {
		if selectors := selectorsOf(config); selectors != "" && !slices.ContainsFunc(all, func(p placed) bool { return p.mayBeSelected(current) }) {
			result = append(result, fmt.Sprintf("%s: none of the %d existing Clusters is selected now", selectors, len(clusters)))
		}
		result = appendText(result, matchedByOne(config, current, all))
	}
	if namingOf(old) != namingOf(config) {
		if count := countPinned(clusters); count > 0 {
			result = append(result, fmt.Sprintf("spec.cluster.naming: the %d Clusters that have a name in Fleet keep it; the change affects new ones only", count))
		}
	}
	if before, err := settings.From(old); err == nil {
		result = slices.Concat(result, turned(before, current, clusters), staying(before, current, clusters))
	}
	return result
}

// staying warns that agents do not move to another agentNamespace.
func staying(old, now settings.Settings, clusters []object) []string {
	if old.Cluster.AgentNamespace == now.Cluster.AgentNamespace {
		return nil
	}
	var names []string
	for _, cluster := range clusters {
		subject := stamp.Subject{Labels: cluster.Labels, Annotations: cluster.Annotations}
		if stamp.RegistrationOf(now.Cluster, subject, nil) == stamp.ByAgent {
			names = append(names, client.ObjectKeyFromObject(&cluster).String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("spec.cluster.agentNamespace: the agents of %d Clusters register themselves; agents that have checked in stay in their namespace, because their credential is there: %s",
		len(names), listed(names))}
}

func (v ConfigValidator) deletion(ctx context.Context) []string {
	clusters, known := v.clusters(ctx)
	count := countPinned(clusters)
	if !known || count == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d Clusters stay imported into Fleet; without the FleetAddonConfig %s", count, settings.MissingMeans)}
}

// turned names the imported Clusters whose way of registration changes with the settings: from registration by the
// manager to registration by the agent, or back.
func turned(old, now settings.Settings, clusters []object) []string {
	if !now.Cluster.Enabled {
		return nil // Nothing changes.
	}
	names := map[stamp.Registration][]string{}
	for _, cluster := range clusters {
		if !stamp.PinOf(cluster.Annotations).IsComplete() || !hasAllLabels(&cluster) {
			continue
		}
		subject := stamp.Subject{Labels: cluster.Labels, Annotations: cluster.Annotations, Class: types.NamespacedName{
			Namespace: cluster.Labels[stamp.ClassNamespaceLabel], Name: cluster.Labels[stamp.ClassNameLabel],
		}}
		if by := stamp.RegistrationOf(now.Cluster, subject, nil); by != stamp.RegistrationOf(old.Cluster, subject, nil) {
			names[by] = append(names[by], client.ObjectKeyFromObject(&cluster).String())
		}
	}
	var result []string
	if manager := names[stamp.ByManager]; len(manager) > 0 {
		result = append(result, fmt.Sprintf("spec.cluster.agentInitiated: %d Clusters change to the manager, and Fleet installs an agent through their kubeconfigs; agents that have registered themselves keep working until then: %s",
			len(manager), listed(manager)))
	}
	if agent := names[stamp.ByAgent]; len(agent) > 0 {
		result = append(result, fmt.Sprintf("spec.cluster.agentInitiated: %d Clusters change to the agent: agents that have checked in keep working, and on the others Fleet no longer installs one: %s",
			len(agent), listed(agent)))
	}
	return result
}

// listed returns the first names in order, and how many more there are.
func listed(names []string) string {
	slices.Sort(names)
	return message.Names(names)
}

func (v ConfigValidator) clusters(ctx context.Context) (all []object, known bool) {
	if v.Others == nil {
		return nil, false
	}
	all, known, err := v.Others.clusters(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Did not check a FleetAddonConfig against the Clusters")
		return nil, false
	}
	return all, known
}

// placed is a Cluster with the labels that selectors match.
type placed struct {
	types.NamespacedName
	labels, namespaceLabels map[string]string
	// unknown means that a selector needs labels that we do not know.
	unknown bool
}

// mayBeSelected reports whether a Cluster is selected, or may be if its labels are unknown.
func (p placed) mayBeSelected(in settings.Settings) bool {
	if p.unknown {
		in.Cluster.Selector = labels.Everything()
	}
	selected, _ := stamp.Selected(in.Cluster, p.labels, p.namespaceLabels)
	return selected
}

// place adds the labels of the Clusters' Namespaces if a selector needs them.
func (v ConfigValidator) place(ctx context.Context, in settings.Settings, clusters []object) (all []placed, known bool) {
	namespaces := map[string]map[string]string{}
	for _, cluster := range clusters {
		if ctx.Err() != nil {
			return nil, false // The request has ended: the API server no longer waits for the answer.
		}
		namespace, found := namespaces[cluster.Namespace]
		if !found && !in.Cluster.NamespaceSelector.Empty() {
			var err error
			if namespace, err = namespaceLabels(ctx, v.Namespaces, cluster.Namespace); client.IgnoreNotFound(err) != nil {
				ctrl.LoggerFrom(ctx).Error(err, "Did not check selectors against the Clusters")
				return nil, false
			}
			namespaces[cluster.Namespace] = namespace
		}
		all = append(all, placed{
			NamespacedName: client.ObjectKeyFromObject(&cluster), labels: cluster.Labels, namespaceLabels: namespace,
			unknown: !hasAllLabels(&cluster) && !in.Cluster.Selector.Empty(),
		})
	}
	return all, true
}

// matchedByOne returns a warning with the Clusters that match only one of two selectors, as far as we know; empty
// if there are none, or if there are not two selectors. In CAAPF both selectors are mandatory, and a Cluster that
// matches either is imported, so its users must know which Clusters Muster leaves out.
func matchedByOne(config *addonsv1.FleetAddonConfig, in settings.Settings, all []placed) string {
	cluster := ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{})
	if cluster.Selector == nil || cluster.NamespaceSelector == nil || !in.Cluster.Enabled {
		return ""
	}
	var names []string
	for _, p := range all {
		if !p.unknown && in.Cluster.Selector.Matches(labels.Set(p.labels)) != in.Cluster.NamespaceSelector.Matches(labels.Set(p.namespaceLabels)) {
			names = append(names, p.String())
		}
	}
	if len(names) == 0 {
		return ""
	}
	then := "stay in Fleet as they are now, frozen like deselected ones"
	if in.Cluster.OnDeselect == addonsv1.DeselectDelete {
		then = "are removed from Fleet, because spec.cluster.onDeselect is Delete"
	}
	return fmt.Sprintf("spec.cluster.selector and spec.cluster.namespaceSelector: %d Clusters match only one of the two and are not imported, because both must match: %s; for CAAPF one was enough, and Clusters that CAAPF imported %s",
		len(names), listed(names), then)
}

// selectorsOf names the selectors that do not select everything.
func selectorsOf(config *addonsv1.FleetAddonConfig) string {
	cluster := ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{})
	selects := func(selector *metav1.LabelSelector) bool {
		return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) > 0
	}
	one, other := selects(cluster.Selector), selects(cluster.NamespaceSelector)
	switch {
	case one && other:
		return "spec.cluster.selector and spec.cluster.namespaceSelector"
	case one:
		return "spec.cluster.selector"
	case other:
		return "spec.cluster.namespaceSelector"
	default:
		return ""
	}
}

func namingOf(config *addonsv1.FleetAddonConfig) addonsv1.NamingStrategy {
	return ptr.Deref(ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{}).Naming, addonsv1.NamingStrategy{})
}

func countPinned(clusters []object) int {
	count := 0
	for _, cluster := range clusters {
		if stamp.PinOf(cluster.Annotations).IsComplete() {
			count++
		}
	}
	return count
}
