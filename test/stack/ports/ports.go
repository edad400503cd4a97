// Package ports gives out ports and loopback addresses of this host that no other stack has leased and no process
// listens on.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/muster-fleet/muster/test/stack/files"
)

// The ports are below the kernel's range for outgoing connections, which could take one between choosing and
// listening, and below the in-memory provider's range.
const (
	firstPort = 10000
	lastPort  = 18999
)

// Leases are ports and loopback addresses that are reserved for one stack. Other stacks on this machine see them
// through locked files, even before a process listens.
type Leases struct {
	dir   string
	mu    sync.Mutex
	locks []func()
}

// New returns empty leases for a stack.
func New() *Leases { return &Leases{dir: Dir()} }

// Dir returns the directory of this user's locked files.
func Dir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("muster-stack-Leases-%d", os.Getuid()))
}

// Release gives all leases back. The kernel does the same when the process dies.
func (l *Leases) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, unlock := range l.locks {
		unlock()
	}
	l.locks = nil
}

// Port leases the preferred port if it is free, else any other one. A preferred
// port of 0 means any.
func (l *Leases) Port(preferred int) (int, error) {
	if preferred != 0 && l.try(preferred) {
		return preferred, nil
	}
	for range 1000 {
		if port := firstPort + rand.IntN(lastPort-firstPort+1); l.try(port) {
			return port, nil
		}
	}
	return 0, errors.New("found no free port")
}

func (l *Leases) try(port int) bool {
	unlock, err := files.TryLock(filepath.Join(l.dir, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	// The port is free if we can listen on it, on loopback and on all addresses.
	if listenable(fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf(":%d", port)) != nil {
		unlock()
		return false
	}
	l.keep(unlock)
	return true
}

func (l *Leases) keep(unlock func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks = append(l.locks, unlock)
}

// Address leases a loopback address. The in-memory provider always listens on the same first ports, for debugging
// and for its first cluster, so two providers need an address each.
func (l *Leases) Address() (string, error) {
	var last error
	for host := 1; host < 255; host++ {
		address := fmt.Sprintf("127.0.0.%d", host)
		unlock, err := files.TryLock(filepath.Join(l.dir, address))
		if err != nil {
			continue
		}
		if last = listenable(address+":19000", address+":20000"); last != nil {
			unlock()
			continue
		}
		l.keep(unlock)
		return address, nil
	}
	return "", fmt.Errorf("no loopback address has the in-memory provider's ports free: %w", last)
}

func listenable(addresses ...string) error {
	for _, address := range addresses {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		_ = listener.Close()
	}
	return nil
}
