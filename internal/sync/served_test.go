package sync

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestPatient(t *testing.T) {
	going := fmt.Errorf("applying: %w", apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "clustergroups"}, "create"))
	other := errors.New("no")
	for name, test := range map[string]struct {
		err       error
		wantErr   error
		wantAfter time.Duration
	}{
		"done":                  {wantAfter: time.Second},
		"the kind is not there": {err: going, wantAfter: unservedInterval},
		"something else fails":  {err: other, wantErr: other, wantAfter: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inner := reconcile.Func(func(context.Context, reconcile.Request) (ctrl.Result, error) {
				return ctrl.Result{RequeueAfter: time.Second}, test.err
			})
			result, err := patient{inner}.Reconcile(t.Context(), reconcile.Request{})
			if !errors.Is(err, test.wantErr) || err != nil && test.wantErr == nil || result.RequeueAfter != test.wantAfter {
				t.Errorf("got %v, %v", result, err)
			}
		})
	}
}
