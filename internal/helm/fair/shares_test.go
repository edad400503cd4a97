package fair

import (
	"context"
	"fmt"
	"strings"
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
		if order != "bcacaaa" || !places.all.TryAcquire(1) {
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
	if !places.all.TryAcquire(10) || len(places.own) > 0 {
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
		if len(places.own) != 1 {
			t.Errorf("%d namespaces are known, but one has units", len(places.own))
		}
		places.Release(namespace, 2)
	}
	places.Release("nothing", 0)
	if len(places.own) > 0 {
		t.Errorf("%d namespaces without units are known", len(places.own))
	}
}

// A caller waits a moment for a short job. It is refused during a long one, and together with all callers of its
// namespace it has waited only a moment.
func TestSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := New(2, 1)
		soon := func(namespace string, want bool, within time.Duration) {
			t.Helper()
			began := time.Now()
			if got := places.Soon(namespace); got != want || time.Since(began) > within {
				t.Errorf("%s: %t after %s, want %t within %s", namespace, got, time.Since(began), want, within)
			}
		}
		soon("slow", true, 0)
		soon("slow", false, moment)
		for range 100 {
			soon("slow", false, 0)
		}
		soon("other", true, 0)
		time.AfterFunc(moment/2, func() { places.Release("other", 1) })
		soon("other", true, moment/2)
		soon("third", false, moment)
		places.Release("slow", 1)
		synctest.Wait()
		soon("slow", false, 0) // Third was refused before it.
		soon("third", true, 0)
		places.Release("third", 1)
		synctest.Wait()
		soon("slow", true, 0)
		soon("slow", false, moment)
		places.Release("slow", 1)
		places.Release("other", 1)
		time.Sleep(3 * RetryInterval) // Nobody comes back for the last ticket of slow.
		synctest.Wait()
		if !places.Try("fourth", 1) || !places.Try("fifth", 1) || len(places.own) != 2 {
			t.Error("some units are still taken")
		}
	})
}

// Callers of one namespace get its units one after the other, without a pause.
func TestSoonForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places, done := New(2, 1), 0
		for range 10 {
			go func() {
				for !places.Soon("team") {
					time.Sleep(RetryInterval)
				}
				time.Sleep(time.Millisecond)
				done++
				places.Release("team", 1)
			}()
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if done != 10 {
			t.Errorf("%d are done", done)
		}
		time.Sleep(3 * RetryInterval)
	})
}
