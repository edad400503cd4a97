package inputs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// HelmChartProxies that are deleted before their turn leave no goroutine behind, however slow the repositories of
// their namespace are: otherwise the bubble would not end.
func TestForgottenBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reader{Now: time.Now, Wake: func(key plan.Key, _ bool) { t.Errorf("%s was read", key) }}
		r.all, r.slots = map[plan.Key]*entry{}, fair.New(math.MaxInt64, perNamespace)
		for range perNamespace {
			if err := r.slots.Wait(context.Background(), "slow"); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 10 {
			proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "slow", Name: "web", UID: types.UID(fmt.Sprint(i))}}
			if _, _, err := r.Get(proxy); err == nil {
				t.Fatal("it was read at once")
			}
			if i%2 == 0 { // The others are recreated under the same name.
				r.Forget(client.ObjectKeyFromObject(proxy))
			}
		}
		r.Forget(plan.Key{Namespace: "slow", Name: "web"})
	})
}

// broken panics.
type broken struct{ client.Reader }

func (broken) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	panic("sesame")
}

// A panic while inputs are read is the trouble of their HelmChartProxy: it must not end the program. The inputs are read
// again later, and the others of the namespace are read, too.
func TestPanic(t *testing.T) {
	woken := make(chan plan.Key)
	r := &Reader{Now: time.Now, Wake: func(key plan.Key, _ bool) { woken <- key }, Live: broken{}}
	for i := range perNamespace + 1 {
		proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint(i))}}
		proxy.Spec.RepoURL, proxy.Spec.ChartName = "https://charts.example.com", "web"
		proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: "values"}}
		if _, _, err := r.Get(proxy); !errors.Is(err, ErrReading) {
			t.Fatal(err)
		}
		if key := <-woken; key != client.ObjectKeyFromObject(proxy) {
			t.Errorf("%s is woken", key)
		}
		in, again, err := r.Get(proxy)
		if err != nil || !in.Incomplete || in.Trouble.Reason != addonsv1.HelmReleaseProxyCreationFailedReason || again <= 0 || again > PollInterval {
			t.Fatalf("%+v, again in %s, %v", in, again, err)
		}
		if strings.Contains(in.Trouble.Message, "sesame") {
			t.Errorf("the message shows what the panic says: %s", in.Trouble.Message)
		}
	}
}

// slow answers its first reader last, when the test lets it.
type slow struct {
	client.Reader
	count atomic.Int32
	first chan struct{}
}

func (s *slow) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	count := s.count.Add(1)
	if count == 1 {
		<-s.first
	}
	return fmt.Errorf("answer %d", count)
}

// A read that began before the HelmChartProxy was forgotten says nothing about it when it ends.
func TestForgottenDuringARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := &slow{first: make(chan struct{})}
		r := &Reader{Now: time.Now, Wake: func(plan.Key, bool) {}, Live: live}
		proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "web"}}
		proxy.Spec.RepoURL, proxy.Spec.ChartName = "https://charts.example.com", "web"
		proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: "values"}}
		_, _, _ = r.Get(proxy)
		synctest.Wait()
		r.Forget(client.ObjectKeyFromObject(proxy))
		_, _, _ = r.Get(proxy)
		synctest.Wait()
		close(live.first)
		synctest.Wait()
		in, _, err := r.Get(proxy)
		if err != nil || !strings.Contains(in.Trouble.Message, "answer 2") {
			t.Errorf("%+v, %v", in, err)
		}
	})
}

// Only changed inputs are news to the releases: the first ones, and those after an edit, but not those that are read again. After
// a restart, the status that was there is about the same inputs until they change.
func TestNews(t *testing.T) {
	now, woken := time.Now(), make(chan bool)
	r := &Reader{Now: func() time.Time { return now }, Wake: func(_ plan.Key, isNews bool) { woken <- isNews }, Live: absent{}}
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "web", Generation: 1}}
	proxy.Spec.RepoURL, proxy.Spec.ChartName = "https://charts.example.com", "web"
	proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: "values"}}
	proxy.Status.ObservedGeneration = 1
	for i, step := range []struct {
		edit              int64
		live              client.Reader
		isNews, isResumed bool
	}{{isNews: true, isResumed: true}, {isResumed: true}, {live: broken{}, isNews: true}, {}, {edit: 1, isNews: true}, {}} {
		if step.live != nil {
			r.Live = step.live
		}
		proxy.Generation += step.edit
		_, _, _ = r.Get(proxy)
		isNews := <-woken
		if _, isResumed := r.Begun(proxy); isNews != step.isNews || isResumed != step.isResumed {
			t.Errorf("read %d: news: %t, want %t; resumed: %t, want %t", i, isNews, step.isNews, isResumed, step.isResumed)
		}
		now = now.Add(PollInterval)
	}
}

// absent answers that nothing is there.
type absent struct{ client.Reader }

func (absent) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("it is not there")
}

// A report says nothing about a HelmReleaseProxy as it was before, nor about another one of the same name, nor about what a
// restore of etcd brings back. It stays true later.
func TestReports(t *testing.T) {
	read := func(uid types.UID, version string) *addonsv1.HelmReleaseProxy {
		return &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-one", UID: uid, ResourceVersion: version}}
	}
	r, in := &Reader{}, &Inputs{Digest: "1"}
	r.Saw(read("a", "9"), in)
	r.Saw(read("a", "11"), in)
	for name, test := range map[string]struct {
		release *addonsv1.HelmReleaseProxy
		in      *Inputs
		want    bool
	}{
		"as it reported":      {read("a", "9"), in, true},
		"later":               {read("a", "10"), in, true},
		"read before":         {read("a", "8"), in, false},
		"for other inputs":    {read("a", "10"), &Inputs{Digest: "2"}, false},
		"made under its name": {read("b", "10"), in, false},
	} {
		if got := r.HasReported(test.release, test.in); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if r.Saw(read("a", "5"), in); !r.HasReported(read("a", "5"), in) {
		t.Error("what was restored never reports")
	}
}

// A template that an earlier version accepted, and that is nested too deep, keeps what is deployed: the inputs are
// incomplete, and the HelmChartProxy says what to do.
func TestDeepTemplate(t *testing.T) {
	woken := make(chan bool)
	r := &Reader{Now: time.Now, Wake: func(plan.Key, bool) { woken <- true }, Live: broken{}}
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "web"}}
	proxy.Spec.RepoURL, proxy.Spec.ChartName = "https://charts.example.com", "web"
	proxy.Spec.ValuesTemplate = strings.Repeat("{{ if 1 }}\n", 101) + strings.Repeat("{{ end }}", 101)
	_, _, _ = r.Get(proxy)
	<-woken
	in, again, err := r.Get(proxy)
	if err != nil || !in.Incomplete || again != 0 || in.Trouble.Reason != addonsv1.ValueParsingFailedReason ||
		!strings.Contains(in.Trouble.Message, "valuesTemplate:101: blocks and parentheses are nested more than 100 deep; move the inner ones") {
		t.Errorf("%+v, again in %s, %v", in, again, err)
	}
}
