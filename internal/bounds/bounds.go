// Package bounds limits what checking an object costs: anyone who may create objects in one
// namespace decides how large they are, and everyone waits for the same webhooks.
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

	// MaxName is how many bytes the longest name has that any object can have.
	MaxName = validation.DNS1123SubdomainMaxLength

	// maxShown is how many bytes of a bad value an answer repeats.
	maxShown = 256
)

// Name returns the part of a string that a cache keeps where it expects a name: one byte more
// than MaxName of a longer one, which still names nothing.
func Name(value string) string { return Cut(value, MaxName+1) }

// Cut returns the first bytes of a string, in memory of their own: a substring keeps the whole.
func Cut(value string, most int) string {
	if len(value) <= most {
		return value
	}
	return strings.Clone(value[:most])
}

// Names returns the annotations or labels with these keys, each value cut as by Name, in a map
// of their own; nil if there are none.
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

// Selector returns what is wrong with a label selector. Of one with too many terms or values
// it checks no more than their number.
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

// AsSelector parses a label selector like metav1.LabelSelectorAsSelector, but its error is the
// first of what may be thousands, joined.
func AsSelector(selector *metav1.LabelSelector) (labels.Selector, error) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if all := utilerrors.Aggregate(nil); errors.As(err, &all) {
		err = all.Errors()[0]
	}
	return parsed, err
}

// Errors returns the first errors of a list, with bad values cut, and one more that counts
// the rest. Joining errors into one text takes time with the square of their number
// (errors.Aggregate of apimachinery), so every list is cut before it is joined.
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
