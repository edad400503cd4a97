package random

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	proxyCount = 4
	// chartLabel is the label by which HelmChartProxies select Clusters, next to other labels.
	chartLabel = "chart"
	// helmSecret is a Secret in every namespace with the repository's credentials.
	helmSecret = "repository"
	// chartValues is the name of the ConfigMap, and of the Secret, with values.
	chartValues = "values"
)

// repo is the chart repository.
var repo *repository.Repository

// published are the charts in the repository, with the newest version last.
var published = map[string][]string{"simple": {"1.0.0", "1.1.0", "2.0.0"}, "other": {"1.0.0"}}

// helmOperations are users' changes to HelmChartProxies. releaseOperations play Fleet's part.
var helmOperations = []operation{
	{name: "ChartUp", weight: 14, draw: func(rng *rand.Rand, step *Step) {
		draws(drawSlot, drawProxy, drawNamespace, drawChart)(rng, step)
		step.Class = noClass
	}, do: chartUp, racy: always},
	{name: "CreateProxy", weight: 8, draw: draws(drawProxy, drawNamespace, drawChart), do: createProxy, racy: func(r *run, step Step) bool {
		return r.deleted[oracle.Key{Namespace: r.namespace(step.Namespace), Name: proxyName(step.Proxy)}] || r.wouldHold(step)
	}},
	{name: "EditProxy", weight: 16, draw: draws(drawProxy, drawChart, drawKey(
		"version", "version", "template", "template", "selector", "release", "download", "download", "sources", "chart", "account", "account",
	)), do: editProxy, racy: (*run).wouldHold},
	{name: "Contend", weight: 6, draw: draws(drawProxy, drawChart), do: contend, racy: always},
	{name: "PauseProxy", weight: 2, draw: drawProxy, do: func(r *run, step Step) (bool, error) { return r.annotateProxy(step, "true") }, racy: always},
	{name: "UnpauseProxy", weight: 4, draw: drawProxy, do: func(r *run, step Step) (bool, error) { return r.annotateProxy(step, "") }},
	{name: "DeleteProxy", weight: 4, draw: drawProxy, do: deleteProxy},
	{name: "SelectForChart", weight: 8, draw: func(rng *rand.Rand, step *Step) {
		draws(drawSlot, drawValue("yes", "yes", "no", ""))(rng, step)
		step.Key = chartLabel
	}, do: labelCluster, racy: mayDeselect},
	{name: "SetPolicy", weight: 6, draw: draws(drawNamespace, drawKind("one", "two"), drawValue("", "", "require", "deployer", "other", "require other")),
		do: setPolicy, racy: always},
	{name: "HelmStop", weight: 2, do: stops(helmProcess, (*stack.Stack).Stop)},
	{name: "HelmKill", weight: 4, do: stops(helmProcess, (*stack.Stack).Kill)},
}

// carriedOperations change the inputs of HelmChartProxies, and the objects made for them.
var carriedOperations = []operation{
	// The program reads these inputs without a watch: every 30 s, and when something happens to the HelmChartProxy.
	{name: "SetSource", weight: 6, draw: draws(drawNamespace, drawKind("ConfigMap", "Secret"), drawValue("1", "2", "2", "")),
		do: setSource, racy: always},
	{name: "ForeignCarried", weight: 8, draw: draws(
		drawSlot, drawKind("Bundle", "ConfigMap", "HelmReleaseProxy"), drawValue("Delete", "Edit", "Edit"),
	), do: foreignCarried, racy: always},
	{name: "SetBack", weight: 8, draw: draws(drawSlot, drawValue("Record", "Record", "Revision", "Status")), do: func(r *run, step Step) (bool, error) {
		step.Kind = "HelmReleaseProxy"
		return foreignCarried(r, step)
	}, racy: always},
}

func drawProxy(rng *rand.Rand, step *Step) { step.Proxy = rng.IntN(proxyCount) }

// proxyName returns the name of a slot's HelmChartProxy. Two slots share it, in different namespaces.
func proxyName(slot int) string {
	return [proxyCount]string{"web", "web", "dotted.name", "long-" + strings.Repeat("x", 30) + "-5c3a2f8e-2b1d-4d0c-9a53-0f4f5d1f7a11"}[slot]
}

