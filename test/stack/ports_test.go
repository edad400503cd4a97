package stack

import "testing"

func TestLeasesAreApart(t *testing.T) {
	one, two := newLeases(), newLeases()
	t.Cleanup(one.release)
	t.Cleanup(two.release)
	first, err := one.port(0)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing listens there yet; the lease alone keeps others away.
	second, err := two.port(first)
	if err != nil || second == first {
		t.Errorf("port %d was leased twice (%v)", second, err)
	}
	one.release()
	if again, err := two.port(first); err != nil || again != first {
		t.Errorf("after its release port %d gave %d (%v)", first, again, err)
	}
}
