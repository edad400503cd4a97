package rollouts

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	// lag is how long Muster may take to carry a decision out, while people change its inputs.
	lag = 5 * time.Second
	// recovers is how long Muster may take to begin after an outage.
	recovers = 2 * time.Second
	// asks is how long Muster may believe that an agent is silent which is not.
	asks = time.Minute
	// blip is for how long a release may be unready without Muster noticing.
	blip = 2 * time.Second
	// rounded is what a soak time may lack: Muster notes times in whole seconds, and events arrive late.
	rounded = 1500 * time.Millisecond
	// remembered is how many lines of the history a Judge keeps.
	remembered = 150
)

// Judge follows one HelmChartProxy, whose Clusters are in its namespace.
type Judge struct {
	namespace string

	mu       sync.Mutex
	now      time.Time
	proxy    *addonsv1.HelmChartProxy
	clusters map[string]*clusterv1.Cluster
	fleet    map[string]*fleetv1.Cluster
	bundles  map[string]*fleetv1.Bundle
	releases map[string]*addonsv1.HelmReleaseProxy
	// deployments are the BundleDeployments by their Clusters.
	deployments map[string]*fleetv1.BundleDeployment
	values      map[client.ObjectKey]map[string]string
	versions    map[string]string // Those of Contents.

	members map[string]*member
	stages  []stage
	// changed is when spec.rollout changed last, and specified when the generation did.
	changed, specified time.Time
	// completed is the HelmChartProxy when a rollout was last noted as completed, and isCompleted says that this event does.
	completed   *addonsv1.HelmChartProxy
	isCompleted bool
	// shown maps each hash that was shown for approval to the wanted contents of the Clusters at that time.
	shown map[string]map[string][]content
	// down are the times at which Muster or Fleet could not work, the last one open while isDown.
	down   []span
	isDown bool

	violations []string
	history    []string
	events     int
	moves      int
}

type span struct{ from, to time.Time }

// member is the state of a Cluster.
type member struct {
	name  string
	stage int
	// staged is since when it is in its stage, and selected whether it is in any.
	staged     time.Time
	isSelected bool
	// wanted is its wanted content, isBlocked says that its template fails, and before are the earlier wanted contents.
	wanted    content
	isBlocked bool
	before    []earlier
	// isTarget says that a Bundle names it, offered is the content that the Bundle has for it, and offers are all of them
	// since the Cluster got its content.
	isTarget bool
	offered  content
	offers   []content
	has      content
	// completed is what it had when the rollout was last completed.
	completed content
	// permitted is when each content was last permitted, approved the content that a person has approved.
	permitted map[content]time.Time
	approved  content
	// isInstalled says that Muster has reported that its release works, and lost is when its BundleDeployment or its values
	// were deleted last.
	isInstalled bool
	lost        time.Time
	// ready is since when it has been ready with its content, and unready since when it no longer is.
	ready, unready time.Time
	// inFlight says that the rollout took a working release away.
	inFlight bool
	// offline is when it was last known to be silent, and aside when it last had no part in rollouts.
	offline, aside time.Time
}

type earlier struct {
	content content
	until   time.Time
}

// NewJudge returns a Judge of a namespace.
func NewJudge(namespace string) *Judge {
	return &Judge{
		namespace: namespace, clusters: map[string]*clusterv1.Cluster{}, fleet: map[string]*fleetv1.Cluster{},
		bundles: map[string]*fleetv1.Bundle{}, releases: map[string]*addonsv1.HelmReleaseProxy{}, deployments: map[string]*fleetv1.BundleDeployment{}, values: map[client.ObjectKey]map[string]string{},
		versions: map[string]string{}, members: map[string]*member{}, shown: map[string]map[string][]content{},
	}
}

// See judges an event.
func (j *Judge) See(event Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now, j.isCompleted = event.At, false
	if j.proxy != nil {
		j.review() // Time has passed.
	}
	if !j.apply(event) || j.proxy == nil {
		return
	}
	j.events++
	j.review()
	for _, name := range slices.Sorted(maps.Keys(j.members)) {
		j.follow(j.members[name])
	}
	if j.isCompleted {
		j.complete()
	}
}

