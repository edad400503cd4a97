package repository

import (
	"bytes"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/helm/fair"
)

// cache keeps the latest values up to a total size, but at least one.
type cache[T any] struct {
	mu   sync.Mutex
	max  int
	kept map[string]*item[T]
}

type item[T any] struct {
	value    T
	size     int
	at, used time.Time
}

func newCache[T any](most int) *cache[T] { return &cache[T]{max: most, kept: map[string]*item[T]{}} }

// get returns a value, and its age.
func (c *cache[T]) get(key string, now time.Time) (value T, age time.Duration, isKnown bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	its := c.kept[key]
	if its == nil {
		return value, 0, false
	}
	its.used = now
	return its.value, now.Sub(its.at), true
}

func (c *cache[T]) put(key string, value T, size int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[key] = &item[T]{value, size, now, now}
	for {
		total, oldest := 0, key
		for other, its := range c.kept {
			if total += its.size; its.used.Before(c.kept[oldest].used) {
				oldest = other
			}
		}
		if total <= c.max || oldest == key {
			return
		}
		delete(c.kept, oldest)
	}
}

// others is the memory for other namespaces when one downloads as much as it can.
const others = 16 << 20

// spool is a download in memory. It consists of parts, because a buffer that grows is copied.
type spool struct {
	room      *fair.Shares
	namespace string
	parts     [][]byte
	size      int64
}

// Write adds a part.
func (s *spool) Write(data []byte) (int, error) {
	if !s.room.Try(s.namespace, int64(len(data))) {
		return 0, failf("", "too many other downloads are in progress")
	}
	s.size += int64(len(data))
	s.parts = append(s.parts, bytes.Clone(data))
	return len(data), nil
}

func (s *spool) end() { s.room.Release(s.namespace, s.size) }
