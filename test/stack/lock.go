package stack

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

var errLocked = errors.New("somebody else holds the lock")

// lockFile waits for the lock of a file; waiting is called once if it has to wait.
// The kernel frees the lock when the holder dies, so none is ever stale.
func lockFile(path string, waiting func()) (unlock func(), err error) {
	unlock, err = tryLockFile(path)
	if !errors.Is(err, errLocked) {
		return unlock, err
	}
	waiting()
	return lock(path, syscall.LOCK_EX)
}

// tryLockFile returns errLocked if the lock is taken.
func tryLockFile(path string) (unlock func(), err error) {
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
			return nil, errLocked
		}
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

// LockDir keeps two commands from bringing the stack of a directory up or down at the
// same time. The lock lies outside of the directory, which they remove.
func LockDir(dir string, waiting func()) (unlock func(), err error) {
	name := fmt.Sprintf("dir-%x", sha256.Sum256([]byte(dir)))
	return lockFile(filepath.Join(leaseDir(), name), waiting)
}
