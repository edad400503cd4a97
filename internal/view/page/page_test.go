package page

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/view"
)

// crowd is a management cluster with many Clusters, all of them in Fleet with two Bundles each.
type crowd struct {
	*Server
	host    string
	mu      sync.Mutex
	objects *view.Objects
	changed chan struct{}
	// asked counts the Snapshots, and selected has the namespaces in Fleet that were selected, and when.
	asked    int
	selected map[string]time.Time
}

var standard = types.NamespacedName{Namespace: "classes", Name: "standard"}

func keyOf(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "team", Name: fmt.Sprintf("c%05d", i)}
}

func newCrowd(t testing.TB, many int) *crowd {
	t.Helper()
	c := &crowd{objects: view.NewObjects(), changed: make(chan struct{}, 1), selected: map[string]time.Time{}}
	c.objects.Classes[standard] = true
	for i := range many {
		c.objects.Clusters[keyOf(i)] = &view.CAPICluster{
			Class: standard, Pin: stamp.Pin{ClusterName: keyOf(i).Name},
			Imported: &view.Condition{Status: metav1.ConditionTrue, Reason: "Imported", Since: time.Now()},
		}
		c.become(keyOf(i), "")
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c.Server, c.host = New(c, "many", listener), listener.Addr().String()
	return c
}

// become gives a Cluster another state, with an event.
func (c *crowd) become(key types.NamespacedName, state string) {
	c.mu.Lock()
	c.objects.FleetClusters[key] = &view.InFleet{
		Class: standard, Origin: stamp.Origin{Name: key.Name}, Ours: true, Namespace: "cluster-" + key.Name, LastSeen: time.Now(), State: state,
	}
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *crowd) Changed() <-chan struct{} { return c.changed }

func (c *crowd) Select(namespace string) time.Time {
	if namespace == "" {
		return time.Time{}
	}
	time.Sleep(time.Millisecond) // It is read.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.selected[namespace].IsZero() {
		c.selected[namespace] = time.Now()
	}
	return c.selected[namespace]
}

func (c *crowd) Snapshot() *view.Objects {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	objects := c.objects.Clone()
	objects.Now = time.Now()
	for namespace := range c.selected {
		objects.Deployments[namespace] = []*view.Deployed{{Bundle: types.NamespacedName{Namespace: "classes", Name: "cni"}, State: "Ready"}}
	}
	return objects
}

func (c *crowd) snapshots() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// answer is what a reader gets, and after which time.
type answer struct {
	*httptest.ResponseRecorder
	took time.Duration
}

// ask requests a path below the token.
func (c *crowd) ask(ctx context.Context, path string) answer {
	begin := time.Now()
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.host+c.Path()+path, nil)
	recorder := httptest.NewRecorder()
	c.ServeHTTP(recorder, request)
	return answer{recorder, time.Since(begin)}
}

var numbered = regexp.MustCompile(`<data id="number" value="(\d+)">`)

// number returns the number of an answered page.
func (a answer) number(t *testing.T) string {
	t.Helper()
	found := numbered.FindStringSubmatch(a.Body.String())
	if found == nil {
		t.Fatalf("no number in %d: %s", a.Code, a.Body)
	}
	return found[1]
}

// playing runs a test on the clock of synctest, with a crowd whose changes are told.
func playing(t *testing.T, many int, test func(*testing.T, *crowd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, many)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go c.changes.tell(ctx, c.changed)
		synctest.Wait()
		time.Sleep(rest)
		test(t, c)
	})
}

// A request that has the current page is answered with the next change, at once, and after half a minute without one
// that there is none.
func TestAnswered(t *testing.T) {
	playing(t, 3, func(t *testing.T, c *crowd) {
		loaded := c.ask(t.Context(), "")
		if !strings.HasPrefix(loaded.Body.String(), "<!DOCTYPE html>") {
			t.Errorf("loaded: %.200s", loaded.Body)
		}
		number := loaded.number(t)
		if got := c.ask(t.Context(), "?after="+number); got.Code != http.StatusNoContent || got.Body.Len() > 0 || got.took != longest {
			t.Errorf("without a change: %d after %s: %s", got.Code, got.took, got.Body)
		}
		time.AfterFunc(7*time.Second, func() { c.become(keyOf(0), "ErrApplied") })
		got := c.ask(t.Context(), "?after="+number)
		if got.Code != http.StatusOK || got.took != 7*time.Second || !strings.Contains(got.Body.String(), "team/c00000: ErrApplied") || strings.Contains(got.Body.String(), "<html") {
			t.Errorf("with a change: %d after %s: %.300s", got.Code, got.took, got.Body)
		}
		// It is changed back while nobody waits.
		c.become(keyOf(0), "")
		time.Sleep(longest)
		if back := c.ask(t.Context(), "?after="+got.number(t)); back.took != 0 || back.number(t) != number {
			t.Errorf("changed back: %d after %s", back.Code, back.took)
		}
		if wrong := c.ask(t.Context(), "?after=x"); wrong.Code != http.StatusBadRequest {
			t.Errorf("without a number: %d", wrong.Code)
		}
	})
}

