package repository

import (
	"bytes"
	"sync"
	"time"
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

// room limits the memory of all downloads, so that one namespace cannot take all of it.
type room struct {
	mu      sync.Mutex
	free    int64
	maxEach int64
	used    map[string]int64
}

// others is the memory for other namespaces when one downloads as much as it can.
const others = 16 << 20

func newRoom(maxEach int64) *room {
	return &room{free: maxEach + others, maxEach: maxEach, used: map[string]int64{}}
}

// take takes memory for a namespace. A negative size gives it back.
func (r *room) take(namespace string, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if size > r.free || size+r.used[namespace] > r.maxEach {
		return false
	}
	r.free -= size
	if r.used[namespace] += size; r.used[namespace] == 0 {
		delete(r.used, namespace)
	}
	return true
}

// spool is a download in memory. It consists of parts, because a buffer that grows is copied.
type spool struct {
	*room
	namespace string
	parts     [][]byte
	size      int64
}

// Write adds a part.
func (s *spool) Write(data []byte) (int, error) {
	if !s.take(s.namespace, int64(len(data))) {
		return 0, failf("", "too many other downloads are under way")
	}
	s.size += int64(len(data))
	s.parts = append(s.parts, bytes.Clone(data))
	return len(data), nil
}

func (s *spool) end() { s.take(s.namespace, -s.size) }
