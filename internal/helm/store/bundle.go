package store

import (
	"context"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
)

// UpdateBundle changes a Bundle as a function does.
func (s *Store) UpdateBundle(ctx context.Context, have *fleetv1.Bundle, change func(*fleetv1.Bundle)) error {
	if IsCut(have) { // The cached Bundle lacks content.
		live := &fleetv1.Bundle{}
		if err := s.Live.Get(ctx, client.ObjectKeyFromObject(have), live); err != nil {
			return client.IgnoreNotFound(err)
		}
		if proxy, _ := plan.ProxyOf(have); !IsFor(live, proxy) {
			return &TakenError{live}
		}
		have = live
	}
	want := have.DeepCopy()
	change(want)
	if patch := targetChanges(have, want); patch != nil {
		// If the Bundle has changed meanwhile, the indexes are wrong.
		if err := s.patch(ctx, want, patch); !apierrors.IsInvalid(err) {
			return client.IgnoreNotFound(err)
		}
	}
	return client.IgnoreNotFound(s.Change(ctx, have, want))
}
