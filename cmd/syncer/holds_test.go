package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	return interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
		number++
		return answer(number, func() error { return c.Patch(ctx, object, patch, options...) })
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
			output: "ended the hold of team/two\nended the hold of team/one\nno upgrade is held\n",
		},
		"a Cluster is deleted meanwhile": {
			server: patches(func(number int, do func() error) error {
				return errors.Join(do(), apierrors.NewNotFound(resource, "one"))
			}),
			output: "ended the hold of team/one\nended the hold of team/two\nno upgrade is held\n",
		},
		"one is refused": {
			server: patches(func(number int, do func() error) error {
				if number == 2 {
					return do()
				}
				return apierrors.NewForbidden(resource, "one", errors.New("by a policy"))
			}),
			want: []string{"annotation " + stamp.HookAnnotation + " may still be on Clusters", "team/one: ", "by a policy", "--no-hooks", stamp.HookAnnotation + "-"},
			left: []string{"one"},
		},
		"a webhook puts them back": {
			server: patches(func(int, func() error) error { return nil }),
			want:   []string{"it came back at once"},
			left:   []string{"one", "two"},
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
				if test.want == nil && out.String() != test.output {
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
