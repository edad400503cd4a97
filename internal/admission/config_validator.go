package admission

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
)

// ConfigValidator is the validating webhook for FleetAddonConfigs. Its zero value looks
// at the FleetAddonConfig alone and not at the cluster.
type ConfigValidator struct {
	// Others knows the existing Clusters.
	Others inventory
	// Namespaces is their cached metadata.
	Namespaces client.Reader
	// Reviewer creates SubjectAccessReviews.
	Reviewer client.Client
	// Live reads the CA that a FleetAddonConfig refers to, past all caches.
	Live client.Reader
}

var _ admission.Validator[*addonsv1.FleetAddonConfig] = ConfigValidator{}

// ValidateCreate refuses a FleetAddonConfig that would go wrong later.
func (v ConfigValidator) ValidateCreate(ctx context.Context, config *addonsv1.FleetAddonConfig) (admission.Warnings, error) {
	return v.validate(ctx, &addonsv1.FleetAddonConfig{}, config, validateConfig(config))
}

// ValidateUpdate refuses what an update makes wrong. It accepts what was wrong before, in
// the same field with the same value.
func (v ConfigValidator) ValidateUpdate(ctx context.Context, old, config *addonsv1.FleetAddonConfig) (admission.Warnings, error) {
	known := map[string]bool{}
	for _, err := range validateConfig(old) {
		known[err.Error()] = true
	}
	var news field.ErrorList
	for _, err := range validateConfig(config) {
		if !known[err.Error()] {
			news = append(news, err)
		}
	}
	return v.validate(ctx, old, config, news)
}

// validate adds what is wrong for this cluster to the errors of the FleetAddonConfig itself.
func (v ConfigValidator) validate(ctx context.Context, old, config *addonsv1.FleetAddonConfig, errs field.ErrorList) (admission.Warnings, error) {
	authorities, unsure, err := v.checkAuthorities(ctx, old, config)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return slices.Concat(warnings(config), unsure, v.surprises(ctx, old, config)), invalid(config, append(errs, authorities...))
}

// ValidateDelete allows every deletion and warns about its effect: the defaults return.
func (v ConfigValidator) ValidateDelete(ctx context.Context, config *addonsv1.FleetAddonConfig) (admission.Warnings, error) {
	return v.deletion(ctx, config), nil
}

func invalid(config *addonsv1.FleetAddonConfig, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(addonsv1.GroupVersion.WithKind("FleetAddonConfig").GroupKind(), config.Name, bounds.Errors(errs))
}
