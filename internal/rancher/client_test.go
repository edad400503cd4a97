package rancher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

type indexes struct{ *fake.ClientBuilder }

func (i indexes) IndexField(_ context.Context, object client.Object, name string, values client.IndexerFunc) error {
	i.WithIndex(object, name, values)
	return nil
}

// A Cluster waits for a Fleet Cluster to go that has Rancher's label, so it must hear that the label is gone, too.
func TestConcerned(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "noted", Annotations: map[string]string{NoteAnnotation: "c-abcde"},
	}})
	if err := IndexFields(t.Context(), indexes{builder}); err != nil {
		t.Fatal(err)
	}
	events := handler.EnqueueRequestsFromMapFunc(NewClient(t.Context(), &kube.Applier{Client: builder.Build()}, nil, nil).Concerned)
	attached := map[string]string{stamp.AttachedAnnotation: "team/one"}
	theirs := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: attached, Labels: map[string]string{stamp.RancherClusterLabel: "c-abcde"}}}
	other := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: attached}}
	type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]
	for name, test := range map[string]struct {
		event func(queue)
		want  []string
	}{
		"created":             {func(q queue) { events.Create(t.Context(), event.CreateEvent{Object: theirs}, q) }, []string{"team/noted", "team/one"}},
		"another, created":    {func(q queue) { events.Create(t.Context(), event.CreateEvent{Object: other}, q) }, nil},
		"gets the label":      {func(q queue) { events.Update(t.Context(), event.UpdateEvent{ObjectOld: other, ObjectNew: theirs}, q) }, []string{"team/noted", "team/one"}},
		"loses the label":     {func(q queue) { events.Update(t.Context(), event.UpdateEvent{ObjectOld: theirs, ObjectNew: other}, q) }, []string{"team/noted", "team/one"}},
		"another, is changed": {func(q queue) { events.Update(t.Context(), event.UpdateEvent{ObjectOld: other, ObjectNew: other}, q) }, nil},
		"deleted":             {func(q queue) { events.Delete(t.Context(), event.DeleteEvent{Object: theirs}, q) }, []string{"team/noted", "team/one"}},
		"another, deleted":    {func(q queue) { events.Delete(t.Context(), event.DeleteEvent{Object: other}, q) }, nil},
	} {
		woken := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
		test.event(woken)
		var got []string
		for woken.Len() > 0 {
			its, _ := woken.Get()
			woken.Done(its)
			got = append(got, fmt.Sprint(its))
		}
		if slices.Sort(got); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Rancher's second CRD may come long after the first. Its list has as much time as the first one, and
// during that time no Cluster reports a missing ClusterRole.
func TestLaterCRDIsListedInPeace(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	crd := func(name string) client.Object {
		object := references.CRD()
		object.SetName(name)
		object.SetUID(types.UID(name))
		return object
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd(ManagementCRD)).Build()
	c := NewClient(t.Context(), &kube.Applier{Client: reader}, nil, func(toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
		return nil, errors.New("no answer yet")
	})
	if _, err := c.read(t.Context()); !errors.Is(err, ErrUnlisted) {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.since, c.listed = time.Now().Add(-time.Hour), map[schema.GroupVersionKind]client.Reader{ManagementKind: reader}
	c.mu.Unlock()
	if _, err := c.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := reader.Create(t.Context(), crd(ProvisioningCRD)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.read(t.Context()); !errors.Is(err, ErrUnlisted) {
		t.Error(err)
	}
}