// drawChart draws a chart, and the Clusters that get it. createProxy adds the repository.
func drawChart(rng *rand.Rand, step *Step) {
	spec := &addonsv1.HelmChartProxySpec{
		ClusterSelector: oneOf(rng, metav1.LabelSelector{}, metav1.LabelSelector{}, metav1.LabelSelector{MatchLabels: map[string]string{chartLabel: "yes"}},
			metav1.LabelSelector{MatchLabels: map[string]string{chartLabel: "yes"}}, selectors[2], selectors[3]),
		ChartName:      oneOf(rng, "simple", "simple", "simple", "other"),
		Version:        oneOf(rng, "1.0.0", "1.0.0", "1.1.0", "1.x", "", "1.0.0", "1.x", "9.9.9"),
		ReleaseName:    oneOf(rng, "", "", "release", sharedRelease, sharedRelease),
		ValuesTemplate: oneOf(rng, append(slices.Sorted(maps.Keys(oracle.Templates)), oracle.FailsForOne)...),
		Download:       oneOf(rng, "", addonsv1.DownloadManager, addonsv1.DownloadAgent),
	}
	spec.ReleaseNamespace = oneOf(rng, "", "apps")
	configMap, secret := addonsv1.ValuesReference{Kind: "ConfigMap", Name: chartValues}, addonsv1.ValuesReference{Kind: "Secret", Name: chartValues}
	secret.Optional = rng.IntN(2) == 0
	spec.ValuesFrom = oneOf(rng, nil, nil,
		[]addonsv1.ValuesReference{configMap}, []addonsv1.ValuesReference{secret}, []addonsv1.ValuesReference{configMap, secret})
	if rng.IntN(4) == 0 {
		spec.NamespaceSelector = ptr.To(oneOf(rng, namespaceSelectors...))
	}
	if rng.IntN(4) == 0 {
		spec.CorrectDrift = ptr.To(true)
	}
	if rng.IntN(4) == 0 {
		spec.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	}
	spec.ServiceAccount = oneOf(rng, "", "", "deployer")
	spec.ReconcileStrategy = oneOf(rng, "", addonsv1.ReconcileStrategyContinuous, addonsv1.ReconcileStrategyInstallOnce)
	step.Chart = spec
}

// sharedRelease is the release that several HelmChartProxies ask for. While two do, Muster comes to rest at every step.
const sharedRelease = "shared"

// withRelease gives a HelmChartProxy that does not ask for sharedRelease a release of its own. Two HelmChartProxies have one
// name, and meet where either selects other namespaces.
func withRelease(proxy *addonsv1.HelmChartProxy) *addonsv1.HelmChartProxy {
	if spec := &proxy.Spec; spec.ReleaseName != sharedRelease && (spec.ReleaseName != "" || spec.NamespaceSelector != nil) {
		digest := fnv.New32a()
		_, _ = digest.Write([]byte(proxy.Namespace + "/" + proxy.Name))
		spec.ReleaseName = fmt.Sprintf("release-%08x", digest.Sum32())
	}
	return proxy
}

// withAccess fills in the repository.
func withAccess(drawn *addonsv1.HelmChartProxySpec) addonsv1.HelmChartProxySpec {
	spec := *drawn.DeepCopy()
	spec.RepoURL = repo.URL
	spec.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: helmSecret}, Key: "config.json"}
	spec.TLSConfig = &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: helmSecret}}
	return spec
}

// startHelm starts the component helm, which runs in all runs, and the repository.
func startHelm() error {
	repo = repository.New()
	for _, chart := range slices.Sorted(maps.Keys(published)) {
		for _, version := range published[chart] {
			if err := repo.Publish(chart, version, map[string]string{"values.yaml": "{}"}); err != nil {
				return err
			}
		}
	}
	if err := env.StartHelm(ctx); err != nil {
		return err
	}
	// The garbage collector discovers new kinds half a minute later, or when it starts.
	return errors.Join(env.Restart(ctx, collectorProcess), leads(helmProcess))
}

// prepareHelm makes the objects that HelmChartProxies of the run's namespaces refer to.
func (r *run) prepareHelm() error {
	r.state.Helm.Published = published
	for i := range namespaceCount {
		secret := &corev1.Secret{Data: repo.Secret()}
		secret.Namespace, secret.Name = r.namespace(i), helmSecret
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

// proxy returns the last known HelmChartProxy in a step's slot, or nil.
func (r *run) proxy(step Step) *addonsv1.HelmChartProxy {
	return r.state.Helm.Proxies[r.proxies[step.Proxy]].DeepCopy()
}

// carriedBy moves a step to the next HelmChartProxy, if there is one. There are only a few at any time.
func (r *run) carriedBy(step Step) Step {
	step.Proxy = firstSlot(step.Proxy, proxyCount, func(slot int) bool { return r.proxy(Step{Proxy: slot}) != nil })
	return step
}

// chartUp takes every step that a chart needs to reach a Cluster, unless something prevents one.
func chartUp(r *run, step Step) (bool, error) {
	// The label comes first: Muster may retain a Fleet Cluster as it was made.
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
	for i := range namespaceCount {
		if r.namespace(i) == r.slots[step.Cluster].Namespace {
			step.Namespace = i
		}
	}
	_, err := createProxy(r, step)
	return true, err
}

func createProxy(r *run, step Step) (bool, error) {
	key := oracle.Key{Namespace: r.namespace(step.Namespace), Name: proxyName(step.Proxy)}
	if r.proxy(step) != nil || r.state.Helm.Proxies[key] != nil {
		return false, nil
	}
	if err := admin.Get(ctx, key, &addonsv1.HelmChartProxy{}); !apierrors.IsNotFound(err) {
		return false, err // The earlier HelmChartProxy is being deleted.
	}
	proxy := &addonsv1.HelmChartProxy{Spec: withAccess(step.Chart)}
	proxy.Namespace, proxy.Name = key.Namespace, key.Name
	if err := r.create(admin, withRelease(proxy)); err != nil {
		return false, err
	}
	r.proxies[step.Proxy] = key
	return true, nil
}

// edited returns a HelmChartProxy with part of a step's changes.
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
			spec.ReleaseNamespace = "default" // The webhook sets the same default.
		}
	case "download":
		spec.Download, spec.CorrectDrift, spec.Rollout = to.Download, to.CorrectDrift, to.Rollout
	case "sources":
		spec.ValuesFrom = to.ValuesFrom
	case "account":
		spec.ServiceAccount = to.ServiceAccount
	case "chart":
		spec.ChartName, spec.Version = to.ChartName, "1.0.0"
	}
	return withRelease(proxy)
}

