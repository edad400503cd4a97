package ports

import "testing"

func TestLeasesAreApart(t *testing.T) {
	one, two := New(), New()
	t.Cleanup(one.Release)
	t.Cleanup(two.Release)
	first, err := one.Port(0)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing listens there yet, so only the lease keeps others away.
	second, err := two.Port(first)
	if err != nil || second == first {
		t.Errorf("port %d was leased twice (%v)", second, err)
	}
	one.Release()
	if again, err := two.Port(first); err != nil || again != first {
		t.Errorf("after its release port %d gave %d (%v)", first, again, err)
	}
}
