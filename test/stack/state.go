package stack

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

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
