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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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

// isSameOutput compares lines in any order, up to a message of the API server.
func isSameOutput(got, want string) bool {
	lines := func(text string) []string {
		var result []string
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, "this Cluster: ")
			result = append(result, strings.TrimSpace(line))
		}
		return slices.Sorted(slices.Values(result))
	}
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

func TestEndHolds(t *testing.T) {
	resource := schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "clusters"}
	for name, test := range map[string]struct {
		server interceptor.Funcs
		// want are parts of the error, none for success; left are the Clusters that are still held.
		want, left []string
		output     string
	}{
		"at once": {
			output: "ended the hold of team/one\nended the hold of team/two\nno upgrade is held\n",
		},
		"page by page": {
			server: interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				page, asked := list.(*metav1.PartialObjectMetadataList), (&client.ListOptions{}).ApplyOptions(options)
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
			output: "ended the hold of team/one\nended the hold of team/two\nno upgrade is held\n",
		},
		"another client changes a Cluster meanwhile": {
			server: patches(func(number int, do func() error) error {
				if number == 1 {
					return apierrors.NewConflict(resource, "one", errors.New("changed"))
				}
				return do()
			}),
			output: "ended the hold of team/one\nended the hold of team/two\nno upgrade is held\n",
		},
		"a Cluster is deleted meanwhile": {
			server: patches(func(number int, do func() error) error {
				return errors.Join(do(), apierrors.NewNotFound(resource, "one"))
			}),
			output: "ended the hold of team/one\nended the hold of team/two\nno upgrade is held\n",
		},
		"one is refused": {
			server: refusing("one", apierrors.NewForbidden(resource, "one", errors.New("by a policy"))),
			want:   []string{"annotation " + stamp.HookAnnotation + " may still be on Clusters", "team/one: ", "by a policy", "--no-hooks", stamp.HookAnnotation + "-"},
			left:   []string{"one"},
		},
		"a webhook puts them back": {
			server: patches(func(int, func() error) error { return nil }),
			want:   []string{"the hold came back at once"},
			left:   []string{"one", "two"},
		},
		"Cluster API refuses all changes of one": {
			server: refusing("one", apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "one", field.ErrorList{
				field.Invalid(nil, "x\x1b[2J", `admission webhook "validation.cluster.cluster.x-k8s.io" denied the request: no such class`)})),
			output: "ended the hold of team/two\nleft the hold of team/one, because Cluster API refuses every change of this Cluster: \nno upgrade is held\n",
			left:   []string{"one"},
		},
		"a policy refuses all changes of one": {
			server: refusing("one", apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "one", field.ErrorList{field.Invalid(nil, "x", "by a policy\x1b[2J")})),
			want:   []string{"team/one: ", `by a policy\x1b[2J`},
			left:   []string{"one"},
		},
		"Clusters cannot be read": {
			server: interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("no route to host")
			}},
			want: []string{"no route to host", "--no-hooks"},
			left: []string{"one", "two"},
		},
		"Cluster API is not installed": {
			server: interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}}
			}},
			output: "no upgrade is held\n",
			left:   []string{"one", "two"},
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
					return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Annotations: annotations}}
				}
				there := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
					cluster("free", holdOfOthers), cluster("one", stamp.HookAnnotation), cluster("two", stamp.HookAnnotation, holdOfOthers),
				).WithInterceptorFuncs(test.server).Build()
				var out strings.Builder
				err = endHolds(t.Context(), there, &out)
				if (err != nil) != (test.want != nil) {
					t.Errorf("the error is %v", err)
				}
				for _, part := range test.want {
					if !strings.Contains(fmt.Sprint(err), part) {
						t.Errorf("no %q in %v", part, err)
					}
				}
				if test.want == nil && !isSameOutput(out.String(), test.output) {
					t.Errorf("it says:\n%s", out.String())
				}
				for name, others := range map[string][]string{"free": {holdOfOthers, "note"}, "one": {"note"}, "two": {holdOfOthers, "note"}} {
					got := &clusterv1.Cluster{}
					if err := there.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: name}, got); err != nil {
						t.Fatal(err)
					}
					if slices.Contains(test.left, name) {
						others = append(others, stamp.HookAnnotation)
					}
					if keys := slices.Sorted(maps.Keys(got.Annotations)); !slices.Equal(keys, slices.Sorted(slices.Values(others))) {
						t.Errorf("Cluster %s has %q, not %q", name, keys, others)
					}
				}
			})
		})
	}
}
