package random

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// rancherScene is two namespaces with CAPI Clusters and a workspace of Rancher's, with those who change them: users,
// Turtles and Rancher.
type rancherScene struct {
	*player.Player
	rng       *rand.Rand
	workspace string
	// kill kills a program, and starts it again.
	kill  func(process string) error
	steps int

	mu         sync.Mutex
	all        []*downstream
	violations []string
	history    []string
	// events, imported, attached and kills count what was seen.
	events, imported, attached, kills int
}

func newRancherScene(seed int, kill func(string) error) (*rancherScene, error) {
	config, err := env.RESTConfig()
	if err != nil {
		return nil, err
	}
	direct, err := fixture.Client(env)
	if err != nil {
		return nil, err
	}
	s := &rancherScene{
		Player: &player.Player{Admin: insisting(direct), Config: config}, rng: rand.New(rand.NewPCG(uint64(seed), 2)), kill: kill,
		workspace: fmt.Sprintf("rancher-%d-workspace", seed),
	}
	for i, mark := range []string{"", "true"} {
		name := fmt.Sprintf("rancher-%d-team-%d", seed, i)
		for _, cluster := range []string{"a", "b"} {
			s.all = append(s.all, &downstream{namespace: name, name: cluster, facts: facts{namespaceMark: mark}})
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if mark != "" {
			namespace.Labels = map[string]string{player.AutoImport: mark}
		}
		if err := errors.Join(s.Admin.Create(ctx, namespace), s.Admin.Create(ctx, fixture.Class(name, "std", nil))); err != nil {
			return nil, err
		}
	}
	return s, s.Admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.workspace}})
}

// insisting tries again what a webhook that is being restarted cannot answer.
func insisting(direct client.WithWatch) client.Client {
	again := func(try func() error) error {
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			err := try()
			if err == nil || !strings.Contains(err.Error(), "failed calling webhook") || time.Now().After(deadline) {
				return err
			}
		}
	}
	return interceptor.NewClient(direct, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			return again(func() error { return c.Create(ctx, object, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			return again(func() error { return c.Patch(ctx, object, patch, options...) })
		},
	})
}

// change does what has this effect on a Cluster's facts. While it is under way, Muster may act on what was before and
// on what comes after.
func (s *rancherScene) change(d *downstream, effect func(*facts), do func() error) error {
	s.mu.Lock()
	after := d.facts
	effect(&after)
	if after.way() == imports {
		d.since, d.mayImport = time.Time{}, true
	}
	s.mu.Unlock()
	err := do()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		effect(&d.facts)
	}
	d.review()
	return err
}

// play has one of the people do something after another.
func (s *rancherScene) play(steps int) error {
	for s.steps < steps && s.violated() == nil {
		d := s.all[s.rng.IntN(len(s.all))]
		step := drawWeighted(s.rng, rancherSteps, func(its rancherStep) int { return its.weight })
		if !step.can(s.factsOf(d), d) {
			continue
		}
		s.steps++
		s.note("* %s: %s/%s", step.name, d.namespace, d.name)
		if err := s.disturbed(func() error { return step.do(s, d) }); err != nil {
			return fmt.Errorf("%s %s/%s: %w", step.name, d.namespace, d.name, err)
		}
		s.listen([]int{0, 0, 3, 10}[s.rng.IntN(4)])
		if s.rng.IntN(8) == 0 {
			if err := s.settles(); err != nil {
				return err
			}
		}
	}
	return s.settles()
}

// disturbed does something while, now and then, a program is killed in the middle of it.
func (s *rancherScene) disturbed(do func() error) error {
	if s.rng.IntN(6) > 0 {
		return do()
	}
	process := []string{syncerProcess, syncerProcess, webhookProcess}[s.rng.IntN(3)]
	after := time.Duration(s.rng.IntN(200)) * time.Millisecond
	s.note("* %s is killed %s later", process, after)
	s.kills++
	killed := make(chan error, 1)
	go func() {
		time.Sleep(after)
		killed <- s.kill(process)
	}()
	return errors.Join(do(), <-killed)
}

