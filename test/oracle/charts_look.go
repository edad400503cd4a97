package oracle

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const (
	carriedFor   = domain + "/helmchartproxy"
	carriedLabel = "helmchartproxy-name." + domain
	mirrorLabel  = "helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name"
	accessType   = domain + "/helm-access"
)

// Secretive is in every value that is to stay in Secrets.
const Secretive = "sesame"

// secretly are Secretive and the password of the repository, as they are and encoded.
var secretly = [][]byte{[]byte(Secretive), []byte("c2VzYW1l"), []byte("correct horse"), []byte("Y29ycmVjdCBob3JzZ")}

// LookCharts reads, of the namespaces that begin with a prefix, what is made of HelmChartProxies,
// and tells what comes of it.
func LookCharts(ctx context.Context, reader client.Reader, prefix string, known Charts) (Charts, error) {
	seen := newCharts()
	seen.Proxies, seen.Published, seen.Sources = known.Proxies, known.Published, known.Sources
	look := chartsLook{Charts: &seen, configMaps: map[Key]*corev1.ConfigMap{}, secrets: map[Key]*corev1.Secret{}, used: map[string]bool{}}
	var (
		proxies    addonsv1.HelmChartProxyList
		mirrors    addonsv1.HelmReleaseProxyList
		bundles    fleetv1.BundleList
		helmOps    fleetv1.HelmOpList
		configMaps corev1.ConfigMapList
		secrets    corev1.SecretList
	)
	for _, list := range []client.ObjectList{&proxies, &mirrors, &bundles, &helmOps, &configMaps, &secrets} {
		if err := reader.List(ctx, list); err != nil {
			return seen, err
		}
	}
	keep(prefix, look.configMaps, configMaps.Items)
	keep(prefix, look.secrets, secrets.Items)
	theirs := map[Key]*addonsv1.HelmChartProxy{}
	keep(prefix, theirs, proxies.Items)
	for key, proxy := range theirs {
		look.proxy(key, proxy)
	}
	inBundles, inHelmOps, told := map[Key]*fleetv1.Bundle{}, map[Key]*fleetv1.HelmOp{}, map[Key]*addonsv1.HelmReleaseProxy{}
	keep(prefix, inBundles, bundles.Items)
	keep(prefix, inHelmOps, helmOps.Items)
	keep(prefix, told, mirrors.Items)
	for key, bundle := range inBundles {
		if inHelmOps[key] == nil { // Else it is Fleet's, which has it of the HelmOp.
			look.bundle(bundle)
		}
	}
	for _, helmOp := range inHelmOps {
		look.helmOp(helmOp)
	}
	for key, mirror := range told {
		of := Key{Namespace: mirror.Spec.ClusterRef.Namespace, Name: mirror.Spec.ClusterRef.Name}
		proxy := mirroredBy(mirror)
		if seen.Mirrors[proxy] == nil {
			seen.Mirrors[proxy] = map[string]string{}
		}
		if _, twice := seen.Mirrors[proxy][of.String()]; twice {
			look.wrong("there is more than one HelmReleaseProxy of %s for %s", proxy, of)
		}
		available := meta.FindStatusCondition(mirror.Status.Conditions, addonsv1.ClusterAvailableCondition)
		if available == nil {
			available = &metav1.Condition{}
		}
		seen.Mirrors[proxy][of.String()] = available.Reason
		look.tells("HelmReleaseProxy "+key.String(), mirror)
	}
	look.leftOver()
	slices.Sort(seen.Wrong)
	return seen, nil
}

// chartsLook is what is seen of charts.
type chartsLook struct {
	*Charts
	configMaps map[Key]*corev1.ConfigMap
	secrets    map[Key]*corev1.Secret
	// used are the objects that carriers refer to.
	used map[string]bool
}

func (l *chartsLook) wrong(format string, a ...any) {
	l.Wrong = append(l.Wrong, fmt.Sprintf(format, a...))
}

// tells looks for secrets in what is none.
func (l *chartsLook) tells(what string, object any) {
	text, err := yaml.Marshal(object)
	if err != nil || slices.ContainsFunc(secretly, func(secret []byte) bool { return bytes.Contains(text, secret) }) {
		l.wrong("%s tells a secret (%v)", what, err)
	}
}

func (l *chartsLook) proxy(key Key, proxy *addonsv1.HelmChartProxy) {
	l.Observed[key] = proxy.Status.ObservedGeneration == proxy.Generation
	for _, cluster := range proxy.Status.MatchingClusters {
		l.Matching[key] = append(l.Matching[key], Key{Namespace: cluster.Namespace, Name: cluster.Name}.String())
	}
	slices.Sort(l.Matching[key])
	l.tells("the status of HelmChartProxy "+key.String(), proxy.Status)
}

