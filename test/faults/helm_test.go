package faults

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	chartName  = "simple"
	helmSecret = "repository"
)

// published are the versions of the chart in the repository, the newest last.
var published = []string{"1.0.0", "1.1.0", "2.0.0"}

// withHelm runs two replicas of the optional component helm, and a chart repository.
func (l *lab) withHelm(ctx context.Context) error {
	if l.repo != nil {
		return nil
	}
	l.repo = repository.New()
	for _, version := range published {
		if err := l.repo.Publish(chartName, version, map[string]string{"values.yaml": "{}"}); err != nil {
			return err
		}
	}
	if err := l.env.StartHelm(ctx); err != nil {
		return err
	}
	_, err := l.env.StartReplica(ctx, helm)
	if err != nil {
		return err
	}
	// The garbage collector discovers new kinds half a minute later, or when it starts.
	return l.env.Restart(ctx, controllers)
}

// prepareHelm makes the objects that HelmChartProxies of a run refer to.
func (w *world) prepareHelm(ctx context.Context, l *lab) error {
	w.charts = l.repo
	w.state.Helm.Published[chartName] = published
	for _, namespace := range w.state.Namespaces {
		secret := &corev1.Secret{Data: l.repo.Secret()}
		secret.Namespace, secret.Name = namespace.Name, helmSecret
		if err := l.admin.Create(ctx, secret); err != nil {
			return err
		}
	}
	return nil
}

// chartValues are templates that render for every Cluster: where one did not, the retained state would depend on
// timing.
var chartValues = []string{
	"who: anybody", "who: {{ .Cluster.metadata.name }}", "replicas: {{ .ControlPlane.spec.replicas }}", "infra: {{ .InfraCluster.metadata.name }}",
}

// wishForChart creates a HelmChartProxy, or changes it.
func wishForChart(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	proxy := p.drawProxy()
	key := client.ObjectKeyFromObject(proxy)
	isDone := false
	if before := p.proxy(key); before == nil {
		isDone = p.make(ctx, proxy, true)
	} else {
		changed := before.DeepCopy()
		changed.Spec = proxy.Spec
		isDone = p.ask(ctx, request{what: "changing HelmChartProxy " + proxy.Name, mayClose: true, do: func(ctx context.Context, _ bool) error {
			proxy = changed.DeepCopy()
			return p.author.Patch(ctx, proxy, client.MergeFrom(before))
		}})
	}
	if isDone {
		p.change(func(s *oracle.State) { s.Helm.Proxies[key] = proxy })
	}
}

// drawProxy draws a HelmChartProxy, of one team or of all.
func (p *person) drawProxy() *addonsv1.HelmChartProxy {
	proxy := &addonsv1.HelmChartProxy{}
	proxy.Name = one(p, "web", "dns")
	proxy.Namespace = p.namespace(one(p, append(teams, platform)...))
	if proxy.Namespace == p.namespace(platform) {
		var all []string
		for _, team := range teams {
			all = append(all, p.namespace(team))
		}
		proxy.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: all},
		}}
	}
	if p.rng.IntN(2) == 0 {
		proxy.Spec.ClusterSelector.MatchLabels = map[string]string{"env": "prod"}
	}
	proxy.Spec.RepoURL, proxy.Spec.ChartName = p.charts.URL, chartName
	proxy.Spec.Version = one(p, append([]string{"", "1.x"}, published...)...)
	proxy.Spec.ReleaseNamespace = one(p, "default", "apps")
	proxy.Spec.ValuesTemplate = one(p, chartValues...)
	proxy.Spec.Download = one(p, "", addonsv1.DownloadAgent)
	proxy.Spec.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: helmSecret}, Key: "config.json"}
	proxy.Spec.TLSConfig = &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: helmSecret}}
	return proxy
}

// proxy returns a HelmChartProxy from the API server's last answer, or nil.
func (p *person) proxy(key oracle.Key) (proxy *addonsv1.HelmChartProxy) {
	p.change(func(s *oracle.State) { proxy = s.Helm.Proxies[key].DeepCopy() })
	return proxy
}

// dropChart deletes one of the HelmChartProxies.
func dropChart(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	key := client.ObjectKeyFromObject(p.drawProxy())
	if proxy := p.proxy(key); proxy != nil && p.delete(ctx, proxy) {
		p.change(func(s *oracle.State) { delete(s.Helm.Proxies, key) })
	}
}
