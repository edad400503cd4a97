package random

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/oracle"
)

// What happens to what HelmChartProxies are made of, and to what is made of them.
var carriedOperations = []operation{
	// What is read and not watched is looked at every 30 s, and when something happens to the
	// HelmChartProxy.
	{name: "SetSource", weight: 6, draw: func(rng *rand.Rand, step *Step) {
		step.Namespace, step.Kind = rng.IntN(namespaceCount), oneOf(rng, "ConfigMap", "Secret")
		step.Value = oneOf(rng, "1", "2", "2", "")
	}, do: setSource, racy: always},
	{name: "ForeignCarried", weight: 8, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Kind, step.Value = oneOf(rng, "Bundle", "HelmOp", "ConfigMap", "HelmReleaseProxy"), oneOf(rng, "Delete", "Edit", "Edit")
	}, do: foreignCarried, racy: always},
}

// sourced returns what is in a ConfigMap or Secret that values come from: the latter is to stay in Secrets.
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
	var object client.Object
	if kind == "Secret" {
		object = &corev1.Secret{Data: map[string][]byte{"values.yaml": text}}
	} else {
		object = &corev1.ConfigMap{Data: map[string]string{"values.yaml": string(text)}}
	}
	object.SetNamespace(namespace)
	object.SetName(chartValues)
	key := oracle.Source{Kind: kind, Key: client.ObjectKeyFromObject(object)}
	if value == "" {
		delete(r.state.Charts.Sources, key)
		return client.IgnoreNotFound(admin.Delete(ctx, object))
	}
	r.state.Charts.Sources[key] = sourced(kind, value)
	err = admin.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		err = admin.Update(ctx, object)
	}
	return err
}

// setSource changes what values come from.
func setSource(r *run, step Step) (bool, error) {
	if repo == nil {
		return false, nil
	}
	namespace := r.namespace(step.Namespace)
	if err := r.makeSource(step.Kind, namespace, step.Value); err != nil {
		return false, err
	}
	for key, proxy := range r.state.Charts.Proxies {
		if key.Namespace != namespace {
			continue
		}
		proxy = proxy.DeepCopy()
		if err := patch(proxy, metadata("annotations", "look", fmt.Sprint(r.count))); err != nil {
			return true, client.IgnoreNotFound(err)
		}
		r.state.Charts.Proxies[key] = proxy
	}
	return true, nil
}

// foreignCarried deletes or changes something that was made for a HelmChartProxy: it is put back. What one
// that is gone has left, for a Cluster that is paused or while garbage stays, is not.
func foreignCarried(r *run, step Step) (bool, error) {
	if repo == nil || oracle.ChartsHold(r.state) || r.hasPausedProxy() {
		return false, nil // What is not written stays as somebody made it.
	}
	list, edit := map[string]client.ObjectList{
		"Bundle": &fleetv1.BundleList{}, "HelmOp": &fleetv1.HelmOpList{}, "ConfigMap": &corev1.ConfigMapList{}, "HelmReleaseProxy": &addonsv1.HelmReleaseProxyList{},
	}[step.Kind], map[string]string{
		"Bundle":           `{"spec":{"targets":null,"helm":{"releaseName":"theirs"}}}`,
		"HelmOp":           `{"spec":{"targets":[{"clusterName":"theirs"}],"helm":{"version":"0.0.1"}}}`,
		"ConfigMap":        `{"data":{"values.yaml":"theirs: x"}}`,
		"HelmReleaseProxy": `{"spec":{"clusterRef":{"name":"theirs"}}}`,
	}[step.Kind]
	if err := admin.List(ctx, list); err != nil {
		return false, err
	}
	made := map[string]client.Object{}
	if err := meta.EachListItem(list, func(its runtime.Object) error {
		r.ifMade(made, its.(client.Object))
		return nil
	}); err != nil {
		return false, err
	}
	if len(made) == 0 {
		return false, nil
	}
	names := slices.Sorted(maps.Keys(made))
	object := made[names[step.Cluster%len(names)]]
	if step.Value == "Delete" {
		for of, carrier := range r.state.Charts.Carriers {
			if carrier.UID == object.GetUID() {
				delete(r.kept, of.String()+", "+of.Release+": "+carrier.Kind)
			}
		}
		return true, client.IgnoreNotFound(admin.Delete(ctx, object))
	}
	return true, client.IgnoreNotFound(admin.Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(edit))))
}

// ifMade notes an object if it was made for a HelmChartProxy of this run that is there.
func (r *run) ifMade(made map[string]client.Object, object client.Object) {
	if proxy, found := oracle.MadeFor(object); found && r.state.Charts.Proxies[proxy] != nil {
		made[client.ObjectKeyFromObject(object).String()] = object
	}
}

func (r *run) hasPausedProxy() bool {
	for _, proxy := range r.state.Charts.Proxies {
		if proxy.Annotations["cluster.x-k8s.io/paused"] != "" {
			return true
		}
	}
	return false
}
