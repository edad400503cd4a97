package random

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack/poll"
)

var classOperations = []operation{
	{name: "CreateClass", weight: 8, draw: draws(drawOneClass, drawKey("", "tier", "both"), drawValue("gold", "iron")), do: createClass},
	// Such a class makes Muster retain the Clusters with a group of its name, so their state matters.
	{name: "CreateDisplacing", weight: 2, draw: drawDisplacing, do: createClass, racy: always},
	{name: "DeleteDisplacing", weight: 2, draw: drawDisplacing, do: deleteClass, racy: always},
	// A group that does not go with its class stays as it was.
	{name: "DeleteClass", weight: 3, draw: drawOneClass, do: deleteClass, racy: func(r *run, _ Step) bool {
		_, config := r.config()
		return r.state.GarbageRemains || isFalse(config.SetOwnerReferences)
	}},
	{name: "LabelClass", weight: 5, draw: draws(
		drawOneClass, drawKey("tier", "both", "management.cattle.io/cluster-display-name"), drawValue("", "gold", "iron"),
	), do: labelClass},
}

var configOperations = []operation{
	{name: "SetConfig", weight: 7, draw: drawConfig, do: setConfig, racy: always},
	{name: "DeleteConfig", weight: 1, do: deleteConfig, racy: always},
	{name: "ReplaceConfig", weight: 4, draw: drawKind("", syncerProcess, webhookProcess, helmProcess, registrarProcess), do: replaceConfig, racy: always},
	{name: "LabelNamespace", weight: 4, draw: func(rng *rand.Rand, step *Step) {
		drawNamespace(rng, step)
		step.Key, step.Value = "team", oneOf(rng, "", "red", "blue")
	}, do: labelNamespace, racy: mayDeselect},
}

func drawOneClass(rng *rand.Rand, step *Step) {
	step.Class, step.ClassNamespace = oneOf(rng, 0, 0, 1, 2), rng.IntN(namespaceCount)
}

// drawDisplacing draws a class with the group name that Clusters of its namespace use for a class of another
// namespace.
func drawDisplacing(rng *rand.Rand, step *Step) {
	drawOneClass(rng, step)
	step.Kind, step.Namespace = "Displacing", rng.IntN(namespaceCount)
}

// class returns the class that a step creates, changes or deletes, as last seen if it exists.
func (r *run) class(step Step) *clusterv1.ClusterClass {
	key := r.classKey(step)
	if step.Kind == "Displacing" {
		key = oracle.Key{Namespace: r.namespace(step.Namespace), Name: key.Name + "." + key.Namespace}
	}
	if class := r.state.Classes[key]; class != nil {
		return class.DeepCopy()
	}
	return fixture.Class(key.Namespace, key.Name, nil)
}

func createClass(r *run, step Step) (bool, error) {
	class := r.class(step)
	if isThere(class) {
		return false, nil
	}
	if step.Key != "" {
		class.Labels = map[string]string{step.Key: step.Value}
	}
	return true, r.create(admin, class)
}

func deleteClass(r *run, step Step) (bool, error) {
	class := r.class(step)
	if done, err := r.remove(admin, class); !done {
		return false, err
	}
	return true, r.waitGone(class)
}

func labelClass(r *run, step Step) (bool, error) {
	return r.change(admin, r.class(step), metadata("labels", step.Key, step.Value))
}

func labelNamespace(r *run, step Step) (bool, error) {
	namespace := r.state.Namespaces[r.namespace(step.Namespace)].DeepCopy()
	if _, err := r.change(admin, namespace, metadata("labels", step.Key, step.Value)); err != nil {
		return false, err
	}
	return true, r.waitForWebhook()
}

func drawConfig(rng *rand.Rand, step *Step) {
	step.Config = &addonsv1.FleetAddonConfigSpec{}
	if rng.Float64() < 0.85 {
		step.Config.Cluster = &addonsv1.ClusterConfig{
			Enabled:            maybe(rng, 0.85, true, false, false),
			ApplyClassGroup:    maybe(rng, 0.7, true, false, false),
			PatchResource:      maybe(rng, 0.85, true, false, false),
			SetOwnerReferences: maybe(rng, 0.7, true, false, false),
			HostNetwork:        maybe(rng, 0.7, true, false),
			AgentNamespace:     maybe(rng, 0.7, "agents", "fleet-addon-agent"),
			AgentTolerations:   maybe(rng, 0.7, []corev1.Toleration{}, []corev1.Toleration{{Key: "a", Operator: "Exists"}}),
			Naming:             maybe(rng, 0.6, addonsv1.NamingStrategy{Prefix: "capi-"}, addonsv1.NamingStrategy{Suffix: "-x"}, addonsv1.NamingStrategy{}),
			Selector:           maybe(rng, 0.6, selectors...),
			NamespaceSelector:  maybe(rng, 0.7, namespaceSelectors...),
			OnDeselect:         oneOf(rng, "", addonsv1.DeselectKeep, addonsv1.DeselectDelete, addonsv1.DeselectDelete),
			TemplateValues:     maybe(rng, 0.7, templateValues...),
		}
		if step.Config.Cluster.AgentInitiated = maybe(rng, 0.7, true, true, false); step.Config.Cluster.AgentInitiated != nil {
			step.Config.Cluster.AgentInitiatedSelector = maybe(rng, 0.5, selectors...)
		}
		if rng.Float64() < 0.2 {
			step.Config.Cluster.AgentEnvVars = []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy.example"}}
		}
	}
	if rng.Float64() < 0.5 {
		step.Config.ClusterClass = &addonsv1.ClusterClassConfig{
			Enabled:            maybe(rng, 0.85, true, false, false),
			PatchResource:      maybe(rng, 0.85, true, false, false),
			SetOwnerReferences: maybe(rng, 0.7, true, false, false),
		}
	}
}

