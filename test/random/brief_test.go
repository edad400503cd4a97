package random

import (
	"encoding/json"
	"maps"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/oracle"
)

// briefOperations undo a change within a second. Each program may see what was in between, or not: a step is done only
// if that makes no difference in the end.
var briefOperations = []operation{
	{name: "FlapLabel", weight: 10, draw: draws(drawSlot, drawKey("env", chartLabel, chartLabel, "team"), drawValue("0s", "50ms", "300ms", "800ms")),
		do: flapLabel, racy: always},
	// Kind scales the control plane before, so that values are about to be written.
	{name: "RemakeFleetCluster", weight: 10, draw: draws(drawSlot, drawKind("", "1", "3", "5"), drawValue("0s", "50ms", "300ms", "800ms")),
		do: remakeFleetCluster, racy: always},
}

// areSame reports whether Muster makes the same of two states.
func areSame(one, other oracle.State) bool {
	return maps.Equal(oracle.View(oracle.Converge(one)), oracle.View(oracle.Converge(other)))
}

// inBetween notes what Muster may do now, and waits.
func (r *run) inBetween(step Step) error {
	r.noteRightful()
	r.noteRetained()
	wait, err := time.ParseDuration(step.Value)
	time.Sleep(wait)
	return err
}

// flapLabel takes a label that selectors select by off a Cluster or its Namespace, and puts it back.
func flapLabel(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || !cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	its := func(state oracle.State) client.Object {
		if step.Key == "team" {
			return state.Namespaces[cluster.Namespace]
		}
		return state.Clusters[client.ObjectKeyFromObject(cluster)]
	}
	value := its(r.state).GetLabels()[step.Key]
	seen := r.state.Copy()
	delete(its(seen).GetLabels(), step.Key)
	seen = oracle.Converge(seen)
	its(seen).SetLabels(overlaid(its(seen).GetLabels(), map[string]string{step.Key: value}))
	if value == "" || !areSame(r.state, seen) {
		return false, nil
	}
	change := func(value string) (bool, error) {
		return r.change(admin, its(r.state.Copy()), metadata("labels", step.Key, value))
	}
	if done, err := change(""); !done || err != nil {
		return done, err
	}
	if err := r.inBetween(step); err != nil {
		return true, err
	}
	if _, err := change(value); err != nil {
		return halfDone(err)
	}
	return true, r.waitForWebhook()
}

// remakeFleetCluster does what `kubectl replace --force` and a restore of a backup do. Muster may be faster. What makes
// Argo CD spare an object is not in the backup: it would be the restorer's, and stay when the owner is back.
func remakeFleetCluster(r *run, step Step) (done bool, err error) {
	cluster := r.cluster(step)
	if r.its(step) == nil || r.retainsIn(cluster.Namespace) {
		return false, nil
	}
	if step.Kind != "" {
		if done, err = scaleControlPlane(r, Step{Cluster: step.Cluster, Value: step.Kind}); err != nil {
			return done, err
		}
	}
	fleet := r.its(step)
	again := fleet.DeepCopy()
	again.ObjectMeta = metav1.ObjectMeta{
		Namespace: fleet.Namespace, Name: fleet.Name, Labels: fleet.Labels, Annotations: maps.Clone(fleet.Annotations), OwnerReferences: fleet.OwnerReferences,
	}
	maps.DeleteFunc(again.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, "argocd.argoproj.io/") })
	again.Status = fleetv1.ClusterStatus{}
	without, with := r.state.Copy(), r.state.Copy()
	delete(without.FleetClusters, client.ObjectKeyFromObject(fleet))
	if with.FleetClusters[client.ObjectKeyFromObject(fleet)] = again.DeepCopy(); !areSame(without, with) {
		return done, nil
	}
	if removed, err := r.remove(admin, fleet); !removed {
		return done, err
	}
	if err := r.inBetween(step); err != nil {
		return true, err
	}
	return halfDone(r.create(admin, again))
}

const recordKey = domain + "/release"

// noteRecords notes the oldest record of each HelmReleaseProxy.
func (r *run) noteRecords() error {
	var releases addonsv1.HelmReleaseProxyList
	err := admin.List(ctx, &releases)
	for i := range releases.Items {
		its := &releases.Items[i]
		if record := its.Annotations[recordKey]; r.records[its.UID] == "" {
			r.records[its.UID] = record
		}
	}
	return err
}

// setBack plays a restore of etcd, which brings a HelmReleaseProxy back as it was once: the record of its release, or
// only the revision in it, or its status. Its values are newer.
func (r *run) setBack(release *addonsv1.HelmReleaseProxy, what string) (bool, error) {
	record := release.Annotations[recordKey]
	switch what {
	case "Record":
		record = r.records[release.UID]
	case "Revision":
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(record), &fields); err != nil {
			return false, nil //nolint:nilerr // There is no record yet.
		}
		if revision, _ := fields["revision"].(float64); revision > 0 {
			fields["revision"] = revision - 1
		} else {
			fields["revision"] = 1
		}
		text, err := json.Marshal(fields)
		if err != nil {
			return false, err
		}
		record = string(text)
	default:
		before := release.DeepCopy()
		release.Status = addonsv1.HelmReleaseProxyStatus{}
		return true, client.IgnoreNotFound(admin.Status().Patch(ctx, release, client.MergeFrom(before)))
	}
	if record == "" || record == release.Annotations[recordKey] {
		return false, nil
	}
	return true, client.IgnoreNotFound(patch(release, metadata("annotations", recordKey, record)))
}
