package kube

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestWhyNothingCanBeWritten(t *testing.T) {
	resource := schema.GroupResource{Group: "fleet.cattle.io", Resource: "clusters"}
	terminating := apierrors.NewForbidden(resource, "prod", errors.New("the namespace is going"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	// client-go makes this error if an API server does not know the path.
	unknown := apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", resource, "prod", "404 page not found", 0, true)
	for name, test := range map[string]struct {
		err              error
		absent, unserved bool
	}{
		"nothing wrong":        {},
		"not found":            {err: apierrors.NewNotFound(resource, "prod"), absent: true},
		"wrapped":              {err: fmt.Errorf("applying: %w", apierrors.NewNotFound(resource, "prod")), absent: true},
		"namespace not found":  {err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "team"), absent: true},
		"namespace going":      {err: fmt.Errorf("applying: %w", terminating), absent: true},
		"kind not known":       {err: fmt.Errorf("applying: %w", &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "fleet.cattle.io", Kind: "Cluster"}}), unserved: true},
		"CRD gone":             {err: fmt.Errorf("applying: %w", unknown), unserved: true},
		"CRD going, on apply":  {err: fmt.Errorf("applying: %w", apierrors.NewForbidden(resource, "prod", errors.New("create not allowed while custom resource definition is terminating"))), unserved: true},
		"CRD going":            {err: fmt.Errorf("applying: %w", apierrors.NewMethodNotSupported(resource, "create")), unserved: true},
		"forbidden":            {err: apierrors.NewForbidden(resource, "prod", errors.New("no"))},
		"conflict":             {err: apierrors.NewConflict(resource, "prod", errors.New("no"))},
		"something else fails": {err: errors.New("no")},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsAbsent(test.err); got != test.absent {
				t.Errorf("IsAbsent = %v", got)
			}
			if got := IsUnserved(test.err); got != test.unserved {
				t.Errorf("IsUnserved = %v", got)
			}
		})
	}
}
