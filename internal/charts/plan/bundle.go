package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// defaultTimeout and defaultHistory are those of cluster-api-addon-provider-helm.
	defaultTimeout = 10 * time.Minute
	defaultHistory = 10

	// MaxChart is how large a chart may be that is carried in a Bundle: an object of etcd may
	// have 1.5 MiB, and targets come on top.
	MaxChart = 900 << 10
	// maxBundle is how large a Bundle may become before another one is begun, and targetSize
	// what a target takes at most: the name of a Cluster is in it four times.
	maxBundle  = 512 << 10
	targetSize = 512
	// fewestTargets is how many targets a Bundle has at least, however large its chart is.
	fewestTargets = 200
	// MostTargets is more than a Bundle ever has.
	MostTargets = 2 * maxBundle / targetSize
)

// Chart is a chart as it lies in a Bundle.
type Chart struct {
	// Source says where it is from: see SourceOf.
	Source string
	// Version is its exact version.
	Version string
	// Resources are its files.
	Resources []fleetv1.BundleResource
	// Agent says that the agent of each cluster downloads it.
	Agent bool
}

// SourceOf says which chart a HelmChartProxy asks for.
func SourceOf(proxy *addonsv1.HelmChartProxy) string {
	return proxy.Spec.RepoURL + " " + proxy.Spec.ChartName + " " + proxy.Spec.Version
}

// Size returns how large the chart is in a Bundle.
func (c *Chart) Size() int {
	size := 0
	for _, resource := range c.Resources {
		size += len(resource.Name) + len(resource.Content) + len(resource.Encoding)
	}
	return size
}

// Target is a Cluster that is deployed to.
type Target struct {
	// Fleet is the name of its Fleet Cluster.
	Fleet string
	// Release is the name of its release, if it is not that of the others.
	Release string
	// Values are its own values; nil if it has none but those for all.
	Values []byte
	// Kept says that its values are to stay as they are: they could not be rendered.
	Kept bool
	// Place is where its own values lie.
	Place Place
}

// Input is what the objects in one namespace of Clusters are made from.
type Input struct {
	Proxy *addonsv1.HelmChartProxy
	// Namespace is that of the Clusters.
	Namespace string
	Targets   []Target
	// Shared are nil if there are none.
	Shared *Shared
	// SharedPlace is where these lie.
	SharedPlace Place
	Chart       *Chart
	// Access is how agents reach the repository; nil if it is not known: what is there stays.
	Access *Access
	// Placed says in which Bundle a Fleet Cluster is a target now. It stays there: in another
	// one its release would be installed anew.
	Placed map[string]string
	// Unowned says that nothing is to be deleted with the HelmChartProxy: clusterctl move deletes
	// it where the clusters live on.
	Unowned bool
}

// Objects are what is to be there in one namespace of Clusters.
type Objects struct {
	// Bundles are Bundles, or stand for HelmOps: see HelmOpKind.
	Bundles []*fleetv1.Bundle
	// Values are ConfigMaps and Secrets with values, and with access to repositories.
	Values []client.Object
	// Keep are the names of objects with values that stay as they are.
	Keep map[string]bool
}

// Make returns the objects.
func Make(in Input) Objects {
	result := Objects{Keep: map[string]bool{}}
	shared := in.shared()
	if its := in.SharedValues(); its != nil {
		result.Values = append(result.Values, its)
	} else if shared != nil {
		result.Keep[shared.name] = true
	}
	targets := slices.Clone(in.Targets)
	slices.SortFunc(targets, func(a, b Target) int { return cmp.Compare(a.Fleet, b.Fleet) })
	own := map[string]values{}
	for _, target := range targets {
		if target.Values == nil && !target.Kept {
			continue
		}
		own[target.Fleet] = in.own(target)
		if target.Kept {
			result.Keep[own[target.Fleet].name] = true
			continue
		}
		result.Values = append(result.Values, in.ValuesOf(target))
	}
	if its := in.access(); its != nil {
		result.Values = append(result.Values, its)
	}
	for _, group := range in.placed(targets) {
		bundle := in.bundle(group.name, shared)
		for _, target := range group.targets {
			its := targetOf(target, own)
			if IsHelmOp(bundle) {
				its = pin(its, in.Chart.Version)
			}
			bundle.Spec.Targets = append(bundle.Spec.Targets, its)
		}
		result.Bundles = append(result.Bundles, bundle)
	}
	return result
}

