package sync

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/program"
)

func TestProgramIsMissing(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lease := func(renewed *metav1.MicroTime) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: "muster-registrar"}, Spec: coordinationv1.LeaseSpec{RenewTime: renewed},
		}
	}
	ago := func(since time.Duration) *metav1.MicroTime {
		at := metav1.NewMicroTime(now.Add(-since))
		return &at
	}
	for name, test := range map[string]struct {
		lease *coordinationv1.Lease
		err   error
		want  bool
	}{
		"never there":         {want: true},
		"never renewed":       {lease: lease(nil), want: true},
		"runs":                {lease: lease(ago(5 * time.Second))},
		"another takes over":  {lease: lease(ago(30 * time.Second))},
		"nobody can tell":     {err: errors.New("broken")},
		"its clock is ahead":  {lease: lease(ago(-time.Hour))},
		"its clock is behind": {lease: lease(ago(time.Hour))},
	} {
		t.Run(name, func(t *testing.T) {
			scheme, err := program.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			asked := 0
			builder := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if asked++; test.err != nil {
						return test.err
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			if test.lease != nil {
				builder.WithObjects(test.lease)
			}
			r := newPresence(builder.Build(), "muster-system", "muster-registrar")
			r.now = func() time.Time { return now }
			for range 3 {
				if got := r.isMissing(t.Context()); got != test.want {
					t.Errorf("got %v, want %v", got, test.want)
				}
			}
			if asked != 1 {
				t.Errorf("asked %d times for three Clusters", asked)
			}
			now := now.Add(presenceInterval)
			r.now = func() time.Time { return now }
			if r.isMissing(t.Context()); asked != 2 {
				t.Errorf("asked %d times, and it may have changed", asked)
			}
		})
	}
}

// We tell by our own clock whether a Lease grows old; the clock of the other program does not matter.
func TestProgramGoesAndComesBack(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, ahead := range map[string]time.Duration{"behind": -time.Hour, "the same": 0, "ahead": time.Hour} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: "muster-installer"}}
		cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(lease).Build()
		r := newPresence(cluster, lease.Namespace, lease.Name)
		for _, step := range []struct {
			after  time.Duration
			renews bool
			want   bool
		}{
			{after: 0, renews: true}, {after: 15 * time.Second, renews: true}, {after: time.Minute}, {after: 76 * time.Second, want: true},
			{after: time.Hour, want: true}, {after: 2 * time.Hour, renews: true}, {after: 2*time.Hour + 30*time.Second},
		} {
			at := now.Add(step.after)
			r.now = func() time.Time { return at }
			if step.renews {
				renewed := metav1.NewMicroTime(at.Add(ahead))
				lease.Spec.RenewTime = &renewed
				if err := cluster.Update(t.Context(), lease); err != nil {
					t.Fatal(err)
				}
			}
			if got := r.isMissing(t.Context()); got != step.want {
				t.Errorf("its clock is %s, after %s: missing is %v, want %v", name, step.after, got, step.want)
			}
		}
	}
}

// If the API server does not answer, only the first callers wait; once there is an answer, only the
// caller that asks again waits.
func TestLeaseIsAskedForOnce(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	r := newPresence(fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			asked <- struct{}{}
			<-answer
			return c.Get(ctx, key, object, options...)
		},
	}).Build(), "muster-system", "muster-registrar")
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.now = func() time.Time { return begin }
	answers := make(chan bool)
	ask := func() { answers <- r.isMissing(context.Background()) }
	for range 3 {
		go ask()
	}
	<-asked
	select {
	case <-answers:
		t.Fatal("nobody has answered yet")
	case <-time.After(50 * time.Millisecond):
	}
	close(answer)
	for range 3 {
		if !<-answers {
			t.Error("there is no Lease")
		}
	}
	if len(asked) > 0 {
		t.Errorf("asked %d times too often", len(asked))
	}

	answer = make(chan struct{})
	r.now = func() time.Time { return begin.Add(presenceInterval) }
	go ask()
	<-asked
	go ask()
	select {
	case missing := <-answers:
		if !missing {
			t.Error("the last answer was that it is missing")
		}
	case <-time.After(10 * time.Second):
		t.Error("who has an answer waits for another's")
	}
	close(answer)
	<-answers
}
