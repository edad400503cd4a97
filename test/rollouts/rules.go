package rollouts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// review updates the state of each Cluster, and records which of them may get a change now.
func (j *Judge) review() {
	stages, of := assign(j.proxy, j.clusters)
	j.stages = stages
	maps.DeleteFunc(j.members, func(name string, _ *member) bool { return j.clusters[name] == nil })
	for name := range j.clusters {
		m := j.members[name]
		if m == nil {
			m = &member{name: name, staged: j.now, permitted: map[content]time.Time{}}
			j.members[name] = m
		}
		number, isSelected := of[name]
		if m.isSelected != isSelected || m.stage != number {
			m.isSelected, m.stage, m.staged = isSelected, number, j.now
		}
		j.wish(m)
		j.observe(m)
		if j.isAside(m) {
			m.aside = j.now
		}
	}
	for _, release := range j.releases {
		if m := j.members[release.Spec.ClusterRef.Name]; m != nil {
			m.isInstalled = m.isInstalled || m.isTarget && meta.IsStatusConditionTrue(release.Status.Conditions, addonsv1.HelmReleaseReadyCondition)
		}
	}
	j.permit()
}

// wish notes the wanted content of a Cluster, and whether a person has approved it.
func (j *Judge) wish(m *member) {
	want, isRendered := wanted(j.proxy, j.clusters[m.name])
	if want != m.wanted {
		m.before = slices.DeleteFunc(append(m.before, earlier{m.wanted, j.now}), func(its earlier) bool { return j.since(its.until) > lag })
		m.wanted = want
	}
	m.isBlocked = !isRendered
	if m.approved != want {
		m.approved = ""
	}
	if slices.Contains(j.shown[j.proxy.Annotations[addonsv1.RolloutApprovedAnnotation]][m.name], want) {
		m.approved = want
	}
}

// observe notes what the BundleDeployment of a Cluster says.
func (j *Judge) observe(m *member) {
	its := j.deployments[m.name]
	if its == nil {
		m.lost, m.ready = j.now, time.Time{}
	}
	if isReady := its != nil && isCurrent(its) && isDeployed(its) && its.Status.Ready; isReady {
		if m.ready.IsZero() || !m.unready.IsZero() && j.now.Sub(m.unready) > blip {
			m.ready = j.now
		}
		m.unready = time.Time{}
		m.inFlight = m.inFlight && m.has != m.offered
	} else if m.unready.IsZero() {
		m.unready = j.now
	}
	if fleet := j.fleet[m.name]; fleet != nil && !fleet.Status.Agent.LastSeen.IsZero() && j.now.Sub(fleet.Status.Agent.LastSeen.Time) > offlineAfter(j.proxy) {
		m.offline = j.now
	}
}

// isAside reports whether a rollout continues without a Cluster.
func (j *Judge) isAside(m *member) bool {
	cluster := j.clusters[m.name]
	return !m.isSelected || !m.isInstalled || j.fleet[m.name] == nil || !cluster.DeletionTimestamp.IsZero() || capiannotations.IsPaused(cluster, cluster)
}

func (j *Judge) isOffline(m *member) bool {
	return !m.offline.IsZero() && j.since(m.offline) < asks+lag
}

// isFailing reports whether the wanted content fails on a Cluster.
func (j *Judge) isFailing(m *member) bool {
	its := j.deployments[m.name]
	return m.isBlocked || m.has == m.wanted && its != nil && !isDeployed(its)
}

// isDone reports whether a Cluster has its wanted content, and has been ready with it for the soak time.
func (j *Judge) isDone(m *member) bool {
	return !m.isBlocked && m.has == m.wanted && m.unready.IsZero() && j.now.Sub(m.ready) >= j.stages[m.stage].soak-rounded
}

