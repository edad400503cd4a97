package random

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/repository"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	chartsProcess = "muster-charts"
	proxyCount    = 4
	// chartLabel is what HelmChartProxies select Clusters by, beside other labels.
	chartLabel = "chart"
	// chartsSecret has what the repository wants, and is in every namespace.
	chartsSecret = "repository"
	// chartValues is the ConfigMap, and the Secret, that values come from.
	chartValues = "values"
)

// repo is the chart repository; nil where the optional component helm does not run.
var repo *repository.Repository

// published are the charts in it, the newest version last.
var published = map[string][]string{"simple": {"1.0.0", "1.1.0", "2.0.0"}, "other": {"1.0.0"}}

// What people wish of HelmChartProxies. What Fleet does of them does not happen.
var chartsOperations = []operation{
	{name: "ChartUp", weight: 14, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Proxy, step.Namespace, step.Class, step.Chart = rng.IntN(proxyCount), rng.IntN(namespaceCount), noClass, drawChart(rng)
	}, do: chartUp, racy: always},
	{name: "CreateProxy", weight: 8, draw: func(rng *rand.Rand, step *Step) {
		step.Proxy, step.Namespace, step.Chart = rng.IntN(proxyCount), rng.IntN(namespaceCount), drawChart(rng)
	}, do: createProxy, racy: func(r *run, step Step) bool {
		return r.deleted[oracle.Key{Namespace: r.namespace(step.Namespace), Name: proxyName(step.Proxy)}] || r.wouldHold(step)
	}},
	{name: "EditProxy", weight: 16, draw: func(rng *rand.Rand, step *Step) {
		step.Proxy, step.Chart = rng.IntN(proxyCount), drawChart(rng)
		step.Key = oneOf(rng, "version", "version", "template", "template", "selector", "release", "download", "download", "sources", "chart")
	}, do: editProxy, racy: (*run).wouldHold},
	{name: "PauseProxy", weight: 2, draw: drawProxy, do: func(r *run, step Step) (bool, error) { return r.annotateProxy(step, "true") }, racy: always},
	{name: "UnpauseProxy", weight: 4, draw: drawProxy, do: func(r *run, step Step) (bool, error) { return r.annotateProxy(step, "") }},
	{name: "DeleteProxy", weight: 4, draw: drawProxy, do: deleteProxy},
	{name: "SelectForChart", weight: 8, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Key, step.Value = chartLabel, oneOf(rng, "yes", "yes", "no", "")
	}, do: labelCluster, racy: mayDeselect},
	{name: "ChartsStop", weight: 2, draw: nothing, do: func(r *run, _ Step) (bool, error) { return r.stopCharts(env.Stop) }},
	{name: "ChartsKill", weight: 4, draw: nothing, do: func(r *run, _ Step) (bool, error) { return r.stopCharts(env.Kill) }},
}

func drawProxy(rng *rand.Rand, step *Step) { step.Proxy = rng.IntN(proxyCount) }

// proxyName returns the name of a slot's HelmChartProxy. Two share it, in other namespaces.
func proxyName(slot int) string {
	return [proxyCount]string{"web", "web", "dotted.name", "long-" + strings.Repeat("x", 30) + "-5c3a2f8e-2b1d-4d0c-9a53-0f4f5d1f7a11"}[slot]
}

// drawChart draws what is to be installed, and where. Who plays it fills in the repository.
func drawChart(rng *rand.Rand) *addonsv1.HelmChartProxySpec {
	spec := &addonsv1.HelmChartProxySpec{
		ClusterSelector: oneOf(rng, metav1.LabelSelector{}, metav1.LabelSelector{}, metav1.LabelSelector{MatchLabels: map[string]string{chartLabel: "yes"}},
			metav1.LabelSelector{MatchLabels: map[string]string{chartLabel: "yes"}}, selectors[2], selectors[3]),
		ChartName:      oneOf(rng, "simple", "simple", "simple", "other"),
		Version:        oneOf(rng, "1.0.0", "1.0.0", "1.1.0", "1.x", "", "1.0.0", "1.x", "9.9.9"),
		ReleaseName:    oneOf(rng, "", "", "release"),
		ValuesTemplate: oneOf(rng, slices.Sorted(maps.Keys(oracle.Templates))...),
		Download:       oneOf(rng, "", addonsv1.DownloadManager, addonsv1.DownloadAgent),
	}
	spec.ReleaseNamespace = oneOf(rng, "", "apps")
	configMap, secret := addonsv1.ValuesReference{Kind: "ConfigMap", Name: chartValues}, addonsv1.ValuesReference{Kind: "Secret", Name: chartValues}
	secret.Optional = rng.IntN(2) == 0
	spec.ValuesFrom = oneOf(rng, nil, nil, []addonsv1.ValuesReference{configMap}, []addonsv1.ValuesReference{secret}, []addonsv1.ValuesReference{configMap, secret})
	if rng.IntN(4) == 0 {
		spec.NamespaceSelector = ptr.To(oneOf(rng, namespaceSelectors...))
	}
	if rng.IntN(4) == 0 {
		spec.CorrectDrift = ptr.To(true)
	}
	return spec
}

