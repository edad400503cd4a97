package desired

import (
	"testing"
	"time"
)

// The intervals are 1, 2, 4 … 60 minutes, and what is written is all that is needed.
func TestLook(t *testing.T) {
	start := time.Unix(1_790_000_000, 0)
	now, written := start, "0b5e1f2a-uid.3"
	for i, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		before := written
		if wait := LookOf(written).Wait(now); wait != 0 {
			t.Fatalf("look %d is due in %s", i, wait)
		}
		if written = LookOf(written).Next(now).In(written); written == before {
			t.Fatalf("look %d changes nothing: %s", i, written)
		}
		next := time.Duration(minutes) * time.Minute
		if wait := LookOf(written).Wait(now); wait != next {
			t.Errorf("after look %d, the next is due in %s, want %s", i, wait, next)
		}
		if wait := LookOf(written).Wait(now.Add(next - time.Second)); wait != time.Second {
			t.Errorf("look %d is a second off: %s", i, wait)
		}
		if i == 0 && written != "0b5e1f2a-uid.3 namespace.1.1790000000" {
			t.Errorf("written is %q", written)
		}
		now = now.Add(next)
	}
	// Some time after the namespace was there, the intervals begin again.
	if next := LookOf(written).Next(now.Add(2 * time.Hour)); next.interval() != time.Minute {
		t.Errorf("the intervals do not begin again: %s", next)
	}
}

// A user who may write the Fleet Cluster may write anything here. It must not keep Fleet from looking.
func TestForgedLook(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	for _, forged := range []string{
		"", "namespace", "namespace.0.1", "namespace.8.1", "namespace.99.1790000000", "namespace.1.-1", "namespace.7.99999999999", "namespace.1.999999999999",
	} {
		look := LookOf(forged)
		if wait := look.Wait(now); wait != 0 {
			t.Errorf("%q: it waits %s", forged, wait)
		}
		if next := look.Next(now); next.Wait(now) != time.Minute {
			t.Errorf("%q: then it waits %s", forged, next.Wait(now))
		}
	}
}

// A Look stays when mappings begin to map, and is no reason to change anything.
func TestRetargetedKeepsTheLook(t *testing.T) {
	const look = "namespace.2.1790000000"
	for _, test := range []struct {
		have  string
		begun []string
		want  string
	}{
		{look, nil, look},
		{"a.1 " + look, nil, "a.1 " + look},
		{"a.1 " + look, []string{"a.1"}, "a.1 " + look},
		{"a.1 " + look, []string{"a.1.again"}, "a.1.again " + look},
		{look, []string{"a.1"}, "a.1 " + look},
		{"theirs " + look, nil, look},
	} {
		if got := Retargeted(test.have, test.begun); got != test.want {
			t.Errorf("%q with %q: got %q, want %q", test.have, test.begun, got, test.want)
		}
	}
}