// closed says why the gate of a stage is closed; empty if it is open.
func (j *Judge) closed(number int) string {
	failing := make([]int, len(j.stages))
	for _, name := range slices.Sorted(maps.Keys(j.members)) {
		m := j.members[name]
		if j.isAside(m) {
			continue
		}
		if j.isFailing(m) && !j.isOffline(m) {
			failing[m.stage]++
		}
		if m.stage < number && !j.isOffline(m) && !j.isDone(m) {
			return fmt.Sprintf("%s of stage %q is not done: it is to have %s, has %s, ready for %s", name, j.stages[m.stage].name, m.wanted, m.has, j.readyFor(m))
		}
	}
	for i, count := range failing {
		if count > j.stages[i].maxFailing {
			return fmt.Sprintf("the change fails on %d Clusters of stage %q", count, j.stages[i].name)
		}
	}
	return ""
}

func (j *Judge) readyFor(m *member) time.Duration {
	if m.ready.IsZero() || !m.unready.IsZero() {
		return 0
	}
	return j.now.Sub(m.ready)
}

// permit records which Clusters may get their wanted content now.
func (j *Judge) permit() {
	for _, m := range j.members {
		if m.isSelected && !m.isBlocked && j.goesBack(m) && !j.isPaused(m) {
			m.permitted[m.wanted] = j.now
		}
	}
	for number, its := range j.stages {
		if j.closed(number) != "" {
			continue
		}
		for _, m := range j.members {
			if m.stage == number && m.isSelected && !m.isBlocked && (!its.isManual || m.approved == m.wanted) && !j.isPaused(m) {
				m.permitted[m.wanted] = j.now
			}
		}
	}
}

func (j *Judge) isPaused(m *member) bool {
	cluster := j.clusters[m.name]
	return capiannotations.IsPaused(cluster, cluster)
}

// follow judges the state of a Cluster: the content that its Bundle has for it, and the content that its agent
// should deploy.
func (j *Judge) follow(m *member) {
	its, offered := j.deployments[m.name], j.offer(m.name)
	if m.isTarget = offered.isTarget; !m.isTarget {
		m.isInstalled, m.inFlight, m.offered, m.completed = false, false, "", ""
	}
	switch {
	case offered.isHeld:
		m.offered = m.has
	case offered.isKnown && offered.content != m.offered:
		j.judge(m, offered.content, "is offered")
		m.offered, m.offers = offered.content, append(m.offers, offered.content)
	}
	if its == nil {
		m.has = ""
		return
	}
	if has, isKnown := j.deployed(its); isKnown && has != m.has {
		if !slices.Contains(m.offers, has) {
			j.judge(m, has, "gets")
		}
		j.tell("%s has %s", m.name, has)
		m.has, m.offers, m.ready = has, []content{has, m.offered}, time.Time{}
	}
	j.observe(m)
}

// lacksValues reports whether the values that a Cluster last got do not exist. It gets the change at once, but not while
// Muster is stopped or cannot write.
func (j *Judge) lacksValues(m *member) bool {
	its := j.deployments[m.name]
	if its == nil {
		return false
	}
	_, areThere := j.read(j.namespace, its.Spec.Options.Helm)
	return !areThere
}

// judge checks that a Cluster was allowed to get a change.
func (j *Judge) judge(m *member, to content, how string) {
	isFree := !m.isInstalled || j.since(m.lost) < lag || j.lacksValues(m)
	j.tell("%s of stage %q %s %s%s", m.name, j.stages[m.stage].name, how, to, map[bool]string{true: ", being new"}[isFree])
	if isFree || to == m.has {
		return
	}
	j.moves++
	if at, found := m.permitted[to]; !found || j.since(at) > lag {
		j.violation("%s of stage %q %s %s, and has %s; it is to have %s; %s", m.name, j.stages[m.stage].name, how, to, m.has, m.wanted, j.forbidden(m, to))
	}
	if !m.unready.IsZero() || j.since(m.ready) < blip || m.has != m.offered {
		return // What did not work before makes nothing unavailable.
	}
	m.inFlight = true
	// Muster may not know of the latest changes yet.
	if most := j.stages[m.stage].maxUnavailable; j.since(j.changed) > lag && j.since(m.staged) > lag {
		if lost := j.unavailable(m.stage); len(lost) > most {
			j.violation("%s of stage %q %s %s: then %d are unavailable, and %d may be: %s", m.name, j.stages[m.stage].name, how, to, len(lost), most, strings.Join(lost, ", "))
		}
	}
}

