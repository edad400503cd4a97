package repository

import (
	"bytes"
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/internal/helm/fair"
)

// answers are the latest answers of repositories, up to a total size, but at least one.
type answers struct {
	mu         sync.Mutex
	kept       *lru.Cache
	size, most int
}

type answer struct {
	value any
	size  int
	at    time.Time
}

func newAnswers(most int) *answers {
	a := &answers{most: most}
	a.kept = lru.NewWithEvictionFunc(0, func(_ lru.Key, its any) { a.size -= its.(answer).size })
	return a
}

// get returns an answer that came after a time; nil if there is none.
func (a *answers) get(key string, since time.Time) any {
	if its, isKept := a.kept.Get(key); isKept && its.(answer).at.After(since) {
		return its.(answer).value
	}
	return nil
}

// put keeps an answer, unless its size is 0.
func (a *answers) put(key string, value any, size int, now time.Time) {
	if size == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept.Remove(key)
	a.kept.Add(key, answer{value, size, now})
	for a.size += size; a.size > a.most && a.kept.Len() > 1; {
		a.kept.RemoveOldest()
	}
}

// others is the memory for other namespaces when one downloads as much as it can.
const others = 16 << 20

// spool is a download in memory. It consists of parts, because a buffer that grows is copied.
type spool struct {
	room      *fair.Shares
	namespace string
	// most limits the size in bytes; 0 for no limit.
	most  int64
	parts [][]byte
	size  int64
}

// Write adds a part.
func (s *spool) Write(data []byte) (int, error) {
	if s.most > 0 && s.size+int64(len(data)) > s.most {
		return 0, failf(TooLarge, "its list of versions is larger than %d MiB, compressed", s.most>>20)
	}
	if !s.room.Try(s.namespace, int64(len(data))) {
		return 0, failf("", "too many other downloads are in progress")
	}
	s.size += int64(len(data))
	s.parts = append(s.parts, bytes.Clone(data))
	return len(data), nil
}

func (s *spool) end() { s.room.Release(s.namespace, s.size) }
