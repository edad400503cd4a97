package fair

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Namespaces take turns, however many units one of them requests.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := New(1, 1)
		if err := places.Wait(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		order := ""
		join := func(ctx context.Context, namespace string) {
			go func() {
				if places.Wait(ctx, namespace) != nil {
					return
				}
				order += namespace
				time.Sleep(time.Second)
				places.Release(namespace, 1)
			}()
			synctest.Wait()
		}
		gone, leave := context.WithCancel(t.Context())
		for _, namespace := range strings.Split("aaaabcc", "") {
			join(t.Context(), namespace)
		}
		join(gone, "b")
		join(gone, "d")
		leave()
		synctest.Wait()
		places.Release("a", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if order != "bcacaaa" || places.free != 1 {
			t.Errorf("%s", order)
		}
	})
}

// A namespace whose jobs take long leaves units to the others.
func TestNoNamespaceHasAllPlaces(t *testing.T) {
	places := New(2, 1)
	if err := places.Wait(t.Context(), "slow"); err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := places.Wait(late, "slow"); err == nil {
		t.Error("a namespace has all units")
	}
	if err := places.Wait(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	places.Release("slow", 1)
	places.Release("other", 1)
	if err := places.Wait(t.Context(), "slow"); err != nil {
		t.Error(err)
	}
}

// A namespace may take more than its share at once if it has nothing else, and then has to wait.
func TestOneLargePiece(t *testing.T) {
	places := New(10, 5)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := places.Take(t.Context(), "large", 7); err != nil {
			t.Fatal(err)
		}
		if places.Take(late, "large", 1) == nil || places.Take(late, "other", 4) == nil {
			t.Error("there is too much at once")
		}
		if err := places.Take(t.Context(), "other", 3); err != nil {
			t.Error(err)
		}
		places.Release("large", 7)
		places.Release("other", 3)
	}
	if places.free != 10 || len(places.lines) > 0 {
		t.Error("some units are still taken")
	}
}

// Namespaces are forgotten once they have no units and wait for none: they come and go.
func TestNamespacesAreForgotten(t *testing.T) {
	places := New(3, 2)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 10 {
		namespace := fmt.Sprint("team-", i)
		if err := places.Wait(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
		if !places.Try(namespace, 1) || places.Try(namespace, 1) || places.Wait(late, namespace) == nil || places.Try("other", 2) {
			t.Fatal("a namespace has more than its share")
		}
		if len(places.lines) != 1 {
			t.Errorf("%d namespaces are known, but one has units", len(places.lines))
		}
		places.Release(namespace, 2)
	}
	places.Release("nothing", 0)
	if len(places.lines) > 0 {
		t.Errorf("%d namespaces without units are known", len(places.lines))
	}
}

// A namespace may have all units while no other waits; then those with fewer come first, however late they came.
func TestFewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places, order, mu := New(2, 2), "", sync.Mutex{}
		run := func(name string, seconds time.Duration) {
			go func() {
				if places.Wait(t.Context(), name[:1]) == nil {
					mu.Lock()
					order += name + " "
					mu.Unlock()
					time.Sleep(seconds * time.Second)
					places.Release(name[:1], 1)
				}
			}()
			synctest.Wait()
		}
		run("a0", 100)
		run("a1", 1)
		run("b0", 10)
		time.Sleep(5 * time.Second) // Now b has the other unit.
		run("a2", 2)
		run("a3", 2)
		run("c0", 1)
		time.Sleep(time.Hour)
		mu.Lock()
		if order != "a0 a1 b0 c0 a2 a3 " {
			t.Error(order)
		}
	})
}

// A request for more than is free is not overtaken by smaller ones, but none waits for a namespace that has its share.
func TestLargeIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		room, got, mu := New(10, 8), "", sync.Mutex{}
		take := func(namespace string, units int64) {
			go func() {
				if room.Take(t.Context(), namespace, units) == nil {
					mu.Lock()
					got += namespace
					mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		take("a", 6)
		take("a", 4)
		if !room.Try("c", 1) {
			t.Error("a namespace waits for one that has its share")
		}
		room.Release("c", 1)
		take("b", 5)
		if room.Try("c", 1) {
			t.Error("a small request overtakes a large one")
		}
		room.Release("a", 1)
		synctest.Wait()
		mu.Lock()
		if got != "ab" {
			t.Errorf("%s have units", got)
		}
		mu.Unlock()
		room.Release("a", 5)
		synctest.Wait()
		mu.Lock()
		if got != "aba" || room.free != 1 {
			t.Errorf("%s have units, and %d are free", got, room.free)
		}
	})
}
