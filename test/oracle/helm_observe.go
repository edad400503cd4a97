package oracle

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const (
	carriedFor        = domain + "/helmchartproxy"
	carriedLabel      = "helmchartproxy-name." + domain
	releaseProxyLabel = "helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name"
	accessType        = domain + "/helm-access"
)

// Secretive is part of every value that must stay in Secrets.
const Secretive = "sesame"

// secretly lists Secretive and the password of the repository, plain and encoded.
var secretly = [][]byte{[]byte(Secretive), []byte("c2VzYW1l"), []byte("correct horse"), []byte("Y29ycmVjdCBob3JzZ")}

// ObserveHelm reads what was made of HelmChartProxies in the namespaces that begin with a prefix, and returns its
// effect.
func ObserveHelm(ctx context.Context, reader client.Reader, prefix string, known Helm) (Helm, error) {
	seen := newHelm()
	seen.Proxies, seen.Published, seen.Sources, seen.Policies = known.Proxies, known.Published, known.Sources, known.Policies
	seen.Down, seen.Asked, seen.Installed = known.Down, known.Asked, known.Installed
	observing := helmObservation{Helm: &seen, observed: map[Source]sourceObservation{}, read: map[Source]bool{}}
	proxies, releaseProxies := map[Key]*addonsv1.HelmChartProxy{}, map[Key]*addonsv1.HelmReleaseProxy{}
	bundles, deployments := map[Key]*fleetv1.Bundle{}, map[Key]*fleetv1.BundleDeployment{}
	configMaps, secrets := map[Key]*corev1.ConfigMap{}, map[Key]*corev1.Secret{}
	if err := errors.Join(
		list(ctx, reader, prefix, &addonsv1.HelmChartProxyList{}, proxies),
		list(ctx, reader, prefix, &addonsv1.HelmReleaseProxyList{}, releaseProxies),
		list(ctx, reader, prefix, &fleetv1.BundleList{}, bundles),
		list(ctx, reader, "cluster-", &fleetv1.BundleDeploymentList{}, deployments), // In Fleet's namespaces.
		list(ctx, reader, prefix, &corev1.ConfigMapList{}, configMaps),
		list(ctx, reader, prefix, &corev1.SecretList{}, secrets),
	); err != nil {
		return seen, err
	}
	for key, object := range configMaps {
		observing.observed[Source{"ConfigMap", key}] = sourceObservation{object, object.Data}
	}
	for key, object := range secrets {
		data := map[string]string{}
		for name, value := range object.Data {
			data[name] = string(value)
		}
		observing.observed[Source{"Secret", key}] = sourceObservation{object, data}
	}
	for key, proxy := range proxies {
		observing.proxy(key, proxy)
	}
	for _, bundle := range bundles {
		observing.bundle(bundle)
	}
	for key, releaseProxy := range releaseProxies {
		observing.releaseProxy(key, releaseProxy)
	}
	for _, deployment := range deployments {
		observing.deployment(deployment, bundles)
	}
	observing.leftOver()
	slices.Sort(seen.Wrong)
	return seen, nil
}

// helmObservation is what ObserveHelm has seen so far.
type helmObservation struct {
	*Helm
	// observed holds the ConfigMaps and Secrets; read marks the ones that agents read.
	observed map[Source]sourceObservation
	read     map[Source]bool
}

type sourceObservation struct {
	object client.Object
	data   map[string]string
}

func (l *helmObservation) wrong(format string, a ...any) {
	l.Wrong = append(l.Wrong, fmt.Sprintf(format, a...))
}

// addTo reports secrets in an object that must not contain any.
func (l *helmObservation) addTo(what string, object any) {
	text, err := yaml.Marshal(object)
	if err != nil || slices.ContainsFunc(secretly, func(secret []byte) bool { return bytes.Contains(text, secret) }) {
		l.wrong("%s tells a secret (%v)", what, err)
	}
}

func (l *helmObservation) proxy(key Key, proxy *addonsv1.HelmChartProxy) {
	l.Observed[key] = proxy.Status.ObservedGeneration == proxy.Generation
	for _, cluster := range proxy.Status.MatchingClusters {
		l.Matching[key] = append(l.Matching[key], Key{Namespace: cluster.Namespace, Name: cluster.Name}.String())
	}
	slices.Sort(l.Matching[key])
	l.addTo("the status of HelmChartProxy "+key.String(), proxy.Status)
}