func editProxy(r *run, step Step) (bool, error) {
	before := r.proxy(r.carriedBy(step))
	if before == nil {
		return false, nil
	}
	proxy := edited(before, step)
	return r.changed(proxy, admin.Patch(ctx, proxy, client.MergeFrom(before)))
}

// wouldHold reports whether a step's change to a HelmChartProxy leaves some object as it was.
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
		proxy = withRelease(proxy)
	} else {
		proxy = edited(proxy, step)
	}
	after.Helm.Proxies[client.ObjectKeyFromObject(proxy)] = proxy
	return oracle.HelmHolds(after)
}

// retainsIn reports whether some object of a HelmChartProxy in a namespace stays as it was.
func (r *run) retainsIn(namespace string) bool {
	state := r.state.Copy()
	maps.DeleteFunc(state.Helm.Proxies, func(key client.ObjectKey, _ *addonsv1.HelmChartProxy) bool { return key.Namespace != namespace })
	return oracle.HelmHolds(state)
}

// contend lets another HelmChartProxy of the same namespace ask for the release of one: it is made, or gets another release.
func contend(r *run, step Step) (bool, error) {
	step = r.carriedBy(step)
	first := r.proxy(step)
	if first == nil {
		return false, nil
	}
	step.Key = "release"
	step.Chart.ReleaseName, step.Chart.ReleaseNamespace = sharedRelease, first.Spec.ReleaseNamespace
	if first.Spec.ReleaseName != sharedRelease {
		if done, err := editProxy(r, step); !done {
			return false, err
		}
		if err := r.quiet(); err != nil {
			return true, err
		}
	}
	step.Proxy = firstSlot((step.Proxy+1)%proxyCount, proxyCount, func(slot int) bool {
		other := r.proxy(Step{Proxy: slot})
		return slot != step.Proxy && (other == nil || other.Namespace == first.Namespace)
	})
	for i := range namespaceCount {
		if r.namespace(i) == first.Namespace {
			step.Namespace = i
		}
	}
	asks := createProxy
	if r.proxy(step) != nil {
		asks = editProxy
	}
	_, err := asks(r, step)
	return true, err
}

func (r *run) annotateProxy(step Step, value string) (bool, error) {
	proxy := r.proxy(r.carriedBy(step))
	if proxy == nil {
		return false, nil
	}
	return r.change(admin, proxy, metadata("annotations", pausedKey, value))
}

func deleteProxy(r *run, step Step) (bool, error) {
	proxy := r.proxy(r.carriedBy(step))
	if proxy == nil {
		return false, nil
	}
	if done, err := r.remove(admin, proxy); !done {
		return false, err
	}
	r.deleted[client.ObjectKeyFromObject(proxy)] = true
	return true, nil // Its finalizer stays until the program, which may be stopped, has uninstalled everything.
}

// setPolicy changes one of two Policies of Fleet in a namespace: it requires a ServiceAccount, allows one, or both.
func setPolicy(r *run, step Step) (bool, error) {
	required, name, both := strings.Cut(step.Value, " ")
	policy := &fleetv1.Policy{RequireServiceAccount: required == "require"}
	policy.Namespace, policy.Name = r.namespace(step.Namespace), step.Kind
	if !both && required != "require" {
		name = required
	}
	if name != "" {
		policy.AllowedServiceAccounts = []string{name}
	}
	before := r.state.Helm.Policies[client.ObjectKeyFromObject(policy)]
	switch {
	case before == nil && step.Value == "":
		return false, nil
	case before == nil:
		return true, r.create(admin, policy)
	case step.Value == "":
		return r.remove(admin, before.DeepCopy())
	}
	policy.ResourceVersion = before.ResourceVersion
	return r.changed(policy, admin.Update(ctx, policy))
}