// forbidden says why a change is not permitted.
func (j *Judge) forbidden(m *member, to content) string {
	switch why := j.closed(m.stage); {
	case why != "":
		return why
	case to != m.wanted:
		return "nobody wants that"
	case j.isPaused(m):
		return "the Cluster is paused"
	case m.approved != to:
		return "nobody has approved that"
	}
	return "it has become permitted just now"
}

// complete judges that Muster notes a rollout as completed: each Cluster must have what it wants, or what it wanted a moment
// ago under the same spec.
func (j *Judge) complete() {
	j.completed = j.proxy
	isCurrent := j.proxy.Status.ObservedGeneration == j.proxy.Generation
	for _, name := range slices.Sorted(maps.Keys(j.members)) {
		m := j.members[name]
		m.completed = m.has
		wantedIt := func(its earlier) bool { return its.content == m.has && its.until.After(j.specified) }
		isAside := j.since(m.aside) < lag || j.since(m.lost) < lag || j.since(m.staged) < lag || j.isOffline(m)
		if isCurrent && !isAside && m.has != m.wanted && !slices.ContainsFunc(m.before, wantedIt) {
			j.violation("the rollout is noted as completed, and %s is to have %s, has %s", name, m.wanted, m.has)
		}
	}
}

// goesBack reports whether a Cluster wants what it had when the rollout was last completed; if it has joined since, what it
// would have had. It waits for no stage.
func (j *Judge) goesBack(m *member) bool {
	if j.completed == nil || m.completed != "" {
		return m.completed == m.wanted
	}
	last, _ := wanted(j.completed, j.clusters[m.name])
	return last == m.wanted
}

// unavailable returns the Clusters of a stage that are without a working release, and have been for longer than Muster
// takes to notice, or that the rollout took it away from.
func (j *Judge) unavailable(number int) (names []string) {
	for _, m := range j.members {
		isLost := m.inFlight || !m.unready.IsZero() && j.since(m.unready) > lag
		if m.stage == number && isLost && j.since(m.staged) > lag && !j.isAside(m) && !j.isOffline(m) {
			names = append(names, m.name)
		}
	}
	slices.Sort(names)
	return names
}

func (j *Judge) violation(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	j.tell("WRONG: %s", text)
	j.violations = append(j.violations, text)
}

// Verdict returns all violations, with the history.
func (j *Judge) Verdict() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.violations) == 0 {
		return nil
	}
	return fmt.Errorf("%s\n--- the history:\n%s", strings.Join(j.violations, "\n"), strings.Join(j.history, "\n"))
}

// lacking says what keeps a rollout from being complete; empty if it is. Those Clusters do not count.
func (j *Judge) lacking(without map[string]bool) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.proxy == nil {
		return "there is no HelmChartProxy"
	}
	reason := reasonOf(j.proxy)
	if j.proxy.Status.ObservedGeneration != j.proxy.Generation || !strings.HasPrefix(reason, addonsv1.RolloutCompletedReason+":") {
		return reason
	}
	for _, name := range slices.Sorted(maps.Keys(j.members)) {
		if m := j.members[name]; m.isSelected && !without[name] && (m.has != m.wanted || !m.unready.IsZero()) {
			return fmt.Sprintf("%s is to have %s, has %s, ready for %s", name, m.wanted, m.has, j.readyFor(m))
		}
	}
	return ""
}

// Seen says how much was judged.
func (j *Judge) Seen() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprintf("%d events, %d changes taken over, %d hashes shown for approval", j.events, j.moves, len(j.shown))
}
