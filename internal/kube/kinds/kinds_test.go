package kinds

import (
	"context"
	"errors"
	"io"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
)

// attempt is a cache whose list ends as its field says.
type attempt struct {
	cache.Cache
	fails, broken error
	failed        toolscache.WatchErrorHandlerWithContext
	indexed       *[]string
	ended         *atomic.Int32
}

func (a *attempt) Start(ctx context.Context) error {
	<-ctx.Done()
	a.ended.Add(1)
	return nil
}

func (a *attempt) GetInformer(ctx context.Context, _ client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	informer := controllertest.NewFakeInformer()
	switch {
	case a.fails != nil:
		return nil, a.fails
	case a.broken != nil:
		go func() {
			for range 3 {
				a.failed(ctx, &toolscache.Reflector{}, a.broken)
				time.Sleep(20 * time.Minute) // The informer itself lists again.
			}
			informer.Synced()
		}()
	default:
		informer.Synced()
	}
	return informer, nil
}

func (a *attempt) IndexField(_ context.Context, _ client.Object, name string, _ client.IndexerFunc) error {
	*a.indexed = append(*a.indexed, name)
	return nil
}

// Watch asks every 2 s for a kind that is not served, and leaves any other error to the informer, which pauses after a denied
// list. The caller hears of the end, and of each new reason; nothing is left of a failed attempt.
func TestWatch(t *testing.T) {
	unserved := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "Thing"}}
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no"))
	for name, test := range map[string]struct {
		attempts []attempt
		told     []error
		lasts    time.Duration
	}{
		"at once":          {attempts: []attempt{{}}, told: []error{nil}},
		"not served":       {attempts: []attempt{{fails: unserved}, {fails: unserved}, {}}, told: []error{unserved, nil}, lasts: 4 * time.Second},
		"denied":           {attempts: []attempt{{broken: denied}}, told: []error{denied, nil}, lasts: time.Hour + 3*Patience},
		"both":             {attempts: []attempt{{fails: unserved}, {broken: denied}}, told: []error{unserved, denied, nil}, lasts: time.Hour + 3*Patience + PollInterval},
		"broken otherwise": {attempts: []attempt{{broken: io.ErrUnexpectedEOF}}, told: []error{nil}, lasts: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				var ended atomic.Int32
				count := 0
				var indexed []string
				newCache := func(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
					its := test.attempts[count]
					count++
					its.failed, its.ended, its.indexed = failed, &ended, &indexed
					return &its, nil
				}
				var told []error
				begun := time.Now()
				Watch(ctx, newCache, Of(&metav1.PartialObjectMetadata{}, map[string]client.IndexerFunc{"index": nil}), func(listed Listed) {
					told = append(told, listed.Err)
					if (listed.Err == nil) != (listed.Objects != nil) || (listed.Err == nil) != (listed.Informer != nil) {
						t.Errorf("told %+v", listed)
					}
				})
				if got := time.Since(begun); got != test.lasts || !slices.Equal(told, test.told) || count != len(test.attempts) {
					t.Errorf("told %v after %v and %d attempts", told, got, count)
				}
				synctest.Wait()
				if int(ended.Load()) != count-1 || len(indexed) == 0 {
					t.Errorf("%d of %d caches have ended; indexed %v", ended.Load(), count, indexed)
				}
				stop()
				synctest.Wait()
				if int(ended.Load()) != count {
					t.Errorf("%d of %d caches have ended", ended.Load(), count)
				}
			})
		})
	}
	t.Run("ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, stop)
			var ended atomic.Int32
			Watch(ctx, func(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
				return &attempt{broken: io.ErrUnexpectedEOF, failed: failed, ended: &ended, indexed: &[]string{}}, nil
			}, Of(&metav1.PartialObjectMetadata{}, nil), func(listed Listed) { t.Errorf("told %+v", listed) })
			synctest.Wait()
			if ended.Load() != 1 {
				t.Errorf("%d caches have ended", ended.Load())
			}
			time.Sleep(2 * time.Hour)
		})
	})
}