// listen waits for some events; without any for a while, nothing is under way.
func (s *rancherScene) listen(events int) {
	const quiet = 300 * time.Millisecond
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.events
	}
	begin, last := count(), count()
	for since := time.Now(); count() < begin+events && time.Since(since) < quiet; time.Sleep(10 * time.Millisecond) {
		if now := count(); now != last {
			last, since = now, time.Now()
		}
	}
}

func (s *rancherScene) note(format string, of ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, of...))
}

func (s *rancherScene) factsOf(d *downstream) facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.facts
}

func (s *rancherScene) violated() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.violations) == 0 {
		return nil
	}
	return errors.New(strings.Join(s.violations, "\n"))
}

// settles waits until Muster is at rest: every Cluster reports what it should, and has the Fleet Cluster and the
// fields that go with that.
func (s *rancherScene) settles() error {
	s.note("* Muster comes to rest")
	calm := time.Time{}
	err := poll.UntilOr(ctx, "Muster to be at rest", patience, func(context.Context) error {
		for _, d := range s.all {
			if err := s.isSettled(d); err != nil {
				calm = time.Time{}
				return fmt.Errorf("%s/%s: %w; %s", d.namespace, d.name, err, s.factsOf(d))
			}
		}
		if calm.IsZero() {
			calm = time.Now()
		}
		if time.Since(calm) < 300*time.Millisecond {
			return errors.New("it is at rest for less than 300 ms")
		}
		return nil
	}, s.violated)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.all {
		d.mayImport = d.way() == imports
		if len(d.wants) > 1 {
			d.wants = d.wants[len(d.wants)-1:]
		}
	}
	return err
}

func (s *rancherScene) isSettled(d *downstream) error {
	now := s.factsOf(d)
	if now.cluster == nil {
		if now.own != nil || now.isAttached {
			return errors.New("something of Muster's is left")
		}
		return nil
	}
	cluster := &clusterv1.Cluster{}
	if err := s.Admin.Get(ctx, client.ObjectKeyFromObject(now.cluster), cluster); err != nil {
		return err
	}
	its := conditions.Get(cluster, "FleetImported")
	switch want := now.reports(); {
	case its == nil:
		return errors.New("no FleetImported")
	case fmt.Sprintf("%s %s", its.Status, its.Reason) != want:
		return fmt.Errorf("FleetImported is %s %s (%s) instead of %s", its.Status, its.Reason, its.Message, want)
	case now.own == nil && now.way() == imports:
		return errors.New("there is no Fleet Cluster of Muster's")
	case now.own != nil && now.fleet != nil && isManagedBy(now.fleet, attachManager):
		return errors.New("Muster has fields on both Fleet Clusters")
	case now.own == nil && now.way() == attaches:
		return isWhole(now.fleet, cluster)
	}
	return nil
}

const attachManager = "muster-attach"

func isManagedBy(object client.Object, manager string) bool {
	for _, entry := range object.GetManagedFields() {
		if entry.Manager == manager {
			return true
		}
	}
	return false
}

// isWhole reports what an attached Fleet Cluster lacks.
func isWhole(fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) error {
	want := map[string]string{"cluster-namespace." + domain: cluster.Namespace, "own": cluster.Labels["own"]}
	if class := cluster.Spec.Topology.ClassRef.Name; class != "" {
		want["clusterclass-name."+domain], want["clusterclass-namespace."+domain] = class, cluster.Namespace
		group := client.ObjectKey{Namespace: fleet.Namespace, Name: class + "." + cluster.Namespace}
		if err := admin.Get(ctx, group, &fleetv1.ClusterGroup{}); err != nil {
			return err
		}
	}
	for key, value := range want {
		if fleet.Labels[key] != value {
			return fmt.Errorf("the attached Fleet Cluster has label %s=%q instead of %q", key, fleet.Labels[key], value)
		}
	}
	if fleet.Annotations[domain+"/attached-uid"] != string(cluster.UID) || fleet.Spec.TemplateValues == nil || fleet.Spec.TemplateValues.Data["Cluster"] == nil {
		return errors.New("the attached Fleet Cluster lacks the annotation or template values")
	}
	return nil
}
