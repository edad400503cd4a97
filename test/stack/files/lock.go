package files

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// ErrLocked says that somebody else holds a lock.
var ErrLocked = errors.New("somebody else holds the lock")

// Lock waits for the lock of a file; waiting is called once if it has to wait.
// The kernel frees the lock when the holder dies, so none is ever stale.
func Lock(path string, waiting func()) (unlock func(), err error) {
	unlock, err = TryLock(path)
	if !errors.Is(err, ErrLocked) {
		return unlock, err
	}
	waiting()
	return lock(path, syscall.LOCK_EX)
}

// TryLock returns ErrLocked if the lock is taken.
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
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}