// withAccess fills in the repository.
func withAccess(drawn *addonsv1.HelmChartProxySpec) addonsv1.HelmChartProxySpec {
	spec := *drawn.DeepCopy()
	spec.RepoURL = repo.URL
	spec.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: chartsSecret}, Key: "config.json"}
	spec.TLSConfig = &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: chartsSecret}}
	return spec
}

// withCharts has the component helm run. It does in all runs.
func withCharts() error {
	if repo != nil {
		return nil
	}
	repo = repository.New()
	for _, chart := range slices.Sorted(maps.Keys(published)) {
		for _, version := range published[chart] {
			if err := repo.Publish(chart, version, map[string]string{"values.yaml": "{}"}); err != nil {
				return err
			}
		}
	}
	if err := env.StartCharts(ctx); err != nil {
		return err
	}
	// The garbage collector hears of new kinds half a minute later, or when it starts.
	return errors.Join(env.Restart(ctx, collectorProcess), chartsLead())
}

func chartsLease() *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = "muster-system", chartsProcess
	return lease
}

func chartsLead() error {
	return poll.Until(ctx, "the charts program to lead", time.Minute, func(context.Context) error {
		lease := chartsLease()
		if err := admin.Get(ctx, client.ObjectKeyFromObject(lease), lease); err != nil {
			return err
		}
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
			return errors.New("nobody holds the lease")
		}
		return nil
	})
}

// stopCharts stops the program, to be started later. That its Lease lapses is not waited for.
func (r *run) stopCharts(end func(context.Context, string) error) (bool, error) {
	if !r.chartsUp {
		return false, nil
	}
	r.chartsUp = false
	if err := end(ctx, chartsProcess); err != nil {
		return false, err
	}
	return true, client.IgnoreNotFound(admin.Delete(ctx, chartsLease()))
}

func (r *run) startCharts() error {
	if r.chartsUp || repo == nil {
		return nil
	}
	r.chartsUp = true
	if err := env.Start(ctx, chartsProcess); err != nil {
		return err
	}
	return chartsLead()
}

// prepareCharts makes what HelmChartProxies of the run's namespaces refer to.
func (r *run) prepareCharts() error {
	if repo == nil {
		return nil
	}
	r.state.Charts.Published = published
	for i := range namespaceCount {
		secret := &corev1.Secret{Data: repo.Secret()}
		secret.Namespace, secret.Name = r.namespace(i), chartsSecret
		if err := admin.Create(ctx, secret); err != nil {
			return err
		}
		for _, kind := range []string{"ConfigMap", "Secret"} {
			if err := r.makeSource(kind, secret.Namespace, "1"); err != nil {
				return err
			}
		}
	}
	return nil
}

// proxy returns the HelmChartProxy in a step's slot as it was seen last, or nil.
func (r *run) proxy(step Step) *addonsv1.HelmChartProxy {
	return r.state.Charts.Proxies[r.proxies[step.Proxy]].DeepCopy()
}

// carriedBy is the step, with the first slot from its own on that has a HelmChartProxy, if there is
// one: there are few at a time.
func (r *run) carriedBy(step Step) Step {
	for i := range proxyCount {
		other := step
		other.Proxy = (step.Proxy + i) % proxyCount
		if r.proxy(other) != nil {
			return other
		}
	}
	return step
}

// chartUp does all that it takes for a chart to reach a Cluster, as far as nothing is in the way.
func chartUp(r *run, step Step) (bool, error) {
	// The label comes first: a Fleet Cluster may be left as it was made.
	label := Step{Cluster: step.Cluster, Key: chartLabel, Value: "yes"}
	if r.cluster(step) == nil {
		step.Key, step.Value = label.Key, label.Value
		if _, err := createCluster(r, step); err != nil {
			return false, err
		}
	} else if _, err := labelCluster(r, label); err != nil {
		return false, err
	}
	if err := r.between(); err != nil {
		return true, err
	}
	if _, err := initialize(r, Step{Cluster: step.Cluster}); err != nil {
		return false, err
	}
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	for i := range namespaceCount {
		if r.namespace(i) == cluster.Namespace {
			step.Namespace = i
		}
	}
	_, err := createProxy(r, step)
	return true, err
}