// apply notes an event, and reports whether it is one of this namespace.
func (j *Judge) apply(event Event) bool {
	name, isHere := event.Object.GetName(), event.Object.GetNamespace() == j.namespace
	switch its := event.Object.(type) {
	case *addonsv1.HelmChartProxy:
		if isHere {
			j.applyProxy(its, event.IsDeleted)
		}
	case *addonsv1.HelmReleaseProxy:
		if isHere {
			note(j.releases, name, its, event.IsDeleted)
		}
	case *clusterv1.Cluster:
		if isHere {
			note(j.clusters, name, its, event.IsDeleted)
		}
	case *fleetv1.Cluster:
		if isHere {
			note(j.fleet, name, its, event.IsDeleted)
		}
	case *fleetv1.Bundle:
		if isHere {
			note(j.bundles, name, its, event.IsDeleted)
		}
	case *corev1.ConfigMap:
		j.applyValues(client.ObjectKeyFromObject(its), its.Data, event.IsDeleted)
		return isHere || strings.HasPrefix(its.Namespace, "cluster-"+j.namespace+"-")
	case *fleetv1.Content:
		note(j.versions, name, versionOf(its), event.IsDeleted)
		return false
	case *fleetv1.BundleDeployment:
		return j.applyDeployment(its, event.IsDeleted)
	}
	return isHere
}

func note[T any](all map[string]T, name string, its T, isDeleted bool) {
	if all[name] = its; isDeleted {
		delete(all, name)
	}
}

func (j *Judge) applyProxy(its *addonsv1.HelmChartProxy, isDeleted bool) {
	if isDeleted {
		j.proxy = nil
		return
	}
	before := j.proxy
	j.proxy = its
	if before == nil || before.Generation != its.Generation {
		j.specified = j.now
	}
	if before == nil || before.Generation != its.Generation || !maps.Equal(before.Annotations, its.Annotations) {
		wanted, _ := wanted(its, &clusterv1.Cluster{})
		j.tell("%s: %s; approved %q", its.Name, wanted, its.Annotations[addonsv1.RolloutApprovedAnnotation])
	}
	if before == nil || describe(before.Spec.Rollout) != describe(its.Spec.Rollout) {
		j.changed = j.now
		j.tell("rollout %s", describe(its.Spec.Rollout))
	}
	is, was := ptr.Deref(its.Status.Rollout, addonsv1.RolloutStatus{}), addonsv1.RolloutStatus{}
	if before != nil {
		was = ptr.Deref(before.Status.Rollout, was)
	}
	j.isCompleted = !equality.Semantic.DeepEqual(is.LastCompleted, was.LastCompleted)
	if is.Approval != "" && is.Approval != was.Approval {
		j.show(is.Approval)
	}
	if reason := reasonOf(its); before == nil || reason != reasonOf(before) {
		j.tell("%s", reason)
	}
}

func describe(object any) string {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func reasonOf(proxy *addonsv1.HelmChartProxy) string {
	for _, condition := range proxy.Status.Conditions {
		if condition.Type == addonsv1.RolloutCompletedCondition {
			return condition.Reason + ": " + condition.Message
		}
	}
	return "no rollout"
}

// show notes the contents that a hash may stand for: Muster computed it a moment before it showed it.
func (j *Judge) show(hash string) {
	if j.shown[hash] == nil {
		j.shown[hash] = map[string][]content{}
	}
	for name, m := range j.members {
		j.shown[hash][name] = append(j.shown[hash][name], m.wanted)
		for _, its := range m.before {
			if j.since(its.until) < lag {
				j.shown[hash][name] = append(j.shown[hash][name], its.content)
			}
		}
	}
}

// applyValues notes values. A Cluster whose values are deleted gets the change at once.
func (j *Judge) applyValues(key client.ObjectKey, data map[string]string, isDeleted bool) {
	if j.values[key] = data; !isDeleted {
		return
	}
	delete(j.values, key)
	for name, m := range j.members {
		if its := j.deployments[name]; key.Namespace == j.namespace && its != nil && reads(its.Spec.Options.Helm, key.Name) {
			j.tell("%s loses its values", name)
			m.lost = j.now
		}
	}
}

func reads(options *fleetv1.HelmOptions, configMap string) bool {
	return options != nil && slices.ContainsFunc(options.ValuesFrom, func(from fleetv1.ValuesFrom) bool {
		return from.ConfigMapKeyRef != nil && from.ConfigMapKeyRef.Name == configMap
	})
}

func (j *Judge) applyDeployment(its *fleetv1.BundleDeployment, isDeleted bool) bool {
	if isDeleted {
		for name, there := range j.deployments {
			if there.Namespace == its.Namespace && there.Name == its.Name {
				delete(j.deployments, name)
				return true
			}
		}
		return false
	}
	cluster := its.Labels[fleetv1.ClusterLabel]
	if its.Labels[fleetv1.ClusterNamespaceLabel] != j.namespace || cluster == "" {
		return false
	}
	j.deployments[cluster] = its
	return true
}

// versionOf returns the version of the chart in a Content.
func versionOf(its *fleetv1.Content) string {
	var files struct{ Resources []fleetv1.BundleResource }
	if unzipped, err := gzip.NewReader(bytes.NewReader(its.Content)); err == nil {
		if text, err := io.ReadAll(unzipped); err == nil && json.Unmarshal(text, &files) == nil {
			_, version, _ := oracle.ChartIn(files.Resources)
			return version
		}
	}
	return ""
}

// since returns for how long Muster and Fleet could work since a time.
func (j *Judge) since(at time.Time) time.Duration {
	length := j.now.Sub(at)
	for i, its := range j.down {
		to := its.to
		if j.isDown && i == len(j.down)-1 {
			to = j.now
		}
		from := its.from
		if from.Before(at) {
			from = at
		}
		if to.After(j.now) {
			to = j.now
		}
		length -= max(0, to.Sub(from))
	}
	return length
}

// Disturb says that something does not work until Recover.
func (j *Judge) Disturb() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.isDown {
		j.down, j.isDown = append(j.down, span{from: time.Now()}), true
	}
}