// carried returns the HelmChartProxy that something says it was made for.
func carried(object client.Object) (Carriage, bool) {
	namespace, name, found := strings.Cut(object.GetAnnotations()[carriedFor], "/")
	_, labelled := object.GetLabels()[carriedLabel]
	return Carriage{Proxy: Key{Namespace: namespace, Name: name}, Namespace: object.GetNamespace()}, found && labelled
}

// mirroredBy returns the HelmChartProxy that a HelmReleaseProxy is of.
func mirroredBy(mirror client.Object) Key {
	proxy := Key{Namespace: mirror.GetNamespace(), Name: mirror.GetLabels()[mirrorLabel]}
	if owners := mirror.GetOwnerReferences(); len(owners) > 0 {
		proxy.Name = owners[0].Name // Of a long name, the label is shortened.
	}
	return proxy
}

// MadeFor returns the HelmChartProxy that something was made for.
func MadeFor(object client.Object) (proxy Key, found bool) {
	if of, is := carried(object); is {
		return of.Proxy, true
	}
	_, found = object.GetLabels()[mirrorLabel]
	return mirroredBy(object), found
}

func (l *chartsLook) bundle(bundle *fleetv1.Bundle) {
	of, is := carried(bundle)
	if !is {
		return
	}
	carrier := &Carrier{Kind: "Bundle"}
	for _, resource := range bundle.Spec.Resources {
		if resource.Name == "Chart.yaml" {
			var chart struct{ Name, Version string }
			if err := unpack(resource, &chart); err != nil {
				l.wrong("the chart in Bundle %s: %v", of, err)
			}
			carrier.Chart, carrier.Version = chart.Name, chart.Version
		}
	}
	l.carries(of, carrier, bundle, bundle.Spec)
}

func (l *chartsLook) helmOp(helmOp *fleetv1.HelmOp) {
	of, is := carried(helmOp)
	if !is {
		return
	}
	carrier := &Carrier{Kind: "HelmOp"}
	if helm := helmOp.Spec.Helm; helm != nil {
		carrier.Chart, carrier.Version = helm.Chart, helm.Version
	}
	if access := helmOp.Spec.HelmSecretName; access != "" {
		l.used["Secret "+Key{Namespace: helmOp.Namespace, Name: access}.String()] = true
		if secret := l.secrets[Key{Namespace: helmOp.Namespace, Name: access}]; secret == nil || string(secret.Type) != accessType || len(secret.Data["password"]) == 0 {
			l.wrong("HelmOp for %s has no credentials in Secret %s", of, access)
		}
	} else {
		l.wrong("HelmOp for %s has no credentials", of)
	}
	l.carries(of, carrier, helmOp, helmOp.Spec.BundleSpec)
}

// carries notes a carrier.
func (l *chartsLook) carries(of Carriage, carrier *Carrier, object client.Object, spec fleetv1.BundleSpec) {
	l.tells(carrier.Kind+" "+client.ObjectKeyFromObject(object).String(), spec)
	if spec.Helm == nil {
		spec.Helm = &fleetv1.HelmOptions{}
	}
	carrier.UID = object.GetUID()
	carrier.ReleaseName, carrier.ReleasedIn, carrier.Targets, carrier.Own = spec.Helm.ReleaseName, spec.DefaultNamespace, map[string]any{}, map[string]any{}
	proxy := l.Proxies[of.Proxy]
	if proxy == nil { // It is gone, and what it carried has yet to go.
		proxy = &addonsv1.HelmChartProxy{}
		proxy.Namespace, proxy.Name = of.Proxy.Namespace, of.Proxy.Name
	}
	unnamed := proxy.DeepCopy()
	unnamed.Spec.ReleaseName = ""
	if begin, isShortened := strings.CutSuffix(releaseName(unnamed), Shortened); isShortened && strings.HasPrefix(carrier.ReleaseName, begin) && len(carrier.ReleaseName) <= longestRelease {
		carrier.ReleaseName = begin + Shortened
	}
	carrier.CorrectDrift = spec.CorrectDrift != nil && spec.CorrectDrift.Enabled
	for _, target := range spec.Targets {
		if target.ClusterName == "" || target.ClusterSelector != nil || target.ClusterGroup != "" || target.ClusterGroupSelector != nil {
			l.wrong("%s for %s has a target that names no Fleet Cluster", carrier.Kind, of)
			continue
		}
		if target.Helm != nil && target.Helm.Version != "" && target.Helm.Version != carrier.Version || carrier.Kind == "HelmOp" && (target.Helm == nil || target.Helm.Version == "") {
			l.wrong("%s for %s has not the exact version for %s", carrier.Kind, of, target.ClusterName)
		}
		if _, twice := carrier.Targets[target.ClusterName]; twice {
			l.wrong("%s for %s has %s twice", carrier.Kind, of, target.ClusterName)
		}
		if target.Helm != nil && target.Helm.ReleaseName != "" {
			l.wrong("%s for %s has release %s on %s", carrier.Kind, of, target.Helm.ReleaseName, target.ClusterName)
		}
		carrier.Targets[target.ClusterName], carrier.Own[target.ClusterName] = l.values(of, spec, target)
	}
	of.Release = carrier.Release()
	if l.Carriers[of] != nil {
		l.wrong("there is more than one carrier for %s: %s %s", of, carrier.Kind, object.GetName())
	}
	l.Carriers[of] = carrier
}

