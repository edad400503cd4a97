package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/process"
)

// order is what is asked of a supervisor, and answer what it says.
type order struct {
	Verb string `json:"verb"`
	Name string `json:"name"`
}

type answer struct {
	Error  string          `json:"error,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// serveControl takes orders on a socket until ctx ends.
func (s *Stack) serveControl(ctx context.Context, socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked order
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var said answer
		result, err := s.obey(r.Context(), asked)
		if err == nil {
			said.Result, err = json.Marshal(result)
		}
		if err != nil {
			said.Error = err.Error()
		}
		_ = json.NewEncoder(w).Encode(said)
	})}
	go func() { <-ctx.Done(); _ = server.Close() }()
	go func() { _ = server.Serve(listener) }()
	return os.Chmod(socket, 0o600)
}

func (s *Stack) obey(ctx context.Context, asked order) (any, error) {
	switch asked.Verb {
	case "start":
		return nil, s.Start(ctx, asked.Name)
	case "stop":
		return nil, s.Stop(ctx, asked.Name)
	case "kill":
		return nil, s.Kill(ctx, asked.Name)
	case "start-dead":
		return nil, s.StartDead(ctx)
	case "start-replica":
		return s.StartReplica(ctx, asked.Name)
	case "start-downstream":
		return s.StartDownstream(ctx)
	case "start-host-provider":
		return nil, s.StartHostProvider(ctx)
	case "start-gitops":
		return nil, s.StartGitOps(ctx)
	case "start-agent":
		return nil, s.StartAgent(ctx, asked.Name)
	case "reload":
		return nil, s.Reload(ctx)
	case "processes":
		return s.Processes(), nil
	default:
		return nil, fmt.Errorf("unknown verb %q", asked.Verb)
	}
}

// remote gives orders to the supervisor of a stack.
type remote struct{ client *http.Client }

func newRemote(socket string) *remote {
	return &remote{client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (r *remote) do(ctx context.Context, verb, name string, result any) error {
	body, err := json.Marshal(order{Verb: verb, Name: name})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://supervisor/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the supervisor: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	var said answer
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil {
		return fmt.Errorf("the supervisor's answer: %w", err)
	}
	if said.Error != "" {
		return errors.New(said.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(said.Result, result)
}

func (r *remote) processes() []process.Status {
	var list []process.Status
	// Whoever asks sees an empty list when the supervisor is gone, which is true.
	_ = r.do(context.Background(), "processes", "", &list)
	return list
}

// Attach returns a stack that a supervisor holds, such as that of `make up` in .dev.
// Its processes can be stopped and started as if it were one's own.
func Attach(dir string) (*Stack, error) {
	state, err := ReadState(dir)
	if err != nil {
		return nil, err
	}
	if !state.Ready || !state.SupervisorAlive() {
		return nil, fmt.Errorf("the stack in %s does not run", dir)
	}
	s := &Stack{
		Kubeconfig: state.Kubeconfig, dir: dir, begin: time.Now(),
		tools:  &parts.Tools{Root: state.Root, Bins: state.Programs, Manifests: state.Manifests},
		remote: newRemote(state.Socket),
	}
	if s.options, err = (Options{Dir: dir, Profile: state.Profile, Muster: state.Muster}).withDefaults(); err != nil {
		return nil, err
	}
	config, err := s.RESTConfig()
	if err != nil {
		return nil, err
	}
	s.client, err = newApplier(config)
	return s, err
}