// An agent that falls silent causes no event.
func TestSilent(t *testing.T) {
	playing(t, 1, func(t *testing.T, c *crowd) {
		time.Sleep(c.objects.StaleAfter - 2*rest)
		got := c.ask(t.Context(), "?after="+c.ask(t.Context(), "").number(t))
		if got.took > longest || !strings.Contains(got.Body.String(), "AgentStale") {
			t.Errorf("%d after %s: %s", got.Code, got.took, got.Body)
		}
	})
}

// Objects that change all the time are drawn twice a second, for all readers together.
func TestShared(t *testing.T) {
	playing(t, 3, func(t *testing.T, c *crowd) {
		const readers = 50
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		before := c.snapshots()
		answers := make([]int, readers)
		var done sync.WaitGroup
		for i := range readers {
			done.Go(func() {
				path := []string{"", view.ClusterID(keyOf(i % 3))}[i%2]
				for number := "0"; ctx.Err() == nil; answers[i]++ {
					got := c.ask(ctx, path+"?after="+number)
					if ctx.Err() == nil {
						number = got.number(t)
					}
				}
			})
		}
		states := []string{"ErrApplied", "NotReady"}
		for i := 0; ctx.Err() == nil; i++ {
			c.become(keyOf(0), states[i%2])
			time.Sleep(30 * time.Millisecond)
		}
		done.Wait()
		for _, count := range answers {
			if count < 20 || count > 45 { // Of 40; an unchanged page is not sent again.
				t.Errorf("a reader got %d answers in 20 s", count)
			}
		}
		if drawn := c.snapshots() - before; drawn > 45 {
			t.Errorf("drawn %d times in 20 s", drawn)
		}
	})
}

// What waits is bounded, and what has gone makes room.
func TestTooMany(t *testing.T) {
	playing(t, 1, func(t *testing.T, c *crowd) {
		number := c.ask(t.Context(), "").number(t)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range most {
			waiting.Go(func() { c.ask(ctx, "?after="+number) })
		}
		synctest.Wait()
		if got := c.ask(t.Context(), "?after="+number); got.Code != http.StatusServiceUnavailable || got.took != 0 {
			t.Errorf("one more: %d after %s", got.Code, got.took)
		}
		if got := c.ask(t.Context(), ""); got.Code != http.StatusOK {
			t.Errorf("who does not wait: %d", got.Code)
		}
		cancel()
		waiting.Wait()
		if got := c.ask(t.Context(), "?after=0"); got.Code != http.StatusOK {
			t.Errorf("afterwards: %d", got.Code)
		}
	})
}

// A Cluster is imported while a reader looks at it: its Bundles come. An age alone is no change.
func TestImportedWhileSelected(t *testing.T) {
	playing(t, 2, func(t *testing.T, c *crowd) {
		delete(c.objects.FleetClusters, keyOf(0))
		path := view.ClusterID(keyOf(0))
		loaded := c.ask(t.Context(), path)
		if len(c.selected) > 0 || !strings.Contains(loaded.Body.String(), "not in Fleet") {
			t.Errorf("%v are selected: %s", c.selected, loaded.Body)
		}
		time.AfterFunc(time.Second, func() { c.become(keyOf(0), "") })
		got := c.ask(t.Context(), path+"?after="+loaded.number(t))
		if got.took > 2*time.Second || !strings.Contains(got.Body.String(), "classes/cni") {
			t.Errorf("after %s: %s", got.took, got.Body)
		}
		time.AfterFunc(10*time.Second, func() { c.become(keyOf(1), "") })
		if aged := c.ask(t.Context(), path+"?after="+got.number(t)); aged.Code != http.StatusNoContent {
			t.Errorf("%d after %s: %s", aged.Code, aged.took, aged.Body)
		}
		for i := range 100 { // What there is not is not kept.
			if got := c.ask(t.Context(), fmt.Sprintf("cluster/team/none-%d", i)); !strings.Contains(got.Body.String(), "There is no such Cluster.") {
				t.Fatalf("%s", got.Body)
			}
		}
		if kept := len(c.drawn.details); kept > 3 {
			t.Errorf("the details of %d Clusters are kept", kept)
		}
	})
}