func (l *helmObservation) releaseProxy(key Key, releaseProxy *addonsv1.HelmReleaseProxy) {
	of := Key{Namespace: releaseProxy.Spec.ClusterRef.Namespace, Name: releaseProxy.Spec.ClusterRef.Name}.String()
	proxy := proxyOf(releaseProxy)
	if l.ReleaseProxies[proxy] == nil {
		l.ReleaseProxies[proxy] = map[string]string{}
	}
	if _, twice := l.ReleaseProxies[proxy][of]; twice {
		l.wrong("there is more than one HelmReleaseProxy of %s for %s", proxy, of)
	}
	l.ReleaseProxies[proxy][of] = ""
	if available := meta.FindStatusCondition(releaseProxy.Status.Conditions, addonsv1.ClusterAvailableCondition); available != nil {
		l.ReleaseProxies[proxy][of] = available.Reason
	}
	l.addTo("HelmReleaseProxy "+key.String(), releaseProxy)
}

// carried returns the HelmChartProxy that an object names as the one it was made for.
func carried(object client.Object) (Carriage, bool) {
	namespace, name, found := strings.Cut(object.GetAnnotations()[carriedFor], "/")
	_, labelled := object.GetLabels()[carriedLabel]
	return Carriage{Proxy: Key{Namespace: namespace, Name: name}, Namespace: object.GetNamespace()}, found && labelled
}

// proxyOf returns the HelmChartProxy of a HelmReleaseProxy.
func proxyOf(releaseProxy client.Object) Key {
	proxy := Key{Namespace: releaseProxy.GetNamespace(), Name: releaseProxy.GetLabels()[releaseProxyLabel]}
	if owners := releaseProxy.GetOwnerReferences(); len(owners) > 0 {
		proxy.Name = owners[0].Name // The label shortens long names.
	}
	return proxy
}

// MadeFor returns the HelmChartProxy that an object was made for.
func MadeFor(object client.Object) (proxy Key, found bool) {
	if of, is := carried(object); is {
		return of.Proxy, true
	}
	_, found = object.GetLabels()[releaseProxyLabel]
	return proxyOf(object), found
}

// bundle records a carrier.
func (l *helmObservation) bundle(bundle *fleetv1.Bundle) {
	of, is := carried(bundle)
	if !is {
		return
	}
	spec := bundle.Spec
	l.addTo("Bundle "+client.ObjectKeyFromObject(bundle).String(), spec)
	if spec.Helm == nil {
		spec.Helm = &fleetv1.HelmOptions{}
	}
	carrier := &Carrier{
		Download: "Manager", ReleaseName: spec.Helm.ReleaseName, ReleasedIn: spec.DefaultNamespace, Targets: map[string]any{}, UID: bundle.UID,
		CorrectDrift: spec.CorrectDrift != nil && spec.CorrectDrift.Enabled, Once: spec.KeepResources, Paused: spec.Paused, ServiceAccount: spec.ServiceAccount,
	}
	var err error
	if carrier.Chart, carrier.Version, err = ChartIn(spec.Resources); err != nil {
		l.wrong("the chart in Bundle %s: %v", of, err)
	}
	if options := spec.HelmOpOptions; options != nil {
		carrier.Download, carrier.Chart, carrier.Version = "Agent", spec.Helm.Chart, spec.Helm.Version
		access := Source{"Secret", Key{Namespace: bundle.Namespace, Name: options.SecretName}}
		l.Used[access] = true
		if secret, _ := l.observed[access].object.(*corev1.Secret); secret == nil || string(secret.Type) != accessType || len(secret.Data["password"]) == 0 {
			l.wrong("the Bundle for %s has no credentials in %s", of, access)
		}
		if len(spec.Resources) > 0 {
			l.wrong("the Bundle for %s holds a chart that agents download", of)
		}
	}
	begin, isShortened := strings.CutSuffix(nameOfRelease(of.Proxy.Name), Shortened)
	if isShortened && strings.HasPrefix(carrier.ReleaseName, begin) && len(carrier.ReleaseName) <= longestRelease {
		carrier.ReleaseName = begin + Shortened
	}
	for _, target := range spec.Targets {
		helm := ptr.Deref(target.Helm, fleetv1.HelmOptions{})
		_, twice := carrier.Targets[target.ClusterName]
		for what, is := range map[string]bool{
			"names no Fleet Cluster": target.ClusterName == "" || target.ClusterSelector != nil || target.ClusterGroup != "" || target.ClusterGroupSelector != nil,
			"is there twice":         twice,
			"has its own release":    helm.ReleaseName != "" || helm.Version != "" || helm.Chart != "",
		} {
			if is {
				l.wrong("target %q in the Bundle for %s %s", target.ClusterName, of, what)
			}
		}
		carrier.Targets[target.ClusterName] = l.values(of, spec, target)
	}
	if len(carrier.Targets) == 0 && l.Proxies[of.Proxy] != nil {
		return // Nothing is deployed.
	}
	of.Release = carrier.Release()
	if carrier.Once && len(spec.Targets) > 0 {
		of.Only = spec.Targets[0].ClusterName
		if len(spec.Targets) > 1 {
			l.wrong("the Bundle for %s installs on several Clusters once", of)
		}
	}
	if l.Carriers[of] != nil {
		l.wrong("there is more than one carrier for %s: Bundle %s", of, bundle.Name)
	}
	l.Carriers[of] = carrier
}

