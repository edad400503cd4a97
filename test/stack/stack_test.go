package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/muster-fleet/muster/test/stack/poll"
)

const fixtureNamespace = "fixture-system"

// upWithFixture starts a stack whose "Muster" is the fixture webhook.
func upWithFixture(t *testing.T) *Stack {
	t.Helper()
	ctx := t.Context()
	dir := t.TempDir()
	progress := &testLog{t}
	tools, err := Build(ctx, API, progress)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "fixture")
	if err := tools.Compile(ctx, progress, "./test/stack/testdata/fixture", binary); err != nil {
		t.Fatal(err)
	}
	s, err := Up(ctx, Options{
		Dir: filepath.Join(dir, "stack"), Tools: tools, Progress: progress, Muster: true,
		Manifests: filepath.Join(tools.Root, "test", "stack", "testdata", "fixture", "manifests"),
		Binaries:  map[string]string{"fixture": binary},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pids := s.Processes()
		if err := s.Down(); err != nil {
			t.Errorf("down: %v", err)
		}
		for _, p := range pids {
			if p.Running && syscall.Kill(p.PID, 0) == nil {
				t.Errorf("%s (pid %d) is left after down", p.Name, p.PID)
			}
		}
	})
	return s
}

type testLog struct{ t *testing.T }

func (l *testLog) Write(text []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(text), "\n"))
	return len(text), nil
}

func TestStackRunsDeploymentsAsHostProcesses(t *testing.T) {
	s := upWithFixture(t)
	ctx := t.Context()
	const name = "fixture-webhook"

	t.Run("the process has the identity and environment of its pod", func(t *testing.T) {
		log, err := os.ReadFile(s.LogPath(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"user: " + ServiceAccount(fixtureNamespace, name), "pod: fixture-system/fixture-webhook-0"} {
			if !strings.Contains(string(log), line) {
				t.Errorf("log has no line %q:\n%s", line, log)
			}
		}
	})

	t.Run("the API server calls the shipped webhook through its Service", func(t *testing.T) {
		if err := createSeen(ctx, s, "first"); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("the audit log has the requests of the ServiceAccount", func(t *testing.T) {
		events, err := s.AuditLog(AuditFilter{User: ServiceAccount(fixtureNamespace, name)})
		if err != nil {
			t.Fatal(err)
		}
		if len(events) != 1 || events[0].Resource != "selfsubjectreviews" || events[0].Code != http.StatusCreated {
			t.Errorf("events are %v", events)
		}
	})

	t.Run("a renewed certificate reaches the process", func(t *testing.T) { rotate(ctx, t, s) })

	t.Run("a stopped webhook process is missed", func(t *testing.T) {
		if err := s.Stop(ctx, name); err != nil {
			t.Fatal(err)
		}
		if err := createSeen(ctx, s, "second"); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("creating without the webhook gave %v", err)
		}
		if err := s.Start(ctx, name); err != nil {
			t.Fatal(err)
		}
		// The API server may learn of the CA injected above a moment after us.
		if err := poll.Until(ctx, "the webhook", 5*time.Second, func(ctx context.Context) error {
			return createSeen(ctx, s, "third")
		}); err != nil {
			t.Error(err)
		}
	})

	t.Run("another replica runs beside the first", func(t *testing.T) {
		second, err := s.StartReplica(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Kill(ctx, second); err != nil {
			t.Error(err)
		}
	})

	t.Run("a killed API server comes back with its data", func(t *testing.T) {
		if err := s.Kill(ctx, "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		if out, err := s.Kubectl(ctx, "get", "ns"); err == nil {
			t.Errorf("there is an answer without an API server: %s", out)
		}
		if err := s.Start(ctx, "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Kubectl(ctx, "get", "configmap", "first"); err != nil {
			t.Error(err)
		}
		if err := createSeen(ctx, s, "fourth"); err != nil {
			t.Error(err)
		}
	})

	t.Run("objects of Cluster API need none of its controllers", func(t *testing.T) {
		if err := s.Apply(ctx, clusterWithoutControllers); err != nil {
			t.Fatal(err)
		}
	})
}

const clusterWithoutControllers = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: default, name: one}
spec:
  topology: {classRef: {name: some}, version: v1.33.0}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: default, name: one}
`

// createSeen creates a ConfigMap that the fixture's webhook must have seen.
func createSeen(ctx context.Context, s *Stack, name string) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"fixture": "please"}}}
	created, err := s.hub.client.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
	if err == nil && created.Labels["seen-by"] != "fixture" {
		err = fmt.Errorf("ConfigMap %s was not seen by the webhook: labels %v", name, created.Labels)
	}
	return err
}

// rotate deletes the certificate's Secret and waits until the file follows.
func rotate(ctx context.Context, t *testing.T, s *Stack) {
	file := filepath.Join(s.Dir(), "pods", "fixture-webhook", "volumes", "certs", "tls.crt")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.hub.client.CoreV1().Secrets(fixtureNamespace).Delete(ctx, "fixture-webhook-tls", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err = poll.Until(ctx, "the renewed certificate", 30*time.Second, func(context.Context) error {
		after, err := os.ReadFile(file)
		if err == nil && string(after) == string(before) {
			return errors.New("the file is as before")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// A self-signed certificate is its own CA: until it is injected and loaded there is
	// a moment without trust, which a CA that outlives its certificates does not have.
	err = poll.Until(ctx, "the webhook to be trusted again", 30*time.Second, func(ctx context.Context) error {
		live := &unstructured.Unstructured{}
		live.SetAPIVersion("admissionregistration.k8s.io/v1")
		live.SetKind("MutatingWebhookConfiguration")
		resource, err := s.client.resource(live)
		if err != nil {
			return err
		}
		if live, err = resource.Get(ctx, "fixture", metav1.GetOptions{}); err != nil {
			return err
		}
		return dialWebhooks(ctx, live)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestProgramsFromOutside(t *testing.T) {
	folder := t.TempDir()
	for name, mode := range map[string]os.FileMode{"webhook": 0o755, "README": 0o644} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(programsVariable, folder)
	options, err := Options{Muster: true, Dir: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"webhook": filepath.Join(folder, "webhook")}, options.Binaries); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}

	// A test that brings its own programs is about these.
	own := map[string]string{"fixture": "/fixture"}
	options, err = Options{Muster: true, Dir: t.TempDir(), Binaries: own}.withDefaults()
	if diff := cmp.Diff(own, options.Binaries); err != nil || diff != "" {
		t.Errorf("%v, own programs (-want +got):\n%s", err, diff)
	}

	// Silence would mean that the test ran something else than was asked for.
	for _, folder := range []string{t.TempDir(), filepath.Join(folder, "none")} {
		t.Setenv(programsVariable, folder)
		if _, err := (Options{Muster: true, Dir: t.TempDir()}).withDefaults(); err == nil {
			t.Errorf("no error for %s", folder)
		}
	}
}
