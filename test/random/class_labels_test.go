package random

import (
	"fmt"
	"maps"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/oracle"
)

// labelled is whether the API server labels Clusters with their class itself, by the
// component class-labels.
var labelled bool

// withClassLabels installs the component, or takes it away. MUSTER_CLASS_LABELS=on or off has
// the last word.
func withClassLabels(wanted bool) error {
	if wanted = asked("MUSTER_CLASS_LABELS", wanted); wanted == labelled {
		return nil
	}
	var err error
	if wanted {
		err = env.StartComponent(ctx, "class-labels")
	} else {
		_, err = env.Kubectl(ctx, "delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels")
	}
	if err != nil {
		return err
	}
	labelled = wanted
	time.Sleep(time.Second) // The API server hears of it a moment later.
	return nil
}

// checkLabelled checks that a Cluster that was just written has the labels of its class
// although the webhook is down, if the component is there.
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
		return &oracleError{fmt.Sprintf("labels of Cluster %s without the webhook:\n%s", client.ObjectKeyFromObject(cluster), oracle.Diff(asYAML(want), asYAML(got)))}
	}
	return nil
}
