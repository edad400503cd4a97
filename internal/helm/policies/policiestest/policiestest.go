// Package policiestest lets tests play the Policies of an API server.
package policiestest

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/helm/policies"
	"github.com/muster-fleet/muster/internal/kube/references"
)

// Server is an API server whose Policies are those of a client.
type Server struct {
	client.Reader
	*controllertest.FakeInformer
	// Error is returned by GetInformer. Starts counts its calls.
	Error  error
	Starts int
}

// GetInformer implements policies.Cache.
func (s *Server) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	s.Starts++
	return s.FakeInformer, s.Error
}

// NewReader returns a Reader of the Policies that a client has, if the client has their CRD.
func NewReader(from client.Reader) *policies.Reader {
	return &policies.Reader{CRDs: from, Policies: &Server{Reader: from, FakeInformer: controllertest.NewFakeInformer(controllertest.Synced)}, Now: time.Now}
}

// CRD returns the CRD of Policies.
func CRD() client.Object {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(references.CRD().GroupVersionKind())
	crd.SetName(fleetpolicy.CRD)
	return crd
}
