package channels

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

var ctx = context.Background()

// scene is an empty API server, a checkout, and a shell in it.
type scene struct {
	*testing.T
	*fixture.Shell
	env       *stack.Stack
	admin     client.Client
	namespace string
	checkout  string
	// jobs holds the output of each Job by its name.
	jobs sync.Map
}

// newScene starts an API server on which cert-manager works and Muster is not installed. The test then installs
// Muster into this namespace.
func newScene(t *testing.T, namespace string) *scene {
	t.Helper()
	root, err := stack.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	env, err := stack.Up(ctx, stack.Options{Profile: stack.API, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t, env: env, namespace: namespace, checkout: t.TempDir()}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range env.Processes() {
				if strings.HasPrefix(p.Name, "muster-") {
					t.Logf("the end of the log of %s:\n%s", p.Name, env.LogTail(p.Name))
				}
			}
		}
		if err := env.Down(); err != nil {
			t.Error(err)
		}
	})
	if s.Shell, err = fixture.NewShell(env, t.TempDir(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	// No program listens at this proxy's address, so the commands can download nothing.
	s.Dir, s.Env = s.checkout, []string{"HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1,localhost"}
	_, helm := fixture.Program("tools/helm", "helm.sh/helm/v4/cmd/helm", s.Tools)
	_, clusterctl := fixture.Clusterctl(s.Tools)
	if err := errors.Join(helm, clusterctl); err != nil {
		t.Fatal(err)
	}
	if s.admin, err = fixture.Client(env); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"manifests", "certs", "charts"} {
		if err := os.CopyFS(filepath.Join(s.checkout, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
	}
	// `make dist` runs the same command.
	dist := exec.Command("go", "run", "./hack/channels", "dist", filepath.Join(s.checkout, "dist"))
	dist.Dir = root
	if out, err := dist.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return s
}

// sh runs the guide's commands unchanged, and returns their output.
func (s *scene) sh(commands string) string {
	s.Helper()
	out, err := s.try(commands)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

func (s *scene) try(commands string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	begin := time.Now()
	_, out, err := s.Shell.Run(limited, s.env.Kubeconfig, commands)
	if err == nil {
		s.Logf("%s\n%s(%s)", strings.TrimSpace(commands), out, poll.Since(begin))
	}
	return out, err
}

// runs starts the programs of the Deployments, and reports on the Deployments as the kubelets of a cluster would.
// Deleting a Deployment ends its process. Until all are deleted, Jobs run as well.
func (s *scene) runs() {
	s.Helper()
	g := NewWithT(s.T)
	names, err := s.env.Adopt(ctx, s.namespace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names).To(ConsistOf("muster-webhook", "muster-syncer"))
	watching, stop := context.WithCancel(ctx)
	var done = make(chan struct{})
	go func() {
		defer close(done)
		s.plays(watching, names)
	}()
	s.Cleanup(func() { stop(); <-done })
	for _, name := range names {
		s.available(s.namespace, name)
	}
}

// available reports on a Deployment as the controllers and kubelets of a cluster would, if all its pods ran.
func (s *scene) available(namespace, name string) {
	s.Helper()
	g := NewWithT(s.T)
	deployment := &appsv1.Deployment{}
	g.Expect(s.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, deployment)).To(Succeed())
	before := deployment.DeepCopy()
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation,
		Replicas:           *deployment.Spec.Replicas, UpdatedReplicas: *deployment.Spec.Replicas,
		ReadyReplicas: *deployment.Spec.Replicas, AvailableReplicas: *deployment.Spec.Replicas,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"},
		},
	}
	g.Expect(s.admin.Status().Patch(ctx, deployment, client.MergeFrom(before))).To(Succeed())
}

func (s *scene) plays(watching context.Context, names []string) {
	for len(names) > 0 {
		select {
		case <-watching.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
		outputs, err := s.env.RunJobs(watching, s.namespace)
		if err != nil && watching.Err() == nil {
			s.Error(err)
		}
		for name, output := range outputs {
			s.jobs.Store(name, output)
		}
		var left []string
		for _, name := range names {
			err := s.admin.Get(watching, client.ObjectKey{Namespace: s.namespace, Name: name}, &appsv1.Deployment{})
			if !apierrors.IsNotFound(err) {
				left = append(left, name)
			} else if err := s.env.Stop(watching, name); err != nil {
				s.Error(err)
			}
		}
		names = left
	}
}
