package repository

import (
	"bytes"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/internal/helm/fair"
)

// answers are the latest answers of repositories, up to a total size, but at least one. All namespaces use them. An
// answer counts for the namespace whose request brought it, and the one with the most loses its oldest first: otherwise,
// one with many large charts and lists would leave nothing to the others.
type answers struct {
	mu sync.Mutex
	// of holds the answers of each namespace, and by says whose an answer is.
	of         map[string]*share
	by         map[string]string
	size, most int
}

// share holds the answers of a namespace.
type share struct {
	*lru.Cache
	size int
}

type answer struct {
	value any
	size  int
	at    time.Time
}

func newAnswers(most int) *answers {
	return &answers{most: most, of: map[string]*share{}, by: map[string]string{}}
}

// get returns an answer that came after a time; nil if there is none.
func (a *answers) get(key string, since time.Time) any {
	a.mu.Lock()
	defer a.mu.Unlock()
	of, isKept := a.by[key]
	if !isKept {
		return nil
	}
	if its, _ := a.of[of].Get(key); its.(answer).at.After(since) {
		return its.(answer).value
	}
	return nil
}

// put keeps an answer for a namespace, unless its size is 0.
func (a *answers) put(namespace, key string, value any, size int, now time.Time) {
	if size == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if of, isKept := a.by[key]; isKept {
		a.of[of].Remove(key)
	}
	its := a.of[namespace]
	if its == nil {
		its = a.newShare()
		a.of[namespace] = its
	}
	its.size += size
	for a.size += size; a.size > a.most && len(a.by) > 0; {
		a.largest().RemoveOldest()
	}
	its.Add(key, answer{value, size, now})
	a.by[key] = namespace
	maps.DeleteFunc(a.of, func(_ string, its *share) bool { return its.size == 0 })
}

func (a *answers) newShare() *share {
	its := &share{}
	its.Cache = lru.NewWithEvictionFunc(0, func(key lru.Key, gone any) {
		its.size -= gone.(answer).size
		a.size -= gone.(answer).size
		delete(a.by, key.(string))
	})
	return its
}

// largest returns the largest share with an answer.
func (a *answers) largest() (largest *share) {
	for _, its := range a.of {
		if its.Len() > 0 && (largest == nil || its.size > largest.size) {
			largest = its
		}
	}
	return largest
}

// others is the memory for other namespaces when one downloads as much as it can.
const others = 16 << 20

// spool is a download in memory. It consists of parts, because a buffer that grows is copied.
type spool struct {
	budget    *fair.Shares
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
	if !s.budget.Try(s.namespace, int64(len(data))) {
		return 0, failf("", "too many other downloads are in progress")
	}
	s.size += int64(len(data))
	s.parts = append(s.parts, bytes.Clone(data))
	return len(data), nil
}

func (s *spool) end() { s.budget.Release(s.namespace, s.size) }