// values name an object with values.
type values struct {
	kind, name string
	keys       []string
}

// shared names the object with the values for all Clusters; nil if there are none, or nobody reads them.
func (in Input) shared() *values {
	if in.Shared == nil || len(in.Targets) == 0 {
		return nil
	}
	its := &values{kind: configMapKind, name: in.SharedPlace.Of(SharedName(client.ObjectKeyFromObject(in.Proxy), in.Namespace))}
	for _, key := range in.Shared.Keys {
		its.keys = append(its.keys, in.SharedPlace.key(key))
	}
	if in.Shared.Secret {
		its.kind = SecretKind
	}
	return its
}

// SharedValues returns the object with the values for all Clusters, or nil if they stay as they are, or
// there are none.
func (in Input) SharedValues() client.Object {
	its := in.shared()
	if its == nil || in.Shared.Kept {
		return nil
	}
	data := map[string][]byte{}
	for key, value := range in.Shared.Data {
		data[in.SharedPlace.key(key)] = value
	}
	return in.object(*its, data)
}

// own names the object with a Cluster's own values.
func (in Input) own(target Target) values {
	name := ValuesName(client.ObjectKeyFromObject(in.Proxy), in.Namespace, target.Fleet)
	return values{kind: configMapKind, name: target.Place.Of(name), keys: []string{target.Place.key(ValuesKey)}}
}

// ValuesOf returns the object with a Cluster's own values, or nil if they stay as they are, or there are none.
func (in Input) ValuesOf(target Target) client.Object {
	if target.Values == nil || target.Kept {
		return nil
	}
	return in.object(in.own(target), map[string][]byte{target.Place.key(ValuesKey): target.Values})
}

// OwnName returns the name of the object with a Cluster's own values.
func (in Input) OwnName(target Target) string { return in.own(target).name }

func (v values) from() []fleetv1.ValuesFrom {
	var result []fleetv1.ValuesFrom
	for _, key := range v.keys {
		name := fleetv1.LocalObjectReference{Name: v.name}
		if v.kind == SecretKind {
			result = append(result, fleetv1.ValuesFrom{SecretKeyRef: &fleetv1.SecretKeySelector{LocalObjectReference: name, Key: key}})
		} else {
			result = append(result, fleetv1.ValuesFrom{ConfigMapKeyRef: &fleetv1.ConfigMapKeySelector{LocalObjectReference: name, Key: key}})
		}
	}
	return result
}

func (v values) carried() []fleetv1.DownstreamResource {
	return []fleetv1.DownstreamResource{{Kind: v.kind, Name: v.name}}
}

func targetOf(target Target, own map[string]values) fleetv1.BundleTarget {
	result := fleetv1.BundleTarget{Name: target.Fleet, ClusterName: target.Fleet}
	if its, found := own[target.Fleet]; found {
		result.Helm = &fleetv1.HelmOptions{ValuesFrom: its.from()}
		result.DownstreamResources = its.carried()
	}
	if target.Release != "" {
		if result.Helm == nil {
			result.Helm = &fleetv1.HelmOptions{}
		}
		result.Helm.ReleaseName = target.Release
	}
	return result
}

type group struct {
	name    string
	targets []Target
}

// placed says which target is in which Bundle. One that has a place keeps it.
func (in Input) placed(targets []Target) []group {
	base := BundleName(in.Proxy, in.Namespace, "")
	if in.Proxy.Spec.ReconcileStrategy == addonsv1.ReconcileStrategyInstallOnce {
		// Each is held apart once it is installed.
		var groups []group
		for _, target := range targets {
			groups = append(groups, group{BundleName(in.Proxy, in.Namespace, target.Fleet), []Target{target}})
		}
		return groups
	}
	room := fewestTargets
	if in.Chart != nil {
		room = max(room, (maxBundle-in.Chart.Size())/in.sizeOfTarget())
	}
	byName := map[string][]Target{}
	var others []Target
	for _, target := range targets {
		if name := in.Placed[target.Fleet]; name != "" {
			byName[name] = append(byName[name], target)
		} else {
			others = append(others, target)
		}
	}
	shard := 0
	for _, target := range others {
		for len(byName[shardName(base, shard)]) >= room {
			shard++
		}
		name := shardName(base, shard)
		byName[name] = append(byName[name], target)
	}
	var groups []group
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		its := byName[name]
		slices.SortFunc(its, func(a, b Target) int { return cmp.Compare(a.Fleet, b.Fleet) })
		groups = append(groups, group{name, its})
	}
	return groups
}