// sourced returns the content of a ConfigMap or Secret with values. The values of Secrets may appear in Secrets only.
func sourced(kind, value string) map[string]any {
	if kind == "Secret" {
		value = oracle.Secretive + "-" + value
	}
	return map[string]any{"source": map[string]any{strings.ToLower(kind): value}}
}

func (r *run) makeSource(kind, namespace, value string) error {
	text, err := yaml.Marshal(sourced(kind, value))
	if err != nil {
		return err
	}
	data := map[string]string{"values.yaml": string(text)}
	object := map[string]client.Object{"Secret": &corev1.Secret{StringData: data}, "ConfigMap": &corev1.ConfigMap{Data: data}}[kind]
	object.SetNamespace(namespace)
	object.SetName(chartValues)
	key := oracle.Source{Kind: kind, Key: client.ObjectKeyFromObject(object)}
	if value == "" {
		delete(r.state.Helm.Sources, key)
		return client.IgnoreNotFound(admin.Delete(ctx, object))
	}
	r.state.Helm.Sources[key] = sourced(kind, value)
	err = admin.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		err = admin.Update(ctx, object)
	}
	return err
}

// setSource changes the ConfigMap or Secret with values.
func setSource(r *run, step Step) (bool, error) {
	namespace := r.namespace(step.Namespace)
	if err := r.makeSource(step.Kind, namespace, step.Value); err != nil {
		return false, err
	}
	for key, proxy := range r.state.Helm.Proxies {
		if key.Namespace != namespace {
			continue
		}
		if done, err := r.change(admin, proxy.DeepCopy(), metadata("annotations", "look", fmt.Sprint(r.count))); !done {
			return true, err
		}
	}
	return true, nil
}

// foreignCarried deletes or changes an object that was made for a HelmChartProxy, and the program restores it. It
// does not restore the leftovers of a deleted HelmChartProxy, for a paused Cluster or while the garbage collector is
// stopped.
func foreignCarried(r *run, step Step) (bool, error) {
	if oracle.HelmHolds(r.state) || r.hasPausedProxy() {
		return false, nil // The program writes no such object, so it would stay as the user made it.
	}
	list, edit := map[string]client.ObjectList{
		"Bundle": &fleetv1.BundleList{}, "ConfigMap": &corev1.ConfigMapList{}, "HelmReleaseProxy": &addonsv1.HelmReleaseProxyList{},
	}[step.Kind], map[string]string{
		"Bundle":           `{"spec":{"targets":null,"helm":{"releaseName":"theirs"}}}`,
		"ConfigMap":        `{"data":{"values.yaml":"theirs: x"}}`,
		"HelmReleaseProxy": `{"spec":{"version":"theirs","clusterRef":{"kind":"theirs"}}}`,
	}[step.Kind]
	if err := admin.List(ctx, list); err != nil {
		return false, err
	}
	made := map[string]client.Object{}
	if err := meta.EachListItem(list, func(its runtime.Object) error {
		object := its.(client.Object)
		source := oracle.Source{Kind: step.Kind, Key: client.ObjectKeyFromObject(object)}
		if step.Kind == "ConfigMap" && !r.state.Helm.Used[source] {
			return nil // These are earlier values, which agents may still read.
		}
		if proxy, found := oracle.MadeFor(object); found && r.state.Helm.Proxies[proxy] != nil {
			made[client.ObjectKeyFromObject(object).String()] = object
		}
		return nil
	}); err != nil {
		return false, err
	}
	if len(made) == 0 {
		return false, nil
	}
	names := slices.Sorted(maps.Keys(made))
	object := made[names[step.Cluster%len(names)]]
	if release, is := object.(*addonsv1.HelmReleaseProxy); is && step.Op == "SetBack" {
		return r.setBack(release, step.Value)
	}
	if step.Value == "Delete" {
		for of, carrier := range r.state.Helm.Carriers {
			if carrier.UID == object.GetUID() {
				delete(r.retained, retainedCarrier(of))
			}
		}
		if err := admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil || step.Kind != "Bundle" {
			return true, client.IgnoreNotFound(err)
		}
		// Fleet deletes what it made for the object.
		return true, r.withdraw(func(bundle *fleetv1.Bundle, _ string) bool { return bundle.UID == "" || bundle.UID == object.GetUID() })
	}
	return true, client.IgnoreNotFound(patch(object, json.RawMessage(edit)))
}

func (r *run) hasPausedProxy() bool {
	for _, proxy := range r.state.Helm.Proxies {
		if proxy.Annotations[pausedKey] != "" {
			return true
		}
	}
	return false
}
