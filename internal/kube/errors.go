package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// IsAbsent reports whether an error says that there is nothing (any more) to write to: the
// object or its namespace is gone or being deleted. An event shows if it returns.
func IsAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !IsUnserved(err) || apierrors.HasStatusCause(err, "NamespaceTerminating")
}

// IsUnserved reports whether an error says that a kind is not served: its CRD is gone or
// being deleted. No event shows when it returns, as nothing of that kind is left.
func IsUnserved(err error) bool {
	// An API server that does not know a resource answers without a Status, which
	// distinguishes it from one that does not find an object.
	unknown := apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	// Its message for an apply that would create has no reason of its own.
	terminating := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "custom resource definition is terminating")
	return unknown || terminating || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err)
}

// IsPassing reports whether an error says nothing about the request: the connection broke, or
// the API server is busy. The same request may succeed in a moment.
func IsPassing(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) && isConnection(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// isConnection reports whether an error comes from the network or from waiting for it.
func isConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}
