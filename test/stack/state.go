package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/process"
)

// State is what a supervised stack leaves on disk for the commands that come later.
type State struct {
	// Supervisor is the process that holds the stack.
	Supervisor int       `json:"supervisor"`
	Since      time.Time `json:"since"`
	// Ready says that the stack has come up whole.
	Ready   bool    `json:"ready"`
	Profile Profile `json:"profile"`
	Muster  bool    `json:"muster"`
	// Socket is where the supervisor takes orders.
	Socket     string            `json:"socket"`
	Kubeconfig string            `json:"kubeconfig"`
	Root       string            `json:"root"`
	Programs   map[string]string `json:"programs"`
	Manifests  string            `json:"manifests"`
	Processes  []process.Status  `json:"processes"`
}

func statePath(dir string) string { return filepath.Join(dir, "state.json") }

// ReadState returns what a stack in this directory left, or an error that
// errors.Is os.ErrNotExist if there is none.
func ReadState(dir string) (*State, error) {
	content, err := os.ReadFile(statePath(dir))
	if err != nil {
		return nil, err
	}
	state := &State{}
	if err := json.Unmarshal(content, state); err != nil {
		return nil, fmt.Errorf("%s: %w", statePath(dir), err)
	}
	return state, nil
}

func (s *State) write(dir string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return files.WriteAtomically(statePath(dir), append(content, '\n'))
}

// SupervisorAlive tells whether the supervisor still runs.
func (s *State) SupervisorAlive() bool { return runs(s.Supervisor, "") }

// runs tells whether a process of this number runs, and still is that program: the
// system gives numbers of dead processes to new ones.
func runs(pid int, program string) bool {
	if pid <= 0 || syscall.Kill(pid, 0) != nil {
		return false
	}
	if zombie(pid) {
		return false
	}
	if program == "" {
		return true
	}
	executable, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	// A rebuilt program shows as "... (deleted)".
	return err != nil || executable == program || executable == program+" (deleted)"
}

// adopted are the kinds that say what runs and how the API server finds it.
var adopted = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Version: "v1", Resource: "services"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
}

// Adopt runs the Deployments that somebody else installed into a namespace, and leads the
// API server to their webhooks. Where no webhook of Muster's is in another namespace, this
// is what the API server and the nodes of a cluster would do. It returns the names of the
// processes.
func (s *Stack) Adopt(ctx context.Context, namespace string) ([]string, error) {
	if err := s.tools.BuildMuster(ctx, s.options.Progress); err != nil {
		return nil, err
	}
	s.shipped = nil
	var names []string
	for _, kind := range adopted {
		list, err := s.client.client.Resource(kind).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if object := &list.Items[i]; isIn(object, namespace) {
				s.shipped = append(s.shipped, object)
			}
		}
	}
	for _, object := range s.shipped {
		if object.GetKind() != "Deployment" {
			continue
		}
		name, err := s.startReplica(ctx, namespace, object.GetName(), 0)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no Deployment in namespace %s", namespace)
	}
	return names, s.routeWebhooks(ctx)
}

// Route leads the API server to the webhooks of what was adopted once more, after somebody
// has applied it again.
func (s *Stack) Route(ctx context.Context) error { return s.routeWebhooks(ctx) }

// isIn says whether an object is in a namespace, or sends requests to one.
func isIn(object *unstructured.Unstructured, namespace string) bool {
	if object.GetNamespace() != "" {
		return object.GetNamespace() == namespace
	}
	webhooks, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
	for _, webhook := range webhooks {
		fields, _ := webhook.(map[string]any)
		to, _, _ := unstructured.NestedString(fields, "clientConfig", "service", "namespace")
		if to == namespace {
			return true
		}
	}
	return false
}