// Recover says that everything works, in a moment.
func (j *Judge) Recover() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.isDown {
		j.down[len(j.down)-1].to, j.isDown = time.Now().Add(recovers), false
	}
}

// Note adds a line to the history.
func (j *Judge) Note(format string, a ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now = time.Now()
	j.tell(format, a...)
}

func (j *Judge) tell(format string, a ...any) {
	if len(j.history) >= remembered {
		j.history = j.history[1:]
	}
	j.history = append(j.history, j.now.Format("15:04:05.000 ")+fmt.Sprintf(format, a...))
}

// Told returns the history.
func (j *Judge) Told() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.history, "\n")
}

// offer is what a Bundle has for a Cluster.
type offer struct {
	content content
	// isTarget says that the Bundle names the Cluster, isHeld that its partitions leave it out, and isKnown that the values
	// are there.
	isTarget, isHeld, isKnown bool
}

// offer returns what there is for a Cluster.
func (j *Judge) offer(cluster string) offer {
	for _, bundle := range j.bundles {
		for i := range bundle.Spec.Targets {
			target := &bundle.Spec.Targets[i]
			if target.ClusterName != cluster {
				continue
			}
			options, version := ptr.Deref(bundle.Spec.Helm, fleetv1.HelmOptions{}), ""
			if version = options.Version; bundle.Spec.HelmOpOptions == nil {
				_, version, _ = oracle.ChartIn(bundle.Spec.Resources)
			}
			values, isThere := j.read(j.namespace, target.Helm)
			return offer{contentOf(version, options.MaxHistory, values), true, !isListed(bundle, cluster), isThere && version != ""}
		}
	}
	return offer{}
}

func isListed(bundle *fleetv1.Bundle, cluster string) bool {
	strategy := bundle.Spec.RolloutStrategy
	return strategy == nil || len(strategy.Partitions) == 0 ||
		slices.ContainsFunc(strategy.Partitions, func(its fleetv1.Partition) bool { return its.ClusterName == cluster })
}

// deployed returns what the agent of a Cluster is to deploy; false if that is not known.
func (j *Judge) deployed(its *fleetv1.BundleDeployment) (content, bool) {
	options := its.Spec.Options.Helm
	if options == nil {
		return "", false
	}
	version := options.Version
	if its.Spec.HelmChartOptions == nil {
		name, _, _ := strings.Cut(its.Spec.DeploymentID, ":")
		version = j.versions[name]
	}
	values, isThere := j.read(its.Namespace, options)
	return contentOf(version, options.MaxHistory, values), isThere && version != ""
}

// read reads the values in a namespace; false if they are not all there.
func (j *Judge) read(namespace string, options *fleetv1.HelmOptions) (values map[string]any, isThere bool) {
	values, isThere = map[string]any{}, true
	for _, from := range ptr.Deref(options, fleetv1.HelmOptions{}).ValuesFrom {
		if from.ConfigMapKeyRef == nil {
			return values, false
		}
		text := j.values[client.ObjectKey{Namespace: namespace, Name: from.ConfigMapKeyRef.Name}][from.ConfigMapKeyRef.Key]
		if layer := map[string]any{}; text == "" || yaml.Unmarshal([]byte(text), &layer) != nil {
			isThere = false
		} else {
			maps.Copy(values, layer)
		}
	}
	return values, isThere
}
