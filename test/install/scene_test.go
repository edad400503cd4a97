package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// scene is an empty API server, a checkout, and somebody at a shell in it.
type scene struct {
	*testing.T
	env       *stack.Stack
	admin     client.Client
	namespace string
	checkout  string
	home      string
	path      string
}

// newScene starts an API server on which cert-manager works and Muster is not installed.
// Muster is going to be installed into this namespace.
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
	s := &scene{T: t, env: env, namespace: namespace, checkout: t.TempDir(), home: t.TempDir(), path: tools(t, env)}
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
	if s.admin, err = fixture.Client(env); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"manifests", "certs", "charts"} {
		if err := os.CopyFS(filepath.Join(s.checkout, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
	}
	// As `make dist` does.
	dist := exec.Command("go", "run", "./hack/channels", "dist", filepath.Join(s.checkout, "dist"))
	dist.Dir = root
	if out, err := dist.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return s
}

// sh runs commands of the guide as they are, and returns what they printed.
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
	cmd := exec.CommandContext(limited, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = s.checkout
	// A proxy that nobody listens at: nothing is fetched.
	cmd.Env = []string{"HOME=" + s.home, "PATH=" + s.path, "KUBECONFIG=" + s.env.Kubeconfig,
		"HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1,localhost", "CLUSTERCTL_DISABLE_VERSIONCHECK=true"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s\n%s", err, commands, out.String())
	}
	s.Logf("%s\n%s(%s)", strings.TrimSpace(commands), out.String(), poll.Since(begin))
	return out.String(), nil
}

// runs starts what the Deployments describe, and says of them what the kubelets of a
// cluster would. Who deletes a Deployment ends its process.
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
		s.endDeleted(watching, names)
	}()
	s.Cleanup(func() { stop(); <-done })
	for _, name := range names {
		s.available(s.namespace, name)
	}
}

// available says of a Deployment what the controllers and kubelets of a cluster would, if all
// its pods ran.
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

func (s *scene) endDeleted(watching context.Context, names []string) {
	for len(names) > 0 {
		select {
		case <-watching.Done():
			return
		case <-time.After(200 * time.Millisecond):
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

// tools makes a directory of the programs that the guide uses, as this repository pins them.
func tools(t *testing.T, env *stack.Stack) string {
	t.Helper()
	dir := t.TempDir()
	_, helm := fixture.Program("tools/helm", "helm.sh/helm/v4/cmd/helm", dir)
	_, clusterctl := fixture.Clusterctl(dir)
	if err := errors.Join(helm, clusterctl); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(env.Program("kubectl"), filepath.Join(dir, "kubectl")); err != nil {
		t.Fatal(err)
	}
	return dir + ":" + os.Getenv("PATH")
}

// asJSON is for messages.
func asJSON(g Gomega, value any) string {
	content, err := json.MarshalIndent(value, "", " ")
	g.Expect(err).NotTo(HaveOccurred())
	return string(content)
}
