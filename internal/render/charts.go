package render

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/values"
	"github.com/muster-fleet/muster/internal/stamp"
)

// imported is an imported Cluster, stamped, with the objects to which it refers.
type imported struct {
	cluster                      *clusterv1.Cluster
	controlPlane, infrastructure map[string]any
}

// chart adds the objects for a HelmChartProxy. It does not download the chart.
func (r *renderer) chart(proxy *addonsv1.HelmChartProxy) error {
	key := client.ObjectKeyFromObject(proxy)
	wrap := func(err error) error { return fmt.Errorf("HelmChartProxy %s: %w", key, err) }
	plan.Default(proxy)
	if problems := plan.Validate(proxy); len(problems) > 0 {
		return wrap(bounds.Errors(problems).ToAggregate())
	}
	template, err := values.Parse(proxy.Spec.ValuesTemplate)
	if err != nil {
		return wrap(fmt.Errorf("spec.valuesTemplate: %w", err))
	}
	shared, isSecret := r.layers(proxy)
	selected, err := r.selectedBy(proxy)
	if err != nil {
		return wrap(err)
	}
	bundles := map[plan.Key]*fleetv1.Bundle{}
	chart := plan.Chart{Source: plan.SourceOf(proxy), Version: proxy.Spec.Version, Agent: proxy.Spec.Download == addonsv1.DownloadAgent}
	counts := map[plan.Key]int{}
	for _, its := range selected {
		layers, err := r.valuesFor(proxy, template, its, shared)
		if err != nil {
			r.note("HelmChartProxy %s: Cluster %s: %v; it is left out", key, client.ObjectKeyFromObject(its.cluster), err)
			continue
		}
		cluster := client.ObjectKeyFromObject(its.cluster)
		name := plan.Shard(proxy, cluster, counts)
		in := plan.Key{Namespace: cluster.Namespace, Name: name}
		counts[in]++
		if bundles[in] == nil {
			bundles[in] = plan.NewBundle(proxy, cluster.Namespace, name, chart, "")
		}
		target, err := r.target(proxy, its, layers, isSecret)
		if err != nil {
			return wrap(err)
		}
		bundles[in].Spec.Targets = append(bundles[in].Spec.Targets, target)
	}
	switch {
	case len(bundles) == 0:
		r.note("HelmChartProxy %s selects no imported Cluster of the manifests", key)
	case chart.Agent:
		r.note("HelmChartProxy %s: Muster looks up version %q in %s; a Secret with credentials for it is not shown below", key, proxy.Spec.Version, proxy.Spec.RepoURL)
	default:
		r.note("HelmChartProxy %s: the files of the chart are not shown below; Muster looks up version %q in %s", key, proxy.Spec.Version, proxy.Spec.RepoURL)
	}
	for _, bundle := range bundles {
		plan.SortTargets(bundle.Spec.Targets)
		if err := r.add(bundle, "HelmChartProxy "+key.String()); err != nil {
			return err
		}
	}
	return nil
}

// target adds the values of a Cluster, and returns its target.
func (r *renderer) target(proxy *addonsv1.HelmChartProxy, its imported, layers []plan.Layer, isSecret bool) (fleetv1.BundleTarget, error) {
	record := plan.Record{FleetCluster: stamp.PinOf(its.cluster.Annotations).ClusterName, Secret: isSecret}
	if plan.HasValues(proxy) {
		record.Digest = "rendered"
		for _, layer := range layers {
			record.Keys = append(record.Keys, layer.Key)
		}
		key := client.ObjectKeyFromObject(proxy)
		if err := r.add(plan.ValuesObject(key, its.cluster.Namespace, record, layers), "HelmChartProxy "+key.String()); err != nil {
			return fleetv1.BundleTarget{}, err
		}
	}
	release := &addonsv1.HelmReleaseProxy{Spec: addonsv1.HelmReleaseProxySpec{ReleaseName: plan.ReleaseName(proxy)}}
	release.Spec.ClusterRef.Namespace = its.cluster.Namespace
	target, _ := plan.TargetOf(proxy, release, record)
	return target, nil
}

// valuesFor returns the values of a Cluster.
func (r *renderer) valuesFor(proxy *addonsv1.HelmChartProxy, template *values.Template, its imported, shared []plan.Layer) ([]plan.Layer, error) {
	if proxy.Spec.ValuesTemplate == "" {
		return plan.OrNoValues(shared), nil
	}
	data, err := plan.Data(its.cluster, its.controlPlane, its.infrastructure, r.settings.Cluster.Exclude)
	if err != nil {
		return nil, err
	}
	rendered, err := template.Render(data)
	return append(slices.Clone(shared), plan.Layer{Key: plan.ValuesKey, Data: rendered}), err
}

// selectedBy returns the imported Clusters that a HelmChartProxy selects.
func (r *renderer) selectedBy(proxy *addonsv1.HelmChartProxy) ([]imported, error) {
	selector, trouble := plan.NewSelector(proxy)
	if trouble != nil {
		return nil, errors.New(trouble.Message)
	}
	namespaceLabels := func(namespace string) labels.Set { return r.in.namespaceLabels(namespace) }
	return slices.DeleteFunc(slices.Clone(r.imported), func(its imported) bool { return !selector.Matches(its.cluster, namespaceLabels) }), nil
}

// layers returns the values from ConfigMaps and Secrets.
func (r *renderer) layers(proxy *addonsv1.HelmChartProxy) (layers []plan.Layer, isSecret bool) {
	for i, from := range proxy.Spec.ValuesFrom {
		data, found := r.referencedValues(proxy.Namespace, from)
		if !found {
			if !from.Optional {
				r.note("HelmChartProxy %s/%s: %s %q is not among the manifests; its values are missing below", proxy.Namespace, proxy.Name, from.Kind, from.Name)
			}
			continue
		}
		layers = append(layers, plan.Layer{Key: fmt.Sprintf("%02d.yaml", i), Data: data})
		isSecret = isSecret || from.Kind == plan.SecretKind
	}
	return layers, isSecret
}

func (r *renderer) referencedValues(namespace string, from addonsv1.ValuesReference) ([]byte, bool) {
	object := r.in.others[reference{"", from.Kind, types.NamespacedName{Namespace: namespace, Name: from.Name}}]
	key := cmp.Or(from.Key, plan.ValuesKey)
	if text, found, err := unstructured.NestedString(object, "stringData", key); err == nil && found {
		return []byte(text), true
	}
	text, found, err := unstructured.NestedString(object, "data", key)
	if err != nil || !found {
		return nil, false
	}
	if from.Kind != plan.SecretKind {
		return []byte(text), true
	}
	data, err := base64.StdEncoding.DecodeString(text)
	return data, err == nil
}
