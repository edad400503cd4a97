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
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// IsAbsent reports whether the object or its namespace does not exist, or is being deleted. An event shows when it
// is created again.
func IsAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !IsUnserved(err) || apierrors.HasStatusCause(err, "NamespaceTerminating")
}

// IsUnserved reports whether the API server does not serve a kind: its CRD is missing or being deleted. No event
// shows when the kind is served again.
func IsUnserved(err error) bool {
	// For an unknown resource the API server answers without a Status, unlike for a missing object.
	unknown := apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	// The API server's error for an apply that would create an object has no reason of its own.
	terminating := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "custom resource definition is terminating")
	return unknown || terminating || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err)
}

// IsPassing reports whether the same request may succeed in a moment: the connection broke, or the
// API server is busy.
func IsPassing(err error) bool {
	var status apierrors.APIStatus
	return !IsTooLarge(err) && (!errors.As(err, &status) && isConnection(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err))
}

// IsTooLarge reports whether the API server or etcd refuses an object because of its size.
func IsTooLarge(err error) bool {
	if err == nil {
		return false
	}
	// The API server has no reason for what etcd, or its client, refuses.
	if text := err.Error(); strings.Contains(text, "etcdserver: request is too large") || strings.Contains(text, "trying to send message larger than max") {
		return true
	}
	cause, isLong := apierrors.StatusCause(err, metav1.CauseType(field.ErrorTypeTooLong))
	return isLong && cause.Field == "metadata.annotations" || apierrors.IsRequestEntityTooLargeError(err)
}

// isConnection reports whether an error comes from the network or from waiting for it.
func isConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}

// IsRefused reports whether the API server refuses what a request writes, and will until somebody changes
// something: a policy, a quota or a limit, a namespace that is terminating, an immutable object.
func IsRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}
