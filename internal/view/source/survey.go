package source

import (
	"context"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/trace"
)

// subject is a Cluster for which Survey explains the Bundle.
type subject struct {
	key    types.NamespacedName
	capi   *view.CAPICluster
	judged *view.Node
}

// Survey explains a Bundle on every Cluster of a scope. It searches for a Bundle without a namespace in the
// given one, and then in all others.
func Survey(ctx context.Context, reader client.Reader, scope Scope, namespace, bundle string) (*trace.Survey, error) {
	t := newTracing(reader)
	err := t.bundle(ctx, bundle, namespace)
	if err == nil && t.in.Found == nil && t.in.Unread[view.Bundle] == "" {
		err = fmt.Errorf("there is no Bundle %s", t.in.Bundle)
	}
	if err != nil {
		if proxy, missing := t.findProxy(ctx, strings.TrimPrefix(bundle, ProxyPrefix), namespace); missing == nil {
			return nil, fmt.Errorf("HelmChartProxy %s/%s has a Bundle for each namespace: name a Cluster, too; kubectl get helmreleaseproxies -n %[1]s shows all", proxy.Namespace, proxy.Name)
		}
		return nil, err
	}
	objects, err := Read(ctx, reader, scope)
	if err != nil {
		return nil, err
	}
	for kind, why := range objects.Unread {
		t.in.Unread[kind] = why
	}
	deployments := map[string][]*fleetv1.BundleDeployment{}
	for _, read := range []func(context.Context) error{
		t.namespaces, t.mappings,
		func(ctx context.Context) error { return t.groupsIn(ctx, scope.Namespace) },
		func(ctx context.Context) error { return t.allDeployments(ctx, deployments) },
		t.policies,
	} {
		if err := read(ctx); err != nil {
			return nil, err
		}
	}
	result := &trace.Survey{Bundle: t.in.Bundle.String(), Clusters: []trace.Summary{}}
	explain := func(of subject, fleet *fleetv1.Cluster) {
		in := *t.in
		in.Cluster, in.CAPI, in.Judged, in.Fleet = of.key, of.capi, of.judged, fleet
		if fleet != nil {
			in.Deployments = deployments[fleet.Status.Namespace]
		}
		result.Add(trace.Explain(&in))
	}
	inFleet, others := subjects(objects)
	_, err = pager.Each(ctx, reader, &fleetv1.ClusterList{}, func(list *fleetv1.ClusterList) {
		for i := range list.Items {
			if of, found := inFleet[client.ObjectKeyFromObject(&list.Items[i])]; found {
				explain(of, &list.Items[i])
			}
		}
	}, client.InNamespace(scope.Namespace))
	if err := t.note(view.FleetCluster, "Fleet", err); err != nil {
		return nil, err
	}
	for _, of := range others {
		explain(of, nil)
	}
	slices.SortFunc(result.Clusters, func(a, b trace.Summary) int { return strings.Compare(a.Cluster, b.Cluster) })
	return result, nil
}

// subjects returns all Clusters. Those in Fleet have the key of their Fleet Cluster.
func subjects(objects *view.Objects) (inFleet map[types.NamespacedName]subject, others []subject) {
	inFleet = map[types.NamespacedName]subject{}
	view.Build(objects).Walk(func(node, _ *view.Node) {
		if node.Kind != view.Cluster && node.Kind != view.FleetCluster {
			return
		}
		of := subject{key: types.NamespacedName{Namespace: node.Namespace, Name: node.Name}, judged: node}
		fleet := of.key
		if node.Kind == view.Cluster {
			of.capi = objects.Clusters[of.key]
			fleet.Name = node.Fact(view.FactFleet)
		}
		if objects.FleetClusters[fleet] != nil {
			inFleet[fleet] = of
		} else {
			others = append(others, of)
		}
	})
	return inFleet, others
}

// allDeployments reads the BundleDeployments of the Bundle, and of others of its name, by their namespace.
func (t *tracing) allDeployments(ctx context.Context, into map[string][]*fleetv1.BundleDeployment) error {
	return t.deploymentsBy(ctx, func(deployment *fleetv1.BundleDeployment) {
		into[deployment.Namespace] = append(into[deployment.Namespace], deployment)
	}, client.MatchingLabels{fleetv1.BundleLabel: t.in.Bundle.Name})
}
