package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/view"
)

// changesAfter returns the changes that readers get after a crowd has changed.
func changesAfter(t *testing.T, c *crowd, do func()) []change {
	t.Helper()
	server, _ := c.serve(t, "")
	last, err := shownOf(server.overviewOf(view.Build(c.Snapshot())))
	if err != nil {
		t.Fatal(err)
	}
	do()
	reader := server.feed.join(server.feed.now())
	server.compare(last)
	select {
	case updates := <-reader:
		return updates.changes
	default:
		return nil
	}
}

// brief names changes without their texts.
func brief(changes []change) (result []string) {
	for _, c := range changes {
		text := c.Op
		for _, part := range []string{c.ID, c.After} {
			if part != "" {
				text += " " + part
			}
		}
		result = append(result, text)
	}
	return result
}

// TestChanges: readers get the differences, and nothing else.
func TestChanges(t *testing.T) {
	key := func(i int) types.NamespacedName { return crowdKey(i, 2) }
	id := func(i int) string { return view.ClusterID(key(i)) }
	counts := []string{"set classes", "set summary"}
	for name, test := range map[string]struct {
		do   func(*crowd)
		want []string
	}{
		"nothing":           {func(*crowd) {}, nil},
		"a state":           {func(c *crowd) { c.become(key(5), "ErrApplied") }, append(counts, "set "+id(5))},
		"bundles are ready": {func(c *crowd) { c.become(key(5), "Ready") }, nil},
		"one comes": {func(c *crowd) {
			c.objects.Clusters[types.NamespacedName{Namespace: "team-01", Name: "c00005-b"}] = &view.CAPICluster{Class: standard}
		}, append(counts, "add cluster/team-01/c00005-b "+id(5))},
		"a new Cluster comes first": {func(c *crowd) {
			c.objects.Clusters[types.NamespacedName{Namespace: "team-01", Name: "a"}] = &view.CAPICluster{Class: standard}
		}, append(counts, "add cluster/team-01/a")},
		"one goes": {func(c *crowd) { c.without(key(5)) }, append(counts, "remove "+id(5))},
		"a namespace comes": {func(c *crowd) {
			c.objects.Clusters[types.NamespacedName{Namespace: "z", Name: "a"}] = &view.CAPICluster{Class: standard}
		}, []string{"reload"}},
		"a namespace goes": {func(c *crowd) { c.without(key(1), key(3), key(5)) }, []string{"reload"}},
		"a class goes":     {func(c *crowd) { delete(c.objects.Classes, standard) }, []string{"set classes"}},
		"a class comes":    {func(c *crowd) { c.objects.Classes[types.NamespacedName{Namespace: "classes", Name: "new"}] = true }, []string{"reload"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(6, 2)
			got := brief(changesAfter(t, c, func() { test.do(c) }))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestMoves: a Cluster moves to another namespace of the page.
func TestMoves(t *testing.T) {
	c := newCrowd(4, 1)
	other := types.NamespacedName{Namespace: "classes", Name: "other"}
	c.objects.Clusters[crowdKey(3, 1)].Class = other
	c.objects.Classes[other] = true
	got := brief(changesAfter(t, c, func() {
		moved := *c.objects.Clusters[crowdKey(1, 1)]
		moved.Class = other
		c.objects.Clusters[crowdKey(1, 1)] = &moved
	}))
	if want := []string{"set classes", "remove cluster/team-00/c00001", "add cluster/team-00/c00001"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestManyChangeAtOnce: all agents fall silent; one update has all cells.
func TestManyChangeAtOnce(t *testing.T) {
	const many = 10_000
	c := newCrowd(many, 20)
	changes := changesAfter(t, c, func() { c.objects.Now = c.objects.Now.Add(c.objects.StaleAfter * 2) })
	if len(changes) != many+2 {
		t.Errorf("%d changes of %d Clusters", len(changes), many)
	}
	bytes := 0
	for _, change := range changes {
		bytes += len(change.HTML)
	}
	if bytes > many*300 {
		t.Errorf("%d bytes, more than 300 a Cluster", bytes)
	}
}

// TestMissed: a page that was being sent during a change gets that change.
func TestMissed(t *testing.T) {
	f := newFeed()
	set := func(i int) []change { return []change{{Op: "set", ID: fmt.Sprint(i)}} }
	f.publish(set(1))
	loaded := f.now()
	f.publish(nil)
	f.publish(set(2))
	reader := f.join(loaded)
	f.publish(set(3))
	f.leave(reader)
	f.publish(set(4))
	close(reader)
	var got []string
	for updates := range reader {
		got = append(got, fmt.Sprintf("%d: %s", updates.number, updates.changes[0].ID))
	}
	if want := []string{"2: 2", "3: 3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for i := range backlog {
		f.publish(set(i))
	}
	for _, after := range []int{loaded, f.now() + 1} {
		if updates := <-f.join(after); updates.changes[0].Op != "reload" {
			t.Errorf("a reader that has update %d of %d is sent %v", after, f.now(), updates.changes)
		}
	}
}

// TestHeavy: the feed keeps no more changes than a page has cells.
func TestHeavy(t *testing.T) {
	f := newFeed()
	most := 0
	for range 3 * backlog {
		f.publish(make([]change, heavy/4))
		total := 0
		for _, t := range f.recent {
			total += len(t.changes)
		}
		most = max(most, total)
	}
	if most != heavy {
		t.Errorf("%d changes are kept", most)
	}
	f.publish(make([]change, heavy+1))
	if updates := <-f.join(f.now() - 1); len(f.recent) != 0 || updates.changes[0].Op != "reload" {
		t.Errorf("%d are kept, and a reader that missed more changes than a page has cells is sent %v", len(f.recent), updates.changes[0])
	}
}

// TestSlow: a reader that does not read has to reload the page, and the others continue.
func TestSlow(t *testing.T) {
	f := newFeed()
	slow := f.join(0)
	for range 3 * backlog {
		f.publish([]change{{Op: "set"}})
	}
	count := 0
	for range slow {
		count++
	}
	if count != cap(slow) || len(f.readers) != 0 {
		t.Errorf("%d of %d were kept for it, and %d readers", count, cap(slow), len(f.readers))
	}
}

// TestCell: texts from outside contain no markup.
func TestCell(t *testing.T) {
	const hostile = `"><script>'&` + "`"
	for _, isDense := range []bool{false, true} {
		got := string(cell{ID: "cluster/a/" + hostile + "?x=1#y%2e", Base: "/t/", Name: hostile, Namespace: hostile, Reason: hostile, Sign: "▲", State: view.Problem, Dense: isDense}.HTML())
		if strings.Contains(got, "<script") || strings.Contains(got, `""`) || strings.Contains(got, "'") {
			t.Errorf("the text contains markup: %s", got)
		}
		if want := ` href="/t/cluster/a/%22%3E%3Cscript%3E%27&amp;%60%3Fx=1%23y%252e"`; !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
}