func createProxy(r *run, step Step) (bool, error) {
	key := oracle.Key{Namespace: r.namespace(step.Namespace), Name: proxyName(step.Proxy)}
	if r.proxy(step) != nil || r.state.Charts.Proxies[key] != nil {
		return false, nil
	}
	proxy := &addonsv1.HelmChartProxy{Spec: withAccess(step.Chart)}
	proxy.Namespace, proxy.Name = key.Namespace, key.Name
	if err := admin.Create(ctx, proxy); err != nil {
		return false, err
	}
	r.proxies[step.Proxy], r.state.Charts.Proxies[key] = key, proxy
	return true, nil
}

// edited returns a HelmChartProxy with some of what a step says.
func edited(proxy *addonsv1.HelmChartProxy, step Step) *addonsv1.HelmChartProxy {
	proxy = proxy.DeepCopy()
	spec, to := &proxy.Spec, step.Chart
	switch step.Key {
	case "version":
		spec.Version = to.Version
	case "template":
		spec.ValuesTemplate = to.ValuesTemplate
	case "selector":
		spec.ClusterSelector, spec.NamespaceSelector = to.ClusterSelector, to.NamespaceSelector
	case "release":
		spec.ReleaseName, spec.ReleaseNamespace = to.ReleaseName, to.ReleaseNamespace
		if spec.ReleaseNamespace == "" {
			spec.ReleaseNamespace = "default" // As the webhook has it.
		}
	case "download":
		spec.Download, spec.CorrectDrift = to.Download, to.CorrectDrift
	case "sources":
		spec.ValuesFrom = to.ValuesFrom
	case "chart":
		spec.ChartName, spec.Version = to.ChartName, "1.0.0"
	}
	return proxy
}

func editProxy(r *run, step Step) (bool, error) {
	before := r.proxy(r.carriedBy(step))
	if before == nil {
		return false, nil
	}
	proxy := edited(before, step)
	if err := admin.Patch(ctx, proxy, client.MergeFrom(before)); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.state.Charts.Proxies[client.ObjectKeyFromObject(proxy)] = proxy
	return true, nil
}

// wouldHold: what a step makes of a HelmChartProxy leaves something as it was.
func (r *run) wouldHold(step Step) bool {
	after := r.state.Copy()
	proxy := r.proxy(step)
	if step.Op == "EditProxy" {
		if proxy = r.proxy(r.carriedBy(step)); proxy == nil {
			return false
		}
	}
	if proxy == nil {
		proxy = &addonsv1.HelmChartProxy{Spec: *step.Chart.DeepCopy()}
		proxy.Namespace, proxy.Name = r.namespace(step.Namespace), proxyName(step.Proxy)
	} else {
		proxy = edited(proxy, step)
	}
	after.Charts.Proxies[client.ObjectKeyFromObject(proxy)] = proxy
	return oracle.ChartsHold(after)
}

// retainsIn: something of a HelmChartProxy in a namespace stays as it was.
func (r *run) retainsIn(namespace string) bool {
	state := r.state.Copy()
	maps.DeleteFunc(state.Charts.Proxies, func(key client.ObjectKey, _ *addonsv1.HelmChartProxy) bool { return key.Namespace != namespace })
	return oracle.ChartsHold(state)
}

func (r *run) annotateProxy(step Step, value string) (bool, error) {
	proxy := r.proxy(r.carriedBy(step))
	if proxy == nil {
		return false, nil
	}
	if err := patch(proxy, metadata("annotations", "cluster.x-k8s.io/paused", value)); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.state.Charts.Proxies[client.ObjectKeyFromObject(proxy)] = proxy
	return true, nil
}

func deleteProxy(r *run, step Step) (bool, error) {
	proxy := r.proxy(r.carriedBy(step))
	if proxy == nil {
		return false, nil
	}
	if err := admin.Delete(ctx, proxy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	key := client.ObjectKeyFromObject(proxy)
	delete(r.state.Charts.Proxies, key)
	r.deleted[key] = true
	return true, r.waitGone(proxy)
}

// lookAtCharts reads what is made of HelmChartProxies.
func (r *run) lookAtCharts() (oracle.Charts, error) {
	if repo == nil {
		return r.state.Charts, nil
	}
	return oracle.LookCharts(ctx, admin, r.id+"-", r.state.Charts)
}

// sweepProxies deletes all HelmChartProxies.
func (r *run) sweepProxies() error {
	for _, proxy := range r.state.Charts.Proxies {
		if err := r.forceDelete(proxy); err != nil {
			return err
		}
	}
	clear(r.state.Charts.Proxies)
	return nil
}
