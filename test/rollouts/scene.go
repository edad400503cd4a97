package rollouts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	clusterCount = 6
	proxyName    = "web"
	helmSecret   = "repository"
	// patience is how long a rollout of all stages may take: it soaks in each of them.
	patience = 2 * time.Minute
)

// Scene is a namespace with Clusters and a HelmChartProxy, and the people who change them.
type Scene struct {
	*Judge
	rng    *rand.Rand
	admin  client.WithWatch
	agents *agents
	// promoter has the verb promote on the HelmChartProxy, editor all the others that it takes.
	promoter, editor client.Client
	// kill kills a program, which comes back; nil if the caller does so itself.
	kill func(process string) error
	// retries has people try again what the API server cannot answer.
	retries bool
	// Steps counts what people did.
	Steps int

	stop    context.CancelFunc
	wait    sync.WaitGroup
	problem error
}

// Options say what a Scene is played on.
type Options struct {
	Env    *stack.Stack
	Charts *repository.Repository
	// Namespace is the Scene's, which does not exist.
	Namespace string
	Seed      uint64
	// Kill kills a program, and starts it again.
	Kill func(process string) error
	// Retries says that the API server may be away.
	Retries bool
}

// Publish puts the charts into a repository.
func Publish(charts *repository.Repository) error {
	for _, version := range versions {
		if err := charts.Publish(chartName, version, map[string]string{"values.yaml": "{}"}); err != nil {
			return err
		}
	}
	return nil
}

// New makes a Scene, and waits until its HelmChartProxy is on all Clusters.
func New(ctx context.Context, o Options) (*Scene, error) {
	admin, err := fixture.Client(o.Env)
	if err != nil {
		return nil, err
	}
	s := &Scene{
		Judge: NewJudge(o.Namespace), rng: rand.New(rand.NewPCG(o.Seed, 1)), admin: admin, agents: newAgents(admin, o.Namespace),
		kill: o.Kill, retries: o.Retries,
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Namespace}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: helmSecret}, Data: o.Charts.Secret()}
	for _, object := range []client.Object{namespace, secret} {
		if err := admin.Create(ctx, object); err != nil {
			return nil, err
		}
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.wait.Go(func() {
		if err := follow(background, o.Env.EtcdURL(), s.See); background.Err() == nil {
			s.fail(fmt.Errorf("following etcd: %w", err))
		}
	})
	s.agents.play(background)
	if err := s.begin(ctx, o); err != nil {
		s.End()
		return nil, err
	}
	return s, nil
}

// begin makes the people, the Clusters and the HelmChartProxy.
func (s *Scene) begin(ctx context.Context, o Options) (err error) {
	if s.promoter, err = s.person(ctx, o.Env, "promoter", "get", "patch", "promote"); err != nil {
		return err
	}
	if s.editor, err = s.person(ctx, o.Env, "editor", "get", "patch"); err != nil {
		return err
	}
	for i := range clusterCount {
		if err := s.addCluster(ctx, i); err != nil {
			return err
		}
	}
	if err := s.admin.Create(ctx, s.firstProxy(o.Charts.URL)); err != nil {
		return err
	}
	return s.Completes(ctx)
}

func (s *Scene) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = err
}

// person returns the client of a user with these verbs on the HelmChartProxy.
func (s *Scene) person(ctx context.Context, env *stack.Stack, name string, verbs ...string) (client.Client, error) {
	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: name}
	user := name + "-of-" + s.namespace
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"addons.cluster.x-k8s.io"}, Resources: []string{"helmchartproxies"}, Verbs: verbs},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	for _, object := range []client.Object{role, binding} {
		if err := s.admin.Create(ctx, object); err != nil {
			return nil, err
		}
	}
	return fixture.ClientAs(env, user)
}

func clusterName(number int) string { return fmt.Sprintf("c%d", number) }

// addCluster makes a Cluster that Muster imports.
func (s *Scene) addCluster(ctx context.Context, number int) error {
	cluster := fixture.Cluster(s.namespace, clusterName(number), "", "")
	cluster.Labels = map[string]string{chosen: "yes", who: "1", tier: []string{"canary", "production", ""}[number%3]}
	if err := s.admin.Create(ctx, cluster); err != nil {
		return err
	}
	return fixture.Initialize(ctx, s.admin, cluster)
}

func (s *Scene) firstProxy(url string) *addonsv1.HelmChartProxy {
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: proxyName}}
	proxy.Spec = addonsv1.HelmChartProxySpec{
		ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{chosen: "yes"}},
		RepoURL:         url, ChartName: chartName, Version: versions[0], ValuesTemplate: template(generations[0]),
		Download:    one(s.rng, addonsv1.DownloadManager, addonsv1.DownloadAgent),
		Credentials: &addonsv1.Credentials{Secret: corev1.SecretReference{Name: helmSecret}, Key: "config.json"},
		TLSConfig:   &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: helmSecret}},
		Rollout:     drawRollout(s.rng),
	}
	return proxy
}

