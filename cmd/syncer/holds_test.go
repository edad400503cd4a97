package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

const holdOfOthers = "before-upgrade.hook.cluster.cluster.x-k8s.io/muster-else"

// patches lets a fake API server answer patches; it gets the number of the patch, from 1.
func patches(answer func(number int, do func() error) error) interceptor.Funcs {
	number := 0
	var mu sync.Mutex
	return interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
		mu.Lock()
		defer mu.Unlock()
		number++
		return answer(number, func() error { return c.Patch(ctx, object, patch, options...) })
	}}
}

// isSameOutput compares lines in any order.
func isSameOutput(got, want string) bool {
	lines := func(text string) []string { return slices.Sorted(strings.Lines(text)) }
	return slices.Equal(lines(got), lines(want))
}

// refusing answers all patches of one Cluster with an error.
func refusing(name string, err error) interceptor.Funcs {
	return interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
		if object.GetName() == name {
			return err
		}
		return c.Patch(ctx, object, patch, options...)
	}}
}

// A hold that cannot be ended is no error: a tenant could make one, and keep Muster from being uninstalled. Each Cluster that
// is left has an event with the command.
func TestEndHolds(t *testing.T) {
	resource := schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "clusters"}
	const all, command = "ended the hold of team/one\nended the hold of team/two\nno upgrade is held\n", "kubectl annotate clusters.cluster.x-k8s.io --all --all-namespaces "
	for name, test := range map[string]struct {
		server interceptor.Funcs
		// output is the whole output, says are parts of it.
		output string
		says   []string
		// left are the Clusters that are still held, and untold those of them without an event.
		left, untold []string
	}{
		"at once": {output: all},
		"page by page": {
			server: interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				page, asked := list.(*metav1.PartialObjectMetadataList), (&client.ListOptions{}).ApplyOptions(options)
				if asked.Limit != int64(pager.Small) { // Tenants write the metadata of Clusters.
					return fmt.Errorf("a page may have %d Clusters", asked.Limit)
				}
				if err := c.List(ctx, page); err != nil {
					return err
				}
				number := len(asked.Continue)
				page.Items = page.Items[number : number+1]
				if number < 2 {
					page.Continue = asked.Continue + "x"
				}
				return nil
			}},
			output: all,
		},
		"another client changes a Cluster meanwhile": {
			server: patches(func(number int, do func() error) error {
				if number == 1 {
					return apierrors.NewConflict(resource, "one", errors.New("changed"))
				}
				return do()
			}),
			output: all,
		},
		"a Cluster is deleted meanwhile": {
			server: patches(func(number int, do func() error) error {
				return errors.Join(do(), apierrors.NewNotFound(resource, "one"))
			}),
			output: all,
		},
		"one is refused": {
			server: refusing("one", apierrors.NewForbidden(resource, "one", errors.New("by a policy"))),
			says:   []string{"ended the hold of team/two\n", "left the hold of team/one: ", "by a policy", "annotation " + stamp.HookAnnotation + " may still be on Clusters", command + stamp.HookAnnotation + "-\n"},
			left:   []string{"one"},
		},
		"a webhook puts them back": {
			server: patches(func(int, func() error) error { return nil }),
			says:   []string{"the hold came back at once"},
			left:   []string{"one", "two"},
		},
		"Cluster API refuses all changes of one": {
			server: refusing("one", apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "one", field.ErrorList{
				field.Invalid(nil, "x\x1b[2J", `admission webhook "validation.cluster.cluster.x-k8s.io" denied the request: no such class`)})),
			says: []string{"ended the hold of team/two\n", "left the hold of team/one: ", "no such class", `x\x1b[2J`},
			left: []string{"one"},
		},
		"events are refused": {
			server: interceptor.Funcs{
				Patch: refusing("one", errors.New("no")).Patch,
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
					return errors.New("no room\x1b[2J")
				},
			},
			says: []string{"left the hold of team/one: no\n", `events on these Clusters cannot be written: no room\x1b[2J`},
			left: []string{"one"}, untold: []string{"one"},
		},
		"Clusters cannot be read": {
			server: interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("no route to host")
			}},
			says: []string{"the Clusters cannot be read: no route to host\n", command},
			left: []string{"one", "two"}, untold: []string{"one", "two"},
		},
		"Cluster API is not installed": {
			server: interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}}
			}},
			output: "no upgrade is held\n",
			left:   []string{"one", "two"}, untold: []string{"one", "two"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scheme, err := program.Scheme()
				if err != nil {
					t.Fatal(err)
				}
				cluster := func(name string, holds ...string) client.Object {
					annotations := map[string]string{"note": "kept"}
					for _, key := range holds {
						annotations[key] = ""
					}
					return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), Annotations: annotations}}
				}
				direct := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
					cluster("free", holdOfOthers), cluster("one", stamp.HookAnnotation), cluster("two", stamp.HookAnnotation, holdOfOthers),
				).Build()
				there := interceptor.NewClient(direct, test.server)
				var out strings.Builder
				begin := time.Now()
				endHolds(t.Context(), there, &out)
				if took := time.Since(begin); took > holdsTimeout {
					t.Errorf("it took %s", took)
				}
				if test.says == nil && !isSameOutput(out.String(), test.output) {
					t.Errorf("it says:\n%s", out.String())
				}
				for _, part := range test.says {
					if !strings.Contains(out.String(), part) {
						t.Errorf("no %q in:\n%s", part, out.String())
					}
				}
				for name, others := range map[string][]string{"free": {holdOfOthers, "note"}, "one": {"note"}, "two": {holdOfOthers, "note"}} {
					got := &clusterv1.Cluster{}
					if err := direct.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: name}, got); err != nil {
						t.Fatal(err)
					}
					if slices.Contains(test.left, name) {
						others = append(others, stamp.HookAnnotation)
					}
					if keys := slices.Sorted(maps.Keys(got.Annotations)); !slices.Equal(keys, slices.Sorted(slices.Values(others))) {
						t.Errorf("Cluster %s has %q, not %q", name, keys, others)
					}
				}
				told := eventsv1.EventList{}
				if err := direct.List(t.Context(), &told); err != nil {
					t.Fatal(err)
				}
				var about []string
				for _, event := range told.Items {
					about = append(about, event.Regarding.Name)
					if command := "kubectl annotate clusters.cluster.x-k8s.io -n team " + event.Regarding.Name + " " + stamp.HookAnnotation + "-"; !strings.HasSuffix(event.Note, command) || len(event.Note) > message.Note {
						t.Errorf("the event says %q", event.Note)
					}
				}
				want := slices.DeleteFunc(slices.Clone(test.left), func(name string) bool { return slices.Contains(test.untold, name) })
				if slices.Sort(about); !slices.Equal(about, want) {
					t.Errorf("events on %q, want %q", about, want)
				}
			})
		})
	}
}
