package admission

import (
	"context"
	"regexp"
	"slices"

	"github.com/Masterminds/semver/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
)

// ConfigValidator is the validating webhook for FleetAddonConfigs. Its zero value looks at the FleetAddonConfig
// alone and not at the cluster.
type ConfigValidator struct {
	// Others is the inventory of existing objects.
	Others inventory
	// Namespaces reads the cached metadata of Namespaces.
	Namespaces client.Reader
	// Reviewer creates SubjectAccessReviews.
	Reviewer client.Client
	// Live reads the CA that a FleetAddonConfig refers to, past all caches.
	Live client.Reader
}

var _ admission.Validator[*addonsv1.FleetAddonConfig] = ConfigValidator{}

// ValidateCreate refuses a FleetAddonConfig that would fail later.
func (v ConfigValidator) ValidateCreate(ctx context.Context, config *addonsv1.FleetAddonConfig) (admission.Warnings, error) {
	return v.validate(ctx, &addonsv1.FleetAddonConfig{}, config, validateConfig(config))
}

// ValidateUpdate refuses problems that an update introduces. It accepts a problem that the old object has in the
// same field with the same value.
func (v ConfigValidator) ValidateUpdate(ctx context.Context, old, config *addonsv1.FleetAddonConfig) (admission.Warnings, error) {
	return v.validate(ctx, old, config, introduced(validateConfig(old), validateConfig(config)))
}

// introduced returns the errors that an object has now, and did not have before.
func introduced(before, now field.ErrorList) field.ErrorList {
	known := map[string]bool{}
	for _, err := range before {
		known[err.Error()] = true
	}
	return slices.DeleteFunc(now, func(err *field.Error) bool { return known[err.Error()] })
}

// validate adds the problems that depend on the cluster to the errors of the FleetAddonConfig itself.
func (v ConfigValidator) validate(ctx context.Context, old, config *addonsv1.FleetAddonConfig, errs field.ErrorList) (admission.Warnings, error) {
	authorities, unsure, err := v.checkAuthorities(ctx, old, config)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return slices.Concat(warnings(config), unsure, v.surprises(ctx, old, config)), invalid("FleetAddonConfig", config, append(errs, authorities...))
}

// ValidateDelete allows every deletion, and warns that the settings will be unknown.
func (v ConfigValidator) ValidateDelete(ctx context.Context, _ *addonsv1.FleetAddonConfig) (admission.Warnings, error) {
	return v.deletion(ctx), nil
}

// invalid returns the error of an object of one of Muster's kinds; nil if there are none.
func invalid(kind string, object client.Object, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(addonsv1.GroupVersion.WithKind(kind).GroupKind(), object.GetName(), bounds.Errors(errs))
}

// oldestFleet is the oldest release of Fleet that the installer can install: the first one whose chart accepts the
// feature gates in the form that we write. It is a generic version, so that its pre-releases are not too old:
// CAAPF's readme installs v0.12.0-alpha.6.
var oldestFleet = version.MustParseGeneric("0.12.0")

// validateVersion checks the version of Fleet to install: an exact version, or a range in the form that Helm reads.
func validateVersion(path *field.Path, text string) field.ErrorList {
	invalid := func(message string) field.ErrorList {
		return field.ErrorList{field.Invalid(path, text, message)}
	}
	tooOld := "the oldest supported Fleet is " + oldestFleet.String() + "; name that or a newer one"
	if exact, err := version.ParseSemantic(text); err == nil {
		if exact.LessThan(oldestFleet) {
			return invalid(tooOld)
		}
		return nil
	}
	versions, err := semver.NewConstraint(text)
	if err != nil || !mentionsVersion.MatchString(text) {
		return invalid("must be a semantic version, for example 0.16.0, or a range, for example 0.16.x")
	}
	switch isEmpty, isOld := examine(versions, text); {
	case isEmpty:
		return invalid("this range contains no version; name another, for example 0.16.x")
	case isOld:
		return invalid(tooOld)
	}
	return nil
}

var (
	// mentionsVersion distinguishes a range from blanks, which the library reads as all versions.
	mentionsVersion = regexp.MustCompile(`[0-9xX*]`)
	mentioned       = regexp.MustCompile(`[0-9]+(\.[0-9]+){0,2}(-[0-9A-Za-z.-]+)?`)
)

// examine reports whether a range contains no version at all, or only versions that are too old. A range that
// contains any version contains one that it mentions, or the next patch, minor or major version after one of those.
func examine(versions *semver.Constraints, text string) (isEmpty, isOld bool) {
	isEmpty, isOld = true, true
	for _, bound := range append(mentioned.FindAllString(text, -1), "0.0.0", oldestFleet.String()) {
		lowest, err := semver.NewVersion(bound)
		if err != nil {
			continue
		}
		for _, candidate := range []semver.Version{*lowest, lowest.IncPatch(), lowest.IncMinor(), lowest.IncMajor()} {
			if !versions.Check(&candidate) {
				continue
			}
			isEmpty = false
			if generic, err := version.ParseGeneric(candidate.String()); err == nil && !generic.LessThan(oldestFleet) {
				return false, false
			}
		}
	}
	return isEmpty, isOld
}
