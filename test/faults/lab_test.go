package faults

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/faults/proxy"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

// Names of processes.
const (
	syncer      = "muster-syncer"
	webhook     = "muster-webhook"
	registrar   = "muster-registrar"
	helm        = "muster-helm"
	apiServer   = "kube-apiserver"
	etcd        = "etcd"
	controllers = "kube-controller-manager"
	certManager = "cert-manager"
)

// replicas are the processes of a program of Muster.
func replicas(program string) []string { return []string{program, program + "-2"} }

// people are two users. The first may do everything, and is still subject to RBAC, unlike an administrator; the
// second may make Clusters, but not see classes.
const people = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: faults-author}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: author}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: faults-intruder}
rules: [{apiGroups: [cluster.x-k8s.io], resources: [clusters], verbs: [get, create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: faults-intruder}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: faults-intruder}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: intruder}]
---
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec:
  cluster:
    # Clusters can be taken out of Fleet and back in by a label. Nothing is kept that
    # would depend on when.
    selector: {matchExpressions: [{key: env, operator: NotIn, values: [dev]}]}
    onDeselect: Delete
`

// lab is a stack with two replicas of each program. Faults strike in it, one run after another.
type lab struct {
	env     *stack.Stack
	kubelet *kubelet
	stop    context.CancelFunc

	admin, author, intruder client.Client

	mu      sync.Mutex
	proxies map[string]*proxy.Proxy
	runs    int
	// registrars means that the optional registrar runs.
	registrars bool
	// repo is the repository of charts, if the optional component helm runs.
	repo *repository.Repository
}

// newLab starts a stack.
func newLab(ctx context.Context) (*lab, error) {
	background, stop := context.WithCancel(context.Background())
	l := &lab{stop: stop, proxies: map[string]*proxy.Proxy{}}
	var err error
	l.env, err = stack.Up(ctx, stack.Options{
		Profile: stack.API, Muster: true, Parts: []parts.Module{parts.Fleet},
		Front: func(process string, server stack.APIServer) (string, error) {
			return l.front(background, process, server)
		},
	})
	if err != nil {
		stop()
		return nil, err
	}
	if err := l.prepare(ctx); err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.kubelet = newKubelet(background, l.env)
	return l, nil
}

func (l *lab) prepare(ctx context.Context) error {
	for _, deployment := range []string{syncer, webhook} {
		if _, err := l.env.StartReplica(ctx, deployment); err != nil {
			return err
		}
	}
	admin, err := fixture.Client(l.env)
	if err != nil {
		return err
	}
	author, err := fixture.ClientAs(l.env, "author")
	if err != nil {
		return err
	}
	intruder, err := fixture.ClientAs(l.env, "intruder")
	if err != nil {
		return err
	}
	l.admin, l.author, l.intruder = admin, author, intruder
	return l.env.Apply(ctx, people)
}

// front puts a proxy between a process and the API server.
func (l *lab) front(ctx context.Context, process string, server stack.APIServer) (string, error) {
	p, address, err := proxy.Front(ctx, server)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxies[process] = p
	return address, err
}

// proxiesOf returns the proxies in front of those of the programs that run.
func (l *lab) proxiesOf(programs ...string) (result []*proxy.Proxy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, program := range programs {
		for _, process := range replicas(program) {
			if p := l.proxies[process]; p != nil {
				result = append(result, p)
			}
		}
	}
	return result
}

func (l *lab) close() error {
	l.stop()
	if l.kubelet != nil {
		l.kubelet.done.Wait()
	}
	if l.repo != nil {
		l.repo.Close()
	}
	return l.env.Down()
}

const (
	kubeletInterval = 100 * time.Millisecond
	// firstBackOff is how long a kubelet waits before it starts a container for the second time; the wait then
	// doubles each time.
	firstBackOff = 10 * time.Second
)

// kubelet restarts ended processes, except those that a fault holds down.
type kubelet struct {
	env  *stack.Stack
	done sync.WaitGroup

	mu       sync.Mutex
	locked   map[string]bool
	starts   map[string]int
	notUntil map[string]time.Time
}

func newKubelet(ctx context.Context, env *stack.Stack) *kubelet {
	k := &kubelet{env: env, locked: map[string]bool{}}
	k.reset()
	k.hold(apiServer, etcd) // The fault that stops them starts them.
	k.done.Go(func() {
		for sleep(ctx, kubeletInterval) == nil {
			for _, process := range k.env.Processes() {
				if !process.Running && k.isDue(process.Name) {
					// It fails only when the stack goes down.
					_ = k.env.Respawn(process.Name)
				}
			}
		}
	})
	return k
}

func (k *kubelet) isDue(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locked[name] || time.Now().Before(k.notUntil[name]) {
		return false
	}
	k.notUntil[name] = time.Now().Add(firstBackOff << k.starts[name])
	k.starts[name]++
	return true
}

// hold keeps ended processes down until they are released.
func (k *kubelet) hold(names ...string) { k.set(true, names) }

func (k *kubelet) release(names ...string) { k.set(false, names) }

func (k *kubelet) set(isLocked bool, names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		k.locked[name] = isLocked
	}
}

// reset forgets how often processes were started, so that each run begins anew.
func (k *kubelet) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts, k.notUntil = map[string]int{}, map[string]time.Time{}
}