func (in Input) bundle(name string, shared *values) *fleetv1.Bundle {
	spec := &in.Proxy.Spec
	bundle := &fleetv1.Bundle{
		TypeMeta:   metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: bundleKind},
		ObjectMeta: in.meta(name),
	}
	bundle.Labels[unmappedLabel] = unmappedLabelValue
	if in.Chart != nil {
		bundle.Annotations[ChartAnnotation] = in.Chart.Source
		bundle.Annotations[VersionAnnotation] = in.Chart.Version
		bundle.Spec.Resources = in.Chart.Resources
	}
	bundle.Spec.DefaultNamespace = ReleaseNamespace(in.Proxy)
	bundle.Spec.Helm = helmOptions(in.Proxy)
	if in.Chart != nil && in.Chart.Agent {
		in.byAgents(bundle)
	}
	bundle.Spec.KeepResources = spec.ReconcileStrategy == addonsv1.ReconcileStrategyInstallOnce
	if ptr.Deref(spec.CorrectDrift, false) {
		bundle.Spec.CorrectDrift = &fleetv1.CorrectDrift{Enabled: true}
	}
	if most := MaxUnavailable(spec); most != nil {
		bundle.Spec.RolloutStrategy = &fleetv1.RolloutStrategy{MaxUnavailable: most}
	}
	switch {
	case shared != nil:
		bundle.Spec.Helm.ValuesFrom = shared.from()
		bundle.Spec.DownstreamResources = shared.carried()
	case !slices.ContainsFunc(in.Targets, func(t Target) bool { return t.Values != nil || t.Kept }):
		bundle.Spec.Helm.Values = &fleetv1.GenericMap{Data: map[string]any{"global": map[string]any{}}}
	}
	return bundle
}

func helmOptions(proxy *addonsv1.HelmChartProxy) *fleetv1.HelmOptions {
	options := &proxy.Spec.Options
	helm := &fleetv1.HelmOptions{
		ReleaseName:       ReleaseName(proxy),
		DisablePreProcess: true,
		Force:             options.Upgrade.Force,
		TakeOwnership:     options.TakeOwnership,
		MaxHistory:        cmp.Or(options.Upgrade.MaxHistory, defaultHistory),
		Atomic:            options.Atomic,
	}
	if options.Wait || options.Atomic {
		timeout := defaultTimeout
		if options.Timeout != nil {
			timeout = options.Timeout.Duration
		}
		helm.TimeoutSeconds = max(1, int(timeout.Seconds()))
		helm.WaitForJobs = options.WaitForJobs
	}
	return helm
}

func (in Input) object(its values, data map[string][]byte) client.Object {
	meta := in.meta(its.name)
	if its.kind == SecretKind {
		return &corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: SecretKind}, ObjectMeta: meta,
			Type: ValuesSecretType, Data: data,
		}
	}
	text := map[string]string{}
	for key, value := range data {
		text[key] = string(value)
	}
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: configMapKind}, ObjectMeta: meta, Data: text}
}

// access returns the Secret with which agents reach the repository; nil if they need none.
func (in Input) access() *corev1.Secret {
	if in.Chart == nil || !in.Chart.Agent || in.Access == nil || !NeedsAccess(in.Proxy) || len(in.Targets) == 0 {
		return nil
	}
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: SecretKind}, ObjectMeta: in.meta(AccessName(in.Proxy, in.Namespace)),
		Type: AccessSecretType, Data: in.Access.data(),
	}
}

// AccessSecretType is the type of Secrets with access to a repository.
const AccessSecretType corev1.SecretType = stamp.Domain + "/helm-access"

// ValuesSecretType is the type of Secrets with values: no other is ever written, but AccessSecretType.
const ValuesSecretType corev1.SecretType = stamp.Domain + "/helm-values"

func (in Input) meta(name string) metav1.ObjectMeta {
	proxy := client.ObjectKeyFromObject(in.Proxy)
	meta := metav1.ObjectMeta{
		Namespace: in.Namespace, Name: name, Labels: Labels(proxy),
		Annotations: map[string]string{ProxyAnnotation: proxy.String()},
	}
	if in.Namespace == proxy.Namespace && !in.Unowned {
		meta.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: addonsv1.GroupVersion.String(), Kind: "HelmChartProxy", Name: proxy.Name, UID: in.Proxy.UID, Controller: ptr.To(true),
		}}
	}
	return meta
}
