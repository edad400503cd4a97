package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/repository"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	chartName    = "simple"
	chartsSecret = "repository"
)

// published are the versions of the chart in the repository, the newest last.
var published = []string{"1.0.0", "1.1.0", "2.0.0"}

// killCharts kills the program that carries out HelmChartProxies in the middle of that.
func killCharts(ctx context.Context, r *run) (time.Time, error) {
	return r.killLeader(ctx, charts, secondCharts)
}

// withCharts runs two replicas of the optional component helm, and a chart repository.
func (l *lab) withCharts(ctx context.Context) error {
	if l.repo != nil {
		return nil
	}
	l.repo = repository.New()
	for _, version := range published {
		if err := l.repo.Publish(chartName, version, map[string]string{"values.yaml": "{}"}); err != nil {
			return err
		}
	}
	if err := l.env.StartCharts(ctx); err != nil {
		return err
	}
	_, err := l.env.StartReplica(ctx, charts)
	if err != nil {
		return err
	}
	// The garbage collector hears of new kinds half a minute later, or when it starts.
	return l.env.Restart(ctx, controllers)
}

// prepareCharts makes what HelmChartProxies of a run refer to.
func (w *world) prepareCharts(ctx context.Context, l *lab) error {
	w.charts = l.repo
	w.state.Charts.Published[chartName] = published
	for _, namespace := range w.state.Namespaces {
		secret := &corev1.Secret{Data: l.repo.Secret()}
		secret.Namespace, secret.Name = namespace.Name, chartsSecret
		if err := l.admin.Create(ctx, secret); err != nil {
			return err
		}
	}
	return nil
}

// chartValues are templates that are rendered for every Cluster: what is kept, where one is not,
// would depend on when.
var chartValues = []string{
	"who: anybody", "who: {{ .Cluster.metadata.name }}", "replicas: {{ .ControlPlane.spec.replicas }}", "infra: {{ .InfraCluster.metadata.name }}",
}

// wishForChart writes a HelmChartProxy, or changes it.
func wishForChart(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	proxy := p.drawProxy()
	key := client.ObjectKeyFromObject(proxy)
	before := p.proxy(key)
	verb := "creating"
	if before != nil {
		verb = "changing"
	}
	if p.ask(ctx, request{what: verb + " HelmChartProxy " + proxy.Name, admission: true, mayClose: true, do: func(ctx context.Context, again bool) error {
		if before != nil {
			changed := before.DeepCopy()
			changed.Spec = *proxy.Spec.DeepCopy()
			err := p.author.Patch(ctx, changed, client.MergeFrom(before))
			if err == nil {
				proxy = changed
			}
			return err
		}
		made := proxy.DeepCopy()
		err := p.author.Create(ctx, made)
		if again && apierrors.IsAlreadyExists(err) {
			err = p.author.Get(ctx, key, made)
		}
		if err == nil {
			proxy = made
		}
		return err
	}}) {
		p.change(func(s *oracle.State) { s.Charts.Proxies[key] = proxy })
	}
}

// drawProxy draws a HelmChartProxy: one of a team, or of all.
func (p *person) drawProxy() *addonsv1.HelmChartProxy {
	proxy := &addonsv1.HelmChartProxy{}
	proxy.Name = []string{"web", "dns"}[p.rng.IntN(2)]
	proxy.Namespace = p.namespace(append([]string{platform}, teams...)[p.rng.IntN(3)])
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
	proxy.Spec.Version = append([]string{"", "1.x"}, published...)[p.rng.IntN(2+len(published))]
	proxy.Spec.ReleaseNamespace = []string{"default", "apps"}[p.rng.IntN(2)]
	proxy.Spec.ValuesTemplate = chartValues[p.rng.IntN(len(chartValues))]
	proxy.Spec.Download = []addonsv1.DownloadMode{"", addonsv1.DownloadAgent}[p.rng.IntN(2)]
	proxy.Spec.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: chartsSecret}, Key: "config.json"}
	proxy.Spec.TLSConfig = &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: chartsSecret}}
	return proxy
}

// proxy returns a HelmChartProxy as the API server answered last, or nil.
func (p *person) proxy(key oracle.Key) *addonsv1.HelmChartProxy {
	p.mu().Lock()
	defer p.mu().Unlock()
	return p.state.Charts.Proxies[key].DeepCopy()
}

// dropChart deletes one of the HelmChartProxies.
func dropChart(ctx context.Context, p *person, _ *clusterv1.Cluster) {
	key := client.ObjectKeyFromObject(p.drawProxy())
	if proxy := p.proxy(key); proxy != nil && p.delete(ctx, proxy) {
		p.change(func(s *oracle.State) { delete(s.Charts.Proxies, key) })
	}
}

// chartsProcesses are those that carry out HelmChartProxies, if they run.
func (l *lab) chartsProcesses() []string {
	if l.repo == nil {
		return nil
	}
	return []string{charts, secondCharts}
}