// values returns what reaches a target: all layers, each over the one before, without the key
// that keeps Helm from taking empty values for those of the last release; and of that its own.
func (l *chartsLook) values(of Carriage, spec fleetv1.BundleSpec, target fleetv1.BundleTarget) (all, own any) {
	values := map[string]any{}
	carriedAlong := slices.Concat(spec.DownstreamResources, target.DownstreamResources)
	for _, helm := range []*fleetv1.HelmOptions{spec.Helm, target.Helm} {
		if helm == nil {
			continue
		}
		if helm.Values != nil {
			values = merged(values, helm.Values.Data)
		}
		for _, from := range helm.ValuesFrom {
			layer, kind, name := map[string]any{}, "", ""
			var text string
			if ref := from.ConfigMapKeyRef; ref != nil {
				kind, name = "ConfigMap", ref.Name
				if object := l.configMaps[Key{Namespace: of.Namespace, Name: name}]; object != nil {
					text = object.Data[ref.Key]
				}
			} else if ref := from.SecretKeyRef; ref != nil {
				kind, name = "Secret", ref.Name
				if object := l.secrets[Key{Namespace: of.Namespace, Name: name}]; object != nil {
					text = string(object.Data[ref.Key])
				}
			}
			l.used[kind+" "+Key{Namespace: of.Namespace, Name: name}.String()] = true
			if err := yaml.Unmarshal([]byte(text), &layer); text == "" || err != nil {
				l.wrong("%s has no values in %s %s (%v)", of, kind, name, err)
			}
			if !slices.Contains(carriedAlong, fleetv1.DownstreamResource{Kind: kind, Name: name}) {
				l.wrong("%s does not carry %s %s along", of, kind, name)
			}
			values = merged(values, layer)
			if helm == target.Helm {
				own = withoutGlobal(layer)
			}
		}
	}
	return withoutGlobal(values), own
}

func withoutGlobal(values map[string]any) map[string]any {
	if global, is := values["global"].(map[string]any); is && len(global) == 0 {
		delete(values, "global")
	}
	return plain(values)
}

// leftOver notes what was made for HelmChartProxies and nobody uses. Fleet does not run, so as long as there
// is a Bundle or HelmOp, it may still copy what that named before: this stays until Fleet has taken it over.
func (l *chartsLook) leftOver() {
	mayBeCopied := func(of Carriage) bool {
		for its := range l.Carriers {
			if its.Proxy == of.Proxy && its.Namespace == of.Namespace {
				return true
			}
		}
		return false
	}
	isLeft := func(kind string, object client.Object) bool {
		_, is := carried(object)
		return is && !l.used[kind+" "+client.ObjectKeyFromObject(object).String()]
	}
	for key, object := range l.configMaps {
		if of, _ := carried(object); (l.Proxies[of.Proxy] == nil || !mayBeCopied(of)) && isLeft("ConfigMap", object) {
			l.wrong("ConfigMap %s is left over", key)
		}
		l.tells("ConfigMap "+key.String(), object)
	}
	for key, object := range l.secrets {
		if of, _ := carried(object); (l.Proxies[of.Proxy] == nil || !mayBeCopied(of)) && isLeft("Secret", object) {
			l.Garbage = append(l.Garbage, "Secret "+key.String())
		}
	}
	slices.Sort(l.Garbage)
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
	return "HelmChartProxy " + of.Proxy.String() + " in " + of.Namespace
}

// viewCharts is what is to be seen of HelmChartProxies.
func viewCharts(s State, documents map[string]map[string]any) {
	for of, carrier := range s.Charts.Carriers {
		documents[of.String()+" as "+of.Release] = map[string]any{"carrier": carrier}
	}
	for proxy, clusters := range s.Charts.Mirrors {
		documents["HelmReleaseProxies of "+proxy.String()] = map[string]any{"for": clusters}
	}
	for key, proxy := range s.Charts.Proxies {
		view := map[string]any{"matching": s.Charts.Matching[key]}
		if !has(proxy.Annotations, pauseAnnotation) {
			view["observed"] = s.Charts.Observed[key]
		}
		documents["the status of HelmChartProxy "+key.String()] = view
	}
	if len(s.Charts.Wrong) > 0 {
		documents["what must not be there of charts"] = map[string]any{"wrong": s.Charts.Wrong}
	}
	if len(s.Charts.Garbage) > 0 && !s.GarbageStays {
		documents["what is left of charts"] = map[string]any{"garbage": s.Charts.Garbage}
	}
}
