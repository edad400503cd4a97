package fair

import (
	"context"
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
