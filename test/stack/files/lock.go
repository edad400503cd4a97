package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Lock waits for the lock of a file, and calls waiting once if it must wait. The kernel frees the lock when the
// holder dies, so no lock is ever stale.
func Lock(path string, waiting func()) (unlock func(), err error) {
	unlock, err = TryLock(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		waiting()
		return lock(path, syscall.LOCK_EX)
	}
	return unlock, err
}

// TryLock returns EWOULDBLOCK if another process holds the lock.
func TryLock(path string) (unlock func(), err error) {
	return lock(path, syscall.LOCK_EX|syscall.LOCK_NB)
}

func lock(path string, how int) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(file.Fd()), how)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}