// values returns the values that reach a target: each layer over the one before, without the key that keeps Helm
// from replacing empty values by those of the last release.
func (l *helmObservation) values(of Carriage, spec fleetv1.BundleSpec, target fleetv1.BundleTarget) any {
	values := map[string]any{}
	for _, helm := range []*fleetv1.HelmOptions{spec.Helm, target.Helm} {
		if helm == nil {
			continue
		}
		if helm.Values != nil {
			values = merged(values, helm.Values.Data)
		}
		for _, from := range helm.ValuesFrom {
			source, key := read(of.Namespace, from)
			layer := map[string]any{}
			l.Used[source] = true
			text := l.observed[source].data[key]
			if err := yaml.Unmarshal([]byte(text), &layer); text == "" || err != nil {
				l.wrong("%s has no values in %s (%v)", of, source, err)
			}
			resource := fleetv1.DownstreamResource{Kind: source.Kind, Name: source.Name}
			if !slices.Contains(slices.Concat(spec.DownstreamResources, target.DownstreamResources), resource) {
				l.wrong("%s does not carry %s along", of, source)
			}
			values = merged(values, layer)
		}
	}
	return withoutGlobal(values)
}

// read returns the object that values come from, and the key.
func read(namespace string, from fleetv1.ValuesFrom) (Source, string) {
	if ref := from.SecretKeyRef; ref != nil {
		return Source{"Secret", Key{Namespace: namespace, Name: ref.Name}}, ref.Key
	}
	return Source{"ConfigMap", Key{Namespace: namespace, Name: from.ConfigMapKeyRef.Name}}, from.ConfigMapKeyRef.Key
}

// deployment checks that the object that an agent reads still exists. Until a rollout reaches the Cluster, it may
// be older than the one that the target names. A change of the object would reach the Cluster at once.
func (l *helmObservation) deployment(deployment *fleetv1.BundleDeployment, bundles map[Key]*fleetv1.Bundle) {
	its := deployment.Labels
	bundle := bundles[Key{Namespace: its[fleetv1.BundleNamespaceLabel], Name: its[fleetv1.BundleLabel]}]
	if bundle == nil || deployment.Spec.Options.Helm == nil || !IsTarget(bundle, its[fleetv1.ClusterLabel]) {
		return // It is withdrawn.
	}
	for _, from := range deployment.Spec.Options.Helm.ValuesFrom {
		source, key := read(bundle.Namespace, from)
		if l.read[source] = true; l.observed[source].data[key] == "" {
			l.wrong("%s has no key %s any more, which Fleet Cluster %s reads", source, key, its[fleetv1.ClusterLabel])
		}
	}
}

