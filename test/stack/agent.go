package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/test/stack/pod"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// DefaultAgentNamespace is where Fleet's agent lives unless configured otherwise.
const DefaultAgentNamespace = "fleet-addon-agent"

const agentAccount = "fleet-agent"

// errReplaced says that Fleet has made the agent's Deployment and ServiceAccount anew,
// as each of its attempts to import does. A pod would be replaced with them.
var errReplaced = fmt.Errorf("%w: Fleet has replaced the agent's ServiceAccount", poll.ErrGiveUp)

// agent is Fleet's agent on the downstream, as a host process. No kubelet runs the
// Deployment that Fleet put there when it imported the cluster, so the process stands
// for it, with its ServiceAccount.
type agent struct {
	stack     *Stack
	name      string
	namespace string
	health    string
	// account is the ServiceAccount the running process was started with.
	account atomic.Value
}

// StartAgent waits until Fleet has imported the downstream with its agent in this
// namespace, and runs the agent.
func (s *Stack) StartAgent(ctx context.Context, namespace string) error {
	if s.remote != nil {
		return s.remote.do(ctx, "start-agent", namespace, nil)
	}
	if s.downstream == nil {
		return errors.New("there is no downstream to run an agent for")
	}
	a := &agent{stack: s, namespace: namespace, name: "fleet-agent"}
	if namespace != DefaultAgentNamespace {
		a.name += "-" + namespace
	}
	if _, err := s.process(a.name); err == nil {
		return s.Start(ctx, a.name)
	}
	port, err := s.leases.Port(0)
	if err != nil {
		return err
	}
	a.health = fmt.Sprintf("127.0.0.1:%d", port)
	p := s.add(process.Spec{
		Name: a.name, Path: s.tools.Bin("fleetagent"), Port: port,
		Prepare: a.prepare, Ready: a.ready,
	})
	for {
		err := s.startProcess(ctx, p)
		if err == nil {
			break
		}
		if !errors.Is(err, errReplaced) || ctx.Err() != nil {
			return err
		}
		if err := s.Stop(ctx, a.name); err != nil {
			return err
		}
	}
	s.wait.Go(func() { a.followAccount(s.ctx) })
	return nil
}

func (a *agent) prepare(ctx context.Context, spec *process.Spec) error {
	s := a.stack
	err := poll.Until(ctx, "Fleet to import the downstream", defaultReadyTimeout, func(ctx context.Context) error {
		if _, err := s.downstream.client.AppsV1().Deployments(a.namespace).Get(ctx, agentAccount, metav1.GetOptions{}); err != nil {
			return err
		}
		live, err := a.liveAccount(ctx)
		a.account.Store(live)
		return err
	})
	if err != nil {
		return err
	}
	who := &pod.Identity{Server: s.downstream.server, Namespace: a.namespace, Account: agentAccount, Dir: filepath.Join(s.dir, "pods", a.name, "identity")}
	if err := who.Write(ctx, s.downstream.pki.CA(), s.downstream.client); err != nil {
		return err
	}
	s.wait.Go(func() { who.Follow(s.ctx, s.downstream.client) })
	spec.Env = append(electionEnv(),
		"HOME="+s.dir, "TMPDIR="+s.dir, "KUBECONFIG="+who.Kubeconfig(),
		"NAMESPACE="+a.namespace, "AGENT_SCOPE="+a.namespace, "CHECKIN_INTERVAL=15m",
		"FLEET_AGENT_METRICS_BIND_ADDRESS=0", "FLEET_AGENT_PROBE_BIND_ADDRESS="+a.health,
		"FLEET_AGENT_PPROF_DISABLED=true",
	)
	return nil
}

// ready is reached once the agent has registered: only then it serves its probes.
func (a *agent) ready(ctx context.Context) error {
	if live, err := a.liveAccount(ctx); err == nil && live != a.account.Load() {
		return errReplaced
	}
	return poll.Answers(http.DefaultClient, "http://"+a.health+"/readyz")(ctx)
}

func (a *agent) liveAccount(ctx context.Context) (types.UID, error) {
	account, err := a.stack.downstream.client.CoreV1().ServiceAccounts(a.namespace).Get(ctx, agentAccount, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return account.UID, nil
}

// followAccount replaces the running process when Fleet imports the cluster again.
func (a *agent) followAccount(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		live, err := a.liveAccount(ctx)
		p, known := a.stack.process(a.name)
		if err != nil || known != nil || live == a.account.Load() || !p.Running() {
			continue
		}
		a.stack.say("Fleet has imported the downstream again: replacing its agent")
		if err := a.stack.Restart(ctx, a.name); err != nil && ctx.Err() == nil {
			a.stack.say("%s: %v", a.name, err)
		}
	}
}
