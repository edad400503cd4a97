package random

import (
	"math/rand/v2"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// flapOperations take "agent" from Clusters for a moment, by mistake, and give it back: nobody
// is cut off, registered anew or left without a manifest.
var flapOperations = []operation{
	{name: "Flap", weight: 8, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Kind = oneOf(rng, "Annotation", "Flag", "Selector", "Config", "Config")
		step.Value = oneOf(rng, "", "at rest") // how long it takes until somebody notices
	}, do: flap, racy: always},
}

func flap(r *run, step Step) (bool, error) {
	if step.Kind == "Annotation" {
		return flapAnnotation(r, step)
	}
	if r.state.Config == nil {
		return false, nil
	}
	before := Step{Config: r.state.Config.Spec.DeepCopy()}
	mistaken := before.Config.DeepCopy()
	if mistaken.Cluster == nil {
		mistaken.Cluster = &addonsv1.ClusterConfig{}
	}
	var err error
	switch step.Kind {
	case "Flag":
		mistaken.Cluster.AgentInitiated = ptr.To(false)
		_, err = setConfig(r, Step{Config: mistaken})
	case "Selector":
		mistaken.Cluster.AgentInitiatedSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"evn": "prod"}}
		_, err = setConfig(r, Step{Config: mistaken})
	default:
		step.Value = "at rest" // Without one, other Clusters are selected.
		_, err = deleteConfig(r, step)
	}
	if err != nil {
		return true, err
	}
	if step.Value != "" {
		if err := r.quiet(); err != nil {
			return true, err
		}
	}
	return setConfig(r, before)
}

func flapAnnotation(r *run, step Step) (bool, error) {
	step = r.caller(step)
	cluster := r.cluster(step)
	if cluster == nil || cluster.Annotations[registrationKey] != "agent" {
		return false, nil
	}
	done, err := r.changeStamped(admin, step, metadata("annotations", registrationKey, "manager"))
	if !done || err != nil {
		return done, err
	}
	if step.Value != "" {
		if err := r.quiet(); err != nil {
			return true, err
		}
	}
	_, err = r.changeStamped(admin, step, metadata("annotations", registrationKey, "agent"))
	return true, err
}