var (
	selectors = []metav1.LabelSelector{
		{},
		{MatchLabels: map[string]string{"env": "prod"}},
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"dev"}}}},
		{MatchLabels: map[string]string{"clusterclass-name." + domain: "small"}},
	}
	namespaceSelectors = []metav1.LabelSelector{
		{},
		{MatchLabels: map[string]string{"team": "red"}},
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpDoesNotExist}}},
	}
	templateValues = []addonsv1.TemplateValuesConfig{
		{},
		{Exclude: &[]string{}},
		{Exclude: &[]string{"/Cluster/metadata/annotations", "/ControlPlane/spec/machineTemplate", "/Variables/*"}},
	}
)

func setConfig(r *run, step Step) (bool, error) {
	config := fixture.Config()
	config.Spec = *step.Config.DeepCopy()
	err := admin.Create(ctx, config)
	if apierrors.IsAlreadyExists(err) {
		err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // The syncer may just have written.
			if err := admin.Get(ctx, client.ObjectKeyFromObject(config), config); err != nil {
				return err
			}
			config.Spec = *step.Config.DeepCopy()
			return admin.Update(ctx, config)
		})
	}
	if err != nil {
		return false, err
	}
	r.state.Config, r.state.IsConfigGone = config, false
	return true, r.waitForWebhook()
}

// replaceConfig does what `kubectl replace --force` does, with a restart of a program in between.
func replaceConfig(r *run, step Step) (bool, error) {
	if r.state.Config == nil {
		return false, nil
	}
	again := Step{Config: r.state.Config.Spec.DeepCopy()}
	if err := admin.Delete(ctx, r.state.Config.DeepCopy()); err != nil {
		return false, err
	}
	r.state.Config, r.state.IsConfigGone = nil, true
	if step.Kind != "" && r.isUp(step.Kind) {
		r.down[step.Kind] = true
		if err := env.Stop(ctx, step.Kind); err != nil {
			return false, err
		}
		if err := r.start(step.Kind); err != nil {
			return false, err
		}
	}
	_, err := setConfig(r, again)
	return halfDone(err)
}

// halfDone is the result of a step whose second half may be refused while the webhook is down.
func halfDone(err error) (bool, error) {
	if isRefused(err) {
		err = nil
	}
	return true, err
}

func deleteConfig(r *run, _ Step) (bool, error) {
	if r.state.Config == nil {
		return false, nil
	}
	if err := admin.Delete(ctx, r.state.Config.DeepCopy()); err != nil {
		return false, err
	}
	r.state.Config, r.state.IsConfigGone = nil, true
	return true, r.waitForWebhook()
}

// waitForWebhook waits until the webhook has read the last change of settings and Namespaces. It asks the webhook for
// stamps to find out.
func (r *run) waitForWebhook() error {
	if !r.isUp(webhookProcess) {
		return nil
	}
	return poll.Until(ctx, "the webhook to see what was changed", r.patience, func(ctx context.Context) error {
		for i := range namespaceCount {
			probe := fixture.Cluster(r.namespace(i), "probe", classNames[0], "")
			probe.Labels = map[string]string{"env": "prod"}
			want := oracle.Admitted(r.state, probe)
			if err := admin.Create(ctx, probe, client.DryRunAll); err != nil {
				return err
			}
			if err := sameStamp("the answer to a dry-run CREATE", want, probe); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkLabelled checks that a Cluster written while the webhook is down has the labels of its class, if the component
// class-labels is installed.
func checkLabelled(cluster *clusterv1.Cluster) error {
	class := cluster.GetClassKey()
	if !labelled || class.Name == classNames[noClass-1] {
		return nil // No expression shortens a name.
	}
	want := map[string]string{}
	if class.Name != "" {
		want[nameLabel], want[namespaceLabel] = class.Name, class.Namespace
	}
	got := maps.Clone(cluster.Labels)
	maps.DeleteFunc(got, func(key, _ string) bool { return key != nameLabel && key != namespaceLabel })
	if !maps.Equal(want, got) {
		return &oracleError{fmt.Sprintf("labels of Cluster %s without the webhook: %v, not %v", client.ObjectKeyFromObject(cluster), got, want)}
	}
	return nil
}