// IsTarget reports whether a Fleet Cluster is a target of a Bundle.
func IsTarget(bundle *fleetv1.Bundle, fleetCluster string) bool {
	return slices.ContainsFunc(bundle.Spec.Targets, func(its fleetv1.BundleTarget) bool { return its.ClusterName == fleetCluster })
}

func withoutGlobal(values map[string]any) map[string]any {
	if global, is := values["global"].(map[string]any); is && len(global) == 0 {
		delete(values, "global")
	}
	return plain(values)
}

// leftOver records ConfigMaps and Secrets of HelmChartProxies that no carrier refers to. Fleet does not run here:
// while a Bundle exists, Fleet may still have to copy the objects that the Bundle named before. If the
// HelmChartProxy is gone, these are the values of Clusters that are moved.
func (l *helmObservation) leftOver() {
	mayBeCopied := func(of Carriage, source Source) bool {
		_, its, _ := strings.Cut(source.Name, ".for.")
		fleetCluster, _, _ := strings.Cut(its, ".") // Values that alternate between two objects have ".1" in one.
		for its, carrier := range l.Carriers {
			if _, isTarget := carrier.Targets[fleetCluster]; its.Proxy == of.Proxy && its.Namespace == of.Namespace && (isTarget || l.Proxies[of.Proxy] != nil) {
				return true
			}
		}
		return false
	}
	for source, retained := range l.observed {
		of, is := carried(retained.object)
		isLeft := is && !l.Used[source] && !l.read[source] && !mayBeCopied(of, source)
		switch {
		case source.Kind == "Secret" && isLeft:
			l.Garbage = append(l.Garbage, source.String())
		case source.Kind == "ConfigMap":
			if isLeft {
				l.LeftOver = append(l.LeftOver, source.String())
			}
			l.addTo(source.String(), retained.object)
		}
	}
	slices.Sort(l.Garbage)
	slices.Sort(l.LeftOver)
}

func (s Source) String() string { return s.Kind + " " + s.Key.String() }

// ChartIn returns the name and the version of the chart in the files of a Bundle; empty if there is none.
func ChartIn(files []fleetv1.BundleResource) (name, version string, err error) {
	var chart struct{ Name, Version string }
	for _, file := range files {
		if file.Name == "Chart.yaml" {
			err = unpack(file, &chart)
		}
	}
	return chart.Name, chart.Version, err
}

func unpack(resource fleetv1.BundleResource, into any) error {
	content := []byte(resource.Content)
	if resource.Encoding == "base64+gz" {
		packed, err := base64.StdEncoding.DecodeString(resource.Content)
		if err != nil {
			return err
		}
		unzipped, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return err
		}
		if content, err = io.ReadAll(unzipped); err != nil {
			return err
		}
	}
	return yaml.Unmarshal(content, into)
}

func (of Carriage) String() string {
	return strings.TrimSuffix("HelmChartProxy "+of.Proxy.String()+" in "+of.Namespace+" for "+of.Only, " for ")
}

// viewHelm describes what was made of HelmChartProxies.
func viewHelm(s State, documents map[string]map[string]any) {
	for of, carrier := range s.Helm.Carriers {
		documents[of.String()+" as "+of.Release] = map[string]any{"carrier": carrier}
	}
	for proxy, clusters := range s.Helm.ReleaseProxies {
		documents["HelmReleaseProxies of "+proxy.String()] = map[string]any{"for": clusters}
	}
	for key, proxy := range s.Helm.Proxies {
		view := map[string]any{"matching": s.Helm.Matching[key]}
		if !has(proxy.Annotations, pauseAnnotation) {
			view["observed"] = s.Helm.Observed[key]
		}
		documents["the status of HelmChartProxy "+key.String()] = view
	}
	if len(s.Helm.Wrong) > 0 {
		documents["what must not be there of charts"] = map[string]any{"wrong": s.Helm.Wrong}
	}
	if s.settings().unknown { // The program deletes no values, either.
		return
	}
	if len(s.Helm.Garbage) > 0 && !s.GarbageRemains {
		documents["what is left of charts"] = map[string]any{"garbage": s.Helm.Garbage}
	}
	if len(s.Helm.LeftOver) > 0 {
		documents["what is left over of charts"] = map[string]any{"values": s.Helm.LeftOver}
	}
}
