package render

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// imported is a Cluster that is imported, stamped, with what it refers to.
type imported struct {
	cluster                      *clusterv1.Cluster
	controlPlane, infrastructure map[string]any
}

// chart adds what a HelmChartProxy leads to. The chart itself is not downloaded.
func (r *renderer) chart(proxy *addonsv1.HelmChartProxy) error {
	key := client.ObjectKeyFromObject(proxy)
	wrap := func(err error) error { return fmt.Errorf("HelmChartProxy %s: %w", key, err) }
	plan.Default(proxy)
	if problems := plan.Validate(proxy); len(problems) > 0 {
		return wrap(bounds.Errors(problems).ToAggregate())
	}
	template, err := plan.Parse(proxy.Spec.ValuesTemplate)
	if err != nil {
		return wrap(err)
	}
	shared, err := r.shared(proxy, template)
	if err != nil {
		return wrap(err)
	}
	selected, err := r.selectedBy(proxy)
	if err != nil {
		return wrap(err)
	}
	targets, err := r.targets(proxy, template, selected)
	if err != nil {
		return wrap(err)
	}
	isAgent := proxy.Spec.Download == addonsv1.DownloadAgent
	switch {
	case len(targets) == 0:
		r.note("HelmChartProxy %s selects no Cluster of the manifests that is imported", key)
	case isAgent:
		r.note("HelmChartProxy %s: version %q is looked up in %s; the Secret with access to it is missing below, if there is one", key, proxy.Spec.Version, proxy.Spec.RepoURL)
	default:
		r.note("HelmChartProxy %s: the files of the chart are missing below; version %q is looked up in %s", key, proxy.Spec.Version, proxy.Spec.RepoURL)
	}
	for namespace, its := range targets {
		objects := plan.Make(plan.Input{
			Proxy: proxy, Namespace: namespace, Targets: its, Shared: shared,
			Chart: &plan.Chart{Source: plan.SourceOf(proxy), Version: proxy.Spec.Version, Agent: isAgent},
		})
		for _, object := range objects.Values {
			if err := r.add(object, "HelmChartProxy "+key.String()); err != nil {
				return err
			}
		}
		for _, bundle := range objects.Bundles {
			var object client.Object = bundle
			if plan.IsHelmOp(bundle) {
				object = plan.HelmOpOf(bundle)
			}
			if err := r.add(object, "HelmChartProxy "+key.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// targets returns what is deployed to, by namespace, with each Cluster's own values.
func (r *renderer) targets(proxy *addonsv1.HelmChartProxy, template *plan.Template, selected []imported) (map[string][]plan.Target, error) {
	targets := map[string][]plan.Target{}
	for _, its := range selected {
		target := plan.Target{Fleet: stamp.PinOf(its.cluster.Annotations).ClusterName}
		if !template.IsStatic() {
			data, err := plan.Data(its.cluster, its.controlPlane, its.infrastructure, r.settings.Cluster.Exclude)
			if err != nil {
				return nil, err
			}
			if target.Values, err = template.Render(data); err != nil {
				r.note("HelmChartProxy %s/%s: Cluster %s: %v; it is left out", proxy.Namespace, proxy.Name, client.ObjectKeyFromObject(its.cluster), err)
				continue
			}
		}
		targets[its.cluster.Namespace] = append(targets[its.cluster.Namespace], target)
	}
	return targets, nil
}

// selectedBy returns the imported Clusters that a HelmChartProxy selects.
func (r *renderer) selectedBy(proxy *addonsv1.HelmChartProxy) ([]imported, error) {
	clusters, err := bounds.AsSelector(&proxy.Spec.ClusterSelector)
	if err != nil {
		return nil, err
	}
	isIn := func(namespace string) bool { return namespace == proxy.Namespace }
	if proxy.Spec.NamespaceSelector != nil {
		namespaces, err := bounds.AsSelector(proxy.Spec.NamespaceSelector)
		if err != nil {
			return nil, err
		}
		isIn = func(namespace string) bool { return namespaces.Matches(labels.Set(r.in.namespaceLabels(namespace))) }
	}
	selected := slices.DeleteFunc(slices.Clone(r.imported), func(its imported) bool {
		return !isIn(its.cluster.Namespace) || !clusters.Matches(labels.Set(its.cluster.Labels))
	})
	return selected, nil
}

// shared returns the values for all Clusters.
func (r *renderer) shared(proxy *addonsv1.HelmChartProxy, template *plan.Template) (*plan.Shared, error) {
	values := plan.NewShared()
	for i, from := range proxy.Spec.ValuesFrom {
		data, found := r.referencedValues(proxy.Namespace, from)
		if !found {
			if !from.Optional {
				r.note("HelmChartProxy %s/%s: %s %q with the values is not among the manifests; they are missing below", proxy.Namespace, proxy.Name, from.Kind, from.Name)
			}
			continue
		}
		if err := values.Add(i, from, data); err != nil {
			return nil, err
		}
	}
	return values.With(proxy, template)
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