func (s *Scene) proxyNow(ctx context.Context) (*addonsv1.HelmChartProxy, error) {
	proxy := &addonsv1.HelmChartProxy{}
	err := s.admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: proxyName}, proxy)
	return proxy, err
}

// Play has people do one thing after another, until the context ends or they have done so many; 0 for any number.
func (s *Scene) Play(ctx context.Context, steps int) error {
	for ctx.Err() == nil && (steps == 0 || s.Steps < steps) {
		if err := s.step(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// step does one thing, and then waits for some events.
func (s *Scene) step(ctx context.Context) error {
	total := 0
	for _, its := range operations {
		total += its.weight
	}
	pick := s.rng.IntN(total)
	its := operations[slices.IndexFunc(operations, func(its operation) bool { pick -= its.weight; return pick < 0 })]
	number := s.rng.IntN(clusterCount)
	s.Steps++
	s.Note("* %s (%s)", its.name, clusterName(number))
	err := its.do(ctx, s, clusterName(number))
	for s.retries && isAway(err) && ctx.Err() == nil {
		pause(ctx, again)
		err = its.do(ctx, s, clusterName(number))
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", its.name, clusterName(number), err)
	}
	s.listen(ctx, one(s.rng, 0, 0, 5, 10, 20, 40))
	return nil
}

// isAway reports whether an error says that the API server is away.
func isAway(err error) bool {
	status := apierrors.APIStatus(nil)
	return err != nil && (!errors.As(err, &status) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err))
}

// listen waits for some events; without any, nothing is under way.
func (s *Scene) listen(ctx context.Context, events int) {
	const quiet = 300 * time.Millisecond
	begin, last := s.count(), s.count()
	for since := time.Now(); s.count() < begin+events && time.Since(since) < quiet && ctx.Err() == nil; pause(ctx, works) {
		if now := s.count(); now != last {
			last, since = now, time.Now()
		}
	}
}

// settle waits until the rollout waits for people.
func (s *Scene) settle(ctx context.Context) {
	const longest = 5 * time.Second
	isMoving := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		reason, _, _ := strings.Cut(reasonOf(s.proxy), ":")
		return reason == addonsv1.RolloutProgressingReason || reason == addonsv1.RolloutSoakingReason
	}
	pause(ctx, again)
	for since := time.Now(); isMoving() && time.Since(since) < longest && ctx.Err() == nil; {
		pause(ctx, works)
	}
}

func (s *Scene) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// CompletesWithout rolls a change out while the agent of a Cluster is silent, which keeps the rollout from that Cluster
// only. Muster has just been started: else it may take a minute to ask how silent the agent is.
func (s *Scene) CompletesWithout(ctx context.Context) error {
	name := clusterName(s.rng.IntN(clusterCount))
	s.Note("* %s is silent", name)
	if err := cmp.Or(s.agents.become(ctx, name, Silent), s.kill(Muster), operations[0].do(ctx, s, name)); err != nil {
		return err
	}
	return s.reaches(ctx, map[string]bool{name: true})
}

// Completes mends all, approves what waits for that, and waits until the rollout is complete.
func (s *Scene) Completes(ctx context.Context) error {
	for i := range clusterCount {
		if err := s.mend(ctx, clusterName(i)); err != nil {
			return err
		}
	}
	s.Note("* all is mended")
	return s.reaches(ctx, nil)
}

func (s *Scene) mend(ctx context.Context, name string) error {
	if err := s.agents.become(ctx, name, Healthy); err != nil {
		return err
	}
	return s.patchCluster(ctx, name, func(cluster *clusterv1.Cluster) {
		delete(cluster.Annotations, clusterv1.PausedAnnotation)
		if cluster.Labels[who] == badly {
			cluster.Labels[who] = "1"
		}
	})
}

// reaches waits until the rollout is complete, for all but these Clusters. It fails when a Judge has found something wrong.
func (s *Scene) reaches(ctx context.Context, without map[string]bool) error {
	err := poll.UntilOr(ctx, "the rollout to be complete", patience, func(ctx context.Context) error {
		if err := s.approveWhatWaits(ctx); err != nil {
			return err
		}
		if lacking := s.lacking(without); lacking != "" {
			return errors.New(lacking)
		}
		return nil
	}, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.problem
	})
	if err != nil {
		return fmt.Errorf("%w\n--- the history:\n%s", err, s.Told())
	}
	return s.Verdict()
}

// End ends the agents and the Judge.
func (s *Scene) End() {
	s.stop()
	s.wait.Wait()
	s.agents.wait.Wait()
}

// Close deletes all, which takes agents.
func (s *Scene) Close(ctx context.Context) error {
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: proxyName}}
	if err := s.admin.Delete(ctx, proxy); client.IgnoreNotFound(err) != nil {
		return err
	}
	if err := poll.Until(ctx, "the releases to be uninstalled", patience, func(ctx context.Context) error {
		if err := s.admin.Get(ctx, client.ObjectKeyFromObject(proxy), proxy); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the HelmChartProxy is there (%w)", err)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.admin.DeleteAllOf(ctx, &clusterv1.Cluster{}, client.InNamespace(s.namespace)); err != nil {
		return err
	}
	return s.admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
}
