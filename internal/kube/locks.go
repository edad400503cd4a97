package kube

import "sync"

// Locks are mutexes by key. No two keys share one, as they do in k8s.io/utils/keymutex: tenants choose names, and whoever finds
// one with the bucket of another's object could hold that up. The zero value is ready to use.
type Locks struct {
	mu    sync.Mutex
	byKey map[string]*countedLock
}

// countedLock counts those that hold it or wait for it.
type countedLock struct {
	sync.Mutex
	users int
}

// Lock waits until the key is free, and holds it until the result is called.
func (l *Locks) Lock(key string) (unlock func()) {
	l.mu.Lock()
	its := l.byKey[key]
	if its == nil {
		its = &countedLock{}
		if l.byKey == nil {
			l.byKey = map[string]*countedLock{}
		}
		l.byKey[key] = its
	}
	its.users++
	l.mu.Unlock()
	its.Lock()
	return func() {
		its.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if its.users--; its.users == 0 {
			delete(l.byKey, key)
		}
	}
}
