package rollouts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/rollout"
)

const (
	chartName = "simple"
	// chosen selects Clusters for the HelmChartProxy, tier for a stage; who is in the values of a Cluster, and no template
	// can render badly.
	chosen, tier, who = "chosen", "tier", "who"
	badly             = "badly"
	defaultHistory    = 10
)

// versions are the versions of the chart in the repository.
var versions = []string{"1.0.0", "1.1.0", "1.2.0"}

// generations tell the templates apart.
var generations = []string{"a", "b", "c"}

func template(generation string) string {
	return fmt.Sprintf(`{{ if eq .Cluster.metadata.labels.who "%s" }}{{ fail "no" }}{{ end }}{generation: %s, who: '{{ .Cluster.metadata.labels.who }}'}`, badly, generation)
}

func templates() (all []string) {
	for _, its := range generations {
		all = append(all, template(its))
	}
	return all
}

// content is the version of the chart, an option, and the values of a Cluster.
type content string

func contentOf(version string, history int, values map[string]any) content {
	delete(values, "global") // Without values, an empty one keeps Helm from taking those of the last release.
	text, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	return content(fmt.Sprintf("%s history=%d %s", version, cmp.Or(history, defaultHistory), text))
}

// wanted returns the wanted content of a Cluster; false if its template fails.
func wanted(proxy *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster) (content, bool) {
	values := map[string]any{}
	for _, generation := range generations {
		if proxy.Spec.ValuesTemplate == template(generation) {
			values["generation"], values["who"] = generation, cluster.Labels[who]
		}
	}
	return contentOf(proxy.Spec.Version, proxy.Spec.Options.Upgrade.MaxHistory, values), cluster.Labels[who] != badly
}

// isSelected reports whether a HelmChartProxy selects a Cluster.
func isSelected(proxy *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster) bool {
	return matches(&proxy.Spec.ClusterSelector, cluster)
}

func matches(selector *metav1.LabelSelector, cluster *clusterv1.Cluster) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(cluster.Labels))
}

// stage is a stage as the guide describes it; the last one has the Clusters that no stage selects.
type stage struct {
	name           string
	soak           time.Duration
	isManual       bool
	maxUnavailable int
	maxFailing     int
}

// assign returns the stages of a rollout, and the stage of each selected Cluster.
func assign(proxy *addonsv1.HelmChartProxy, clusters map[string]*clusterv1.Cluster) ([]stage, map[string]int) {
	strategy := ptr.Deref(proxy.Spec.Rollout, addonsv1.RolloutStrategy{})
	var keys []types.NamespacedName
	for _, cluster := range clusters {
		if isSelected(proxy, cluster) && cluster.DeletionTimestamp.IsZero() {
			keys = append(keys, client.ObjectKeyFromObject(cluster))
		}
	}
	var selections []rollout.Selection
	for i := range strategy.Stages {
		its := &strategy.Stages[i]
		selection := rollout.Selection{Percent: int(ptr.Deref(its.Percent, 0))}
		if its.ClusterSelector != nil {
			selection.Matches = func(key types.NamespacedName) bool { return matches(its.ClusterSelector, clusters[key.Name]) }
		}
		selections = append(selections, selection)
	}
	// The guide does not say which hash of the names decides whom a percentage has.
	of, sizes := map[string]int{}, make([]int, len(selections)+1)
	for key, i := range rollout.Assign(selections, keys) {
		of[key.Name] = i
		sizes[i]++
	}
	var stages []stage
	for i, its := range append(strategy.Stages[:len(strategy.Stages):len(strategy.Stages)], addonsv1.RolloutStage{}) {
		stages = append(stages, stage{
			name: its.Name, soak: ptr.Deref(its.Soak, metav1.Duration{}).Duration, isManual: its.Approval == addonsv1.RolloutApprovalManual,
			maxUnavailable: limit(cmp.Or(its.MaxUnavailable, strategy.MaxUnavailable), sizes[i]), maxFailing: int(ptr.Deref(its.MaxFailing, 0)),
		})
		if len(strategy.Stages) == 0 {
			stages[i].maxFailing = sizes[i]
		}
	}
	return stages, of
}

func limit(most *intstr.IntOrString, size int) int {
	if most == nil {
		return size
	}
	scaled, err := intstr.GetScaledValueFromIntOrPercent(most, size, true)
	if err != nil {
		panic(err)
	}
	return max(1, scaled)
}

// offlineAfter returns how long an agent may be silent.
func offlineAfter(proxy *addonsv1.HelmChartProxy) time.Duration {
	if strategy := proxy.Spec.Rollout; strategy != nil && strategy.OfflineAfter != nil {
		return strategy.OfflineAfter.Duration
	}
	return 30 * time.Minute
}