// Ten thousand Clusters take two megabytes, in lists of bounded length.
func TestManyClusters(t *testing.T) {
	const many = 10_000
	c := newCrowd(t, many)
	text := c.ask(t.Context(), "").Body.String()
	if limit := many*220 + 20<<10; len(text) > limit {
		t.Errorf("the page has %d bytes, more than %d", len(text), limit)
	}
	count := 0
	for _, list := range strings.Split(text, `<ul class="cells"`)[1:] {
		cells := strings.Count(list, `href="`+c.Path()+"cluster/")
		if count += cells; cells > together {
			t.Errorf("a list has %d cells", cells)
		}
	}
	if count != many {
		t.Errorf("there are %d cells", count)
	}
}

// Texts from outside contain no markup.
func TestCell(t *testing.T) {
	const hostile = `"><script>'&` + "`"
	for _, isDense := range []bool{false, true} {
		node := &view.Node{ID: "cluster/a/" + hostile + "?x=1#y%2e", Name: hostile, Namespace: hostile, Reason: hostile, State: view.Problem}
		got := string((&tree{Base: "/t/", Dense: isDense}).Cell(node))
		if strings.Contains(got, "<script") || strings.Contains(got, `""`) || strings.Contains(got, "'") {
			t.Errorf("the text contains markup: %s", got)
		}
		if want := ` href="/t/cluster/a/%22%3E%3Cscript%3E%27&amp;%60%3Fx=1%23y%252e"`; !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
}

// The browser downloads each format instead of showing it.
func TestDownloads(t *testing.T) {
	c := newCrowd(t, 600)
	for name, has := range map[string]string{"view.mmd": "flowchart LR", "view.json": `"counts":{"Ready":600}`} {
		got := c.ask(t.Context(), name)
		if got.Code != http.StatusOK || !strings.Contains(got.Body.String(), has) {
			t.Errorf("%s: %d: %.300s", name, got.Code, got.Body)
		}
		if header := got.Header(); header.Get("Content-Disposition") != `attachment; filename="`+name+`"` || header.Get("Content-Type") != downloads[name] {
			t.Errorf("%s: %v", name, header)
		}
	}
}

// The server refuses who does not know the token, and what is too large.
func TestGuarded(t *testing.T) {
	c := newCrowd(t, 1)
	server := httptest.NewUnstartedServer(nil)
	server.Config = c.server()
	server.Start()
	defer server.Close()
	c.hosts[strings.TrimPrefix(server.URL, "http://")] = true
	page := server.URL + c.Path()
	for name, test := range map[string]struct {
		method, url, host, header string
		want                      int
	}{
		"the page":             {"GET", page, "", "", http.StatusOK},
		"without the token":    {"GET", server.URL + "/", "", "", http.StatusNotFound},
		"with another token":   {"GET", server.URL + "/AAAAAAAAAAAAAAAAAAAAAAAAAA/", "", "", http.StatusNotFound},
		"under another name":   {"GET", page, "muster.example.com", "", http.StatusNotFound},
		"to change something":  {"POST", page, "", "", http.StatusMethodNotAllowed},
		"something else there": {"GET", page + "../../etc/passwd", "", "", http.StatusNotFound},
		"a large header":       {"GET", page, "", strings.Repeat("x", 64<<10), http.StatusRequestHeaderFieldsTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), test.method, test.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = test.host
			request.Header.Set("X-Large", test.header)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			if body, _ := io.ReadAll(response.Body); response.StatusCode != test.want {
				t.Errorf("got %d, want %d: %.200s", response.StatusCode, test.want, body)
			}
			policy := response.Header.Get("Content-Security-Policy")
			if test.header == "" && (!strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe")) {
				t.Errorf("the policy is %q", policy)
			}
		})
	}
}

// BenchmarkDraw draws a page of ten thousand Clusters.
func BenchmarkDraw(b *testing.B) {
	c := newCrowd(b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		c.draw(time.Now(), view.ClusterID(keyOf(0)))
	}
}