// deniedLists is an API server that denies each list and watch, until it allows lists.
type deniedLists struct{ asked, allowed atomic.Int32 }

func (s *deniedLists) RoundTrip(request *http.Request) (*http.Response, error) {
	s.asked.Add(1)
	code, body := http.StatusForbidden, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`
	if s.allowed.Load() > 0 && request.URL.Query().Get("watch") == "" {
		code, body = http.StatusOK, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"}}`
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: request}, nil
}

// A kind that may never be listed takes no more memory as time passes, whatever the options of the caches: a tenant may refer
// to it.
func TestDeniedListsLeaveNothingBehind(t *testing.T) {
	handlers := utilruntime.ErrorHandlers // They pause by the time outside the bubble.
	utilruntime.ErrorHandlers = nil
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })
	for name, namespaces := range map[string]map[string]cache.Config{"all namespaces": nil, "one namespace": {"team": {}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kind, server := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}, &deniedLists{}
				mapper := meta.NewDefaultRESTMapper(nil)
				mapper.Add(kind, meta.RESTScopeNamespace)
				thing := &metav1.PartialObjectMetadata{}
				thing.SetGroupVersionKind(kind)
				ctx, stop := context.WithCancel(t.Context())
				listed := make(chan struct{})
				var handler toolscache.WatchErrorHandlerWithContext
				go Watch(ctx, func(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
					handler = failed
					return cache.New(&rest.Config{}, cache.Options{
						HTTPClient: &http.Client{Transport: server}, Scheme: runtime.NewScheme(), Mapper: mapper,
						DefaultNamespaces: namespaces, DefaultWatchErrorHandler: failed,
					})
				}, Of(thing, nil), func(its Listed) {
					if its.Err == nil {
						close(listed)
					}
				})
				goroutines := func(after time.Duration) int {
					time.Sleep(after)
					synctest.Wait()
					return goruntime.NumGoroutine()
				}
				// One for each try were hundreds. A few are the runtime's and the test runner's, which are counted too.
				if early, late := goroutines(5*time.Minute), goroutines(5*time.Hour); late > early+20 {
					t.Errorf("%d goroutines after minutes, %d after hours", early, late)
				}
				if asked := server.asked.Load(); asked > 2*2*60*5 { // A watch and a list, twice a minute.
					t.Errorf("asked %d times in five hours", asked)
				}
				server.allowed.Store(1)
				begun := time.Now()
				<-listed
				if took := time.Since(begun); took > time.Minute {
					t.Errorf("listed only after %v", took)
				}
				begun = time.Now() // An API server that has just started denies requests for a moment.
				handler(ctx, &toolscache.Reflector{}, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no")))
				if took := time.Since(begun); took > 0 {
					t.Errorf("after the first list, it pauses for %v", took)
				}
				stop()
			})
		})
	}
}

type served struct {
	meta.RESTMapper
	kinds []string
}

func (s *served) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if !slices.Contains(s.kinds, kind.Kind) {
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return &meta.RESTMapping{}, nil
}

// WaitServed ends when nothing is missing, and goes on after an error.
func TestWaitServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mapper, asked := &served{}, 0
		group := schema.GroupVersion{Group: "example.com", Version: "v1"}
		missing := func(context.Context) (string, error) {
			if asked++; asked == 1 {
				return "", errors.New("broken")
			}
			if asked > 2 {
				mapper.kinds = append(mapper.kinds, []string{"One", "Two"}[asked-3])
			}
			return Missing(mapper, group.WithKind("Two"), group.WithKind("One")), nil
		}
		if got := Missing(mapper, group.WithKind("Two"), group.WithKind("One")); got != "One.example.com, Two.example.com" {
			t.Errorf("missing %q", got)
		}
		begun := time.Now()
		if err := WaitServed(t.Context(), missing); err != nil || time.Since(begun) != 6*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := WaitServed(ctx, func(context.Context) (string, error) { return "all", nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
