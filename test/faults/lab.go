package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/repository"
	"github.com/muster-fleet/muster/test/faults/proxy"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// Names of processes.
const (
	syncer        = "muster-syncer"
	webhook       = "muster-webhook"
	secondSyncer  = syncer + "-2"
	secondWebhook = webhook + "-2"

	registrar       = "muster-registrar"
	secondRegistrar = registrar + "-2"

	charts       = "muster-charts"
	secondCharts = charts + "-2"

	apiServer   = "kube-apiserver"
	etcd        = "etcd"
	controllers = "kube-controller-manager"
	certManager = "cert-manager"
)

// People. The first may do everything, and is still subject to RBAC, unlike an
// administrator; the second may make Clusters, but not see classes.
const (
	author   = "author"
	intruder = "intruder"
)

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

// lab is a stack with two replicas of each program, in which faults strike, one run
// after another.
type lab struct {
	env     *stack.Stack
	kubelet *kubelet
	stop    context.CancelFunc

	admin, author, intruder client.Client

	mu      sync.Mutex
	proxies map[string]*proxy.Proxy
	runs    int
	// registrars says that the optional registrar runs.
	registrars bool
	// repo is the repository of charts, where the optional component helm runs.
	repo *repository.Repository
}

// newLab starts a stack.
func newLab(ctx context.Context, p built, progress io.Writer) (*lab, error) {
	background, stop := context.WithCancel(context.Background())
	l := &lab{stop: stop, proxies: map[string]*proxy.Proxy{}}
	var err error
	l.env, err = stack.Up(ctx, stack.Options{
		Profile: stack.API, Muster: true, Tools: p.tools, Binaries: p.programs, Progress: progress,
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
	var err error
	if l.admin, err = fixture.Client(l.env); err != nil {
		return err
	}
	for name, into := range map[string]*client.Client{author: &l.author, intruder: &l.intruder} {
		if *into, err = fixture.ClientAs(l.env, name); err != nil {
			return err
		}
	}
	return l.env.Apply(ctx, people)
}

// front puts a proxy between a process and the API server.
func (l *lab) front(ctx context.Context, process string, server stack.APIServer) (string, error) {
	ca, err := os.ReadFile(server.CAFile)
	if err != nil {
		return "", err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return "", fmt.Errorf("%s holds no certificate", server.CAFile)
	}
	certificate, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	if err != nil {
		return "", err
	}
	p, address, err := proxy.Serve(ctx, server.URL, roots, certificate)
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxies[process] = p
	return address, nil
}

// proxiesOf returns the proxies in front of some processes.
func (l *lab) proxiesOf(processes ...string) []*proxy.Proxy {
	l.mu.Lock()
	defer l.mu.Unlock()
	var result []*proxy.Proxy
	for _, process := range processes {
		result = append(result, l.proxies[process])
	}
	return result
}

func (l *lab) close() error {
	l.stop()
	if l.kubelet != nil {
		l.kubelet.wait()
	}
	if l.repo != nil {
		l.repo.Close()
	}
	return l.env.Down()
}
