// Package bounds limits the cost of checking an object: tenants decide how large their objects are, and everyone
// shares the same webhooks.
package bounds

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// MaxErrors is how many errors an answer lists.
	MaxErrors = 32
	// MaxTerms is how many labels, and how many expressions, a selector may have. The CRDs have
	// the same limits.
	MaxTerms = 64
	// MaxValues is how many values all expressions of a selector together may have.
	MaxValues = 1024

	// MaxName is the longest name of any object, in bytes.
	MaxName = validation.DNS1123SubdomainMaxLength

	// maxShown is how many bytes of a bad value an answer repeats.
	maxShown = 256
)

// Name returns the part of a string that a cache keeps of a name. It cuts a string longer than MaxName to
// one byte more than that, which is no valid name either.
func Name(value string) string { return Cut(value, MaxName+1) }

// Cut returns the first bytes of a string as a copy, because a substring would keep the whole in memory.
func Cut(value string, most int) string {
	if len(value) <= most {
		return value
	}
	return strings.Clone(value[:most])
}

// Names returns the annotations or labels with these keys in a new map, with values cut like names; nil if
// there are none.
func Names(all map[string]string, keys ...string) map[string]string {
	var retained map[string]string
	for _, key := range keys {
		if value, found := all[key]; found {
			if retained == nil {
				retained = make(map[string]string, len(keys))
			}
			retained[key] = Name(value)
		}
	}
	return retained
}

// Selector validates a label selector. If it has too many terms or values, Selector returns only these
// errors.
func Selector(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if selector == nil {
		return nil
	}
	var errs field.ErrorList
	limit := func(path *field.Path, count, limit int) {
		if count > limit {
			errs = append(errs, field.TooMany(path, count, limit))
		}
	}
	expressions := path.Child("matchExpressions")
	limit(path.Child("matchLabels"), len(selector.MatchLabels), MaxTerms)
	limit(expressions, len(selector.MatchExpressions), MaxTerms)
	values := 0
	for _, expression := range selector.MatchExpressions {
		values += len(expression.Values)
	}
	limit(expressions.Child("values"), values, MaxValues)
	if len(errs) > 0 {
		return errs
	}
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
}

// AsSelector parses a label selector like metav1.LabelSelectorAsSelector, but returns only the first of
// possibly thousands of errors.
func AsSelector(selector *metav1.LabelSelector) (labels.Selector, error) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if all := utilerrors.Aggregate(nil); errors.As(err, &all) {
		err = all.Errors()[0]
	}
	return parsed, err
}

// Errors returns the first MaxErrors errors, with bad values cut, and one more that counts the rest.
// Joining errors takes time quadratic in their number (errors.Aggregate of apimachinery), so every list
// is cut first.
func Errors(errs field.ErrorList) field.ErrorList {
	var result field.ErrorList
	for _, err := range errs[:min(MaxErrors, len(errs))] {
		if value := reflect.ValueOf(err.BadValue); value.Kind() == reflect.String && value.Len() > maxShown {
			short := *err
			short.BadValue = strings.ToValidUTF8(value.String()[:maxShown], "") + "…"
			err = &short
		}
		result = append(result, err)
	}
	if more := len(errs) - MaxErrors; more > 0 {
		result = append(result, &field.Error{
			Type: field.ErrorTypeForbidden, Field: errs[MaxErrors].Field,
			Detail: fmt.Sprintf("%d more errors are not listed; correct these first", more),
		})
	}
	return result
}
