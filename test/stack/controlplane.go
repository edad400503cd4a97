package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/pki"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// auditPolicy records every request once, when it is complete. Tests count requests in this log, and find forbidden
// ones.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
`

// controlPlane is an API server with its etcd and its files.
type controlPlane struct {
	// prefix distinguishes the processes of several control planes.
	prefix string
	dir    string
	port   int
	server string
	etcd   string
	pki    *pki.PKI
	admin  *clientcmdapi.Config
	client *kubernetes.Clientset
}

// startControlPlane starts etcd and kube-apiserver.
func (s *Stack) startControlPlane(ctx context.Context, prefix string) (*controlPlane, error) {
	c := &controlPlane{prefix: prefix, dir: s.planeDir(prefix)}
	if err := os.RemoveAll(c.dir); err != nil {
		return nil, err
	}
	clientPort, etcd, err := s.lease()
	if err != nil {
		return nil, err
	}
	_, peer, err := s.lease()
	if err != nil {
		return nil, err
	}
	var address string
	if c.port, address, err = s.lease(); err != nil {
		return nil, err
	}
	c.server = "https://" + address
	if err := c.prepare(); err != nil {
		return nil, err
	}
	etcdURL, peerURL := "http://"+etcd, "http://"+peer
	c.etcd = etcdURL
	err = s.run(ctx, process.Spec{
		Name: prefix + "etcd", Path: s.tools.Bin("etcd"), Port: clientPort,
		Args: []string{
			"--name=e", "--data-dir=" + filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
			"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL, "--initial-cluster=e=" + peerURL,
		},
		Ready: poll.Answers(http.DefaultClient, etcdURL+"/readyz"),
	})
	if err != nil {
		return nil, err
	}
	return c, s.run(ctx, process.Spec{
		Name: prefix + "kube-apiserver", Path: s.tools.Bin("kube-apiserver"), Port: c.port,
		Args: []string{
			"--etcd-servers=" + etcdURL,
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port),
			"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
			"--tls-cert-file=" + c.pki.Path("apiserver.crt"), "--tls-private-key-file=" + c.pki.Path("apiserver.key"),
			"--client-ca-file=" + c.pki.Path("ca.crt"), "--authorization-mode=RBAC",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + c.pki.Path("apiserver.key"), "--service-account-signing-key-file=" + c.pki.Path("apiserver.key"),
			"--audit-policy-file=" + filepath.Join(c.dir, "audit-policy.yaml"),
			// One file that is never rotated: counting needs the whole log.
			"--audit-log-path=" + c.auditLog(), "--audit-log-maxsize=100000",
			"--allow-privileged",
		},
		Ready: c.ready,
	})
}

func (c *controlPlane) address() APIServer {
	return APIServer{URL: c.server, CAFile: c.pki.Path("ca.crt"), CertFile: c.pki.Path("apiserver.crt"), KeyFile: c.pki.Path("apiserver.key")}
}

func (s *Stack) planeDir(prefix string) string { return filepath.Join(s.dir, prefix+"control-plane") }

func (c *controlPlane) auditLog() string { return filepath.Join(c.dir, "audit.log") }

// prepare writes the files that the processes read, and makes the administrator's client.
func (c *controlPlane) prepare() error {
	var err error
	if c.pki, err = pki.New(filepath.Join(c.dir, "pki")); err != nil {
		return err
	}
	if err := c.pki.Issue("apiserver", "kube-apiserver"); err != nil {
		return err
	}
	if c.admin, err = c.userConfig("admin", "system:masters"); err != nil {
		return err
	}
	config, err := restConfig(c.admin)
	if err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, "audit-policy.yaml"), []byte(auditPolicy), 0o600)
}

// userConfig makes a kubeconfig for a user in these groups.
func (c *controlPlane) userConfig(user string, groups ...string) (*clientcmdapi.Config, error) {
	file := strings.ReplaceAll(user, ":", "-")
	if err := c.pki.Issue(file, user, groups...); err != nil {
		return nil, err
	}
	auth, err := c.pki.User(file)
	if err != nil {
		return nil, err
	}
	return pki.Kubeconfig(c.server, c.pki.CA(), auth), nil
}

// userKubeconfig writes a kubeconfig for a user and returns its path. Every part has a user of its own, so that the
// audit log shows which part sent a request.
func (c *controlPlane) userKubeconfig(user string, groups ...string) (string, error) {
	config, err := c.userConfig(user, groups...)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.dir, "kubeconfigs", strings.ReplaceAll(user, ":", "-"))
	return path, pki.WriteKubeconfig(path, config)
}

// restConfig returns a client configuration without client-side limits.
func restConfig(kubeconfig *clientcmdapi.Config) (*rest.Config, error) {
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

func (c *controlPlane) ready(ctx context.Context) error {
	body, err := c.client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("%w: %s", err, process.LastLines(string(body), 40))
	}
	return nil
}

// baseControllers are needed for ServiceAccounts, garbage collection and the deletion of namespaces.
var baseControllers = []string{
	"garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "serviceaccount-token-controller",
	"root-ca-certificate-publisher-controller", "clusterrole-aggregation-controller",
}

// workloadControllers make Pods for the objects that users write, and taint and untaint nodes.
var workloadControllers = []string{
	"deployment-controller", "replicaset-controller", "daemonset-controller", "job-controller",
	"node-lifecycle-controller", "taint-eviction-controller",
}

// controllerManagerSpec returns the process that runs these controllers. There may be several such processes, each
// with other controllers.
func (s *Stack) controllerManagerSpec(c *controlPlane, name string, controllers []string) (process.Spec, error) {
	kubeconfig, err := c.userKubeconfig("system:kube-controller-manager")
	return process.Spec{
		Name: c.prefix + name, Path: s.tools.Bin("kube-controller-manager"),
		Args: []string{
			"--kubeconfig=" + kubeconfig, "--use-service-account-credentials=true", "--leader-elect=false", "--secure-port=0",
			"--controllers=" + strings.Join(controllers, ","),
			"--service-account-private-key-file=" + c.pki.Path("apiserver.key"), "--root-ca-file=" + c.pki.Path("ca.crt"),
		},
		// It has no readiness endpoint, but its controllers create these objects.
		Ready: func(ctx context.Context) error {
			_, account := c.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			_, root := c.client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return errors.Join(account, root)
		},
	}, err
}

// workloadSpecs builds the programs that Pods need. It returns the process that runs these controllers, and the
// scheduler, which binds Pods to nodes.
func (s *Stack) workloadSpecs(ctx context.Context, c *controlPlane, name string, controllers []string) ([]process.Spec, error) {
	manager, err := s.controllerManagerSpec(c, name, controllers)
	if err != nil {
		return nil, err
	}
	if _, err := parts.Build(ctx, s.tools.Root, parts.Nodes, s.options.Progress); err != nil {
		return nil, err
	}
	kubeconfig, err := c.userKubeconfig("system:kube-scheduler")
	return []process.Spec{manager, {
		Name: c.prefix + "kube-scheduler", Path: s.tools.Bin("kube-scheduler"),
		Args: []string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0"},
	}}, err
}

const downstreamPrefix = "downstream-"

// StartDownstream starts a second API server as a cluster to deploy to, or returns the one that runs already. It
// returns an administrator's kubeconfig with everything embedded, which fits the `value` of a Cluster's kubeconfig
// Secret.
func (s *Stack) StartDownstream(ctx context.Context) ([]byte, error) {
	if s.remote != nil {
		var kubeconfig []byte
		err := s.remote.do("start-downstream", "", &kubeconfig)
		return kubeconfig, err
	}
	if s.downstream == nil {
		plane, err := s.startControlPlane(ctx, downstreamPrefix)
		if err != nil {
			return nil, err
		}
		manager, err := s.controllerManagerSpec(plane, "kube-controller-manager", baseControllers)
		if err != nil {
			return nil, err
		}
		if err := s.run(ctx, manager); err != nil {
			return nil, err
		}
		s.downstream = plane
	}
	if err := pki.WriteKubeconfig(s.DownstreamKubeconfig(), s.downstream.admin); err != nil {
		return nil, err
	}
	return clientcmd.Write(*s.downstream.admin)
}

// DownstreamKubeconfig returns the path of the downstream administrator's kubeconfig.
func (s *Stack) DownstreamKubeconfig() string { return filepath.Join(s.dir, "downstream.kubeconfig") }

// DownstreamAuditLog is AuditLog for the downstream.
func (s *Stack) DownstreamAuditLog(filter AuditFilter) ([]AuditEvent, error) {
	return s.auditLog(downstreamPrefix, filter)
}

// DownstreamKubectl is Kubectl for the downstream.
func (s *Stack) DownstreamKubectl(ctx context.Context, args ...string) (string, error) {
	return s.kubectl(ctx, s.DownstreamKubeconfig(), "", args...)
}
