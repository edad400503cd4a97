// Package policiestest lets tests play the Policies of an API server.
package policiestest

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/helm/policies"
	"github.com/muster-fleet/muster/internal/kube/references"
)

// Server is an API server whose Policies are those of a client.
type Server struct {
	cache.Cache // nil: the methods below are used
	From        client.Reader
	*controllertest.FakeInformer
	// Error is returned by GetInformer. Starts counts its calls.
	Error  atomic.Pointer[error]
	Starts atomic.Int32
	// Denied is the error of the list.
	Denied error

	failed toolscache.WatchErrorHandlerWithContext
}

// NewCache is the Reader's.
func (s *Server) NewCache(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
	s.failed = failed
	return s, nil
}

// Start implements cache.Cache.
func (s *Server) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// List implements cache.Cache.
func (s *Server) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return s.From.List(ctx, list, options...)
}

// GetInformer implements cache.Cache.
func (s *Server) GetInformer(ctx context.Context, _ client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	s.Starts.Add(1)
	if s.Denied != nil {
		go s.failed(ctx, &toolscache.Reflector{}, s.Denied)
	}
	if err := s.Error.Load(); err != nil {
		return nil, *err
	}
	return s.FakeInformer, nil
}

// NewReader returns a Reader of the Policies that a client has, if the client has their CRD. They are listed.
func NewReader(from client.Reader) *policies.Reader {
	server := &Server{From: from, FakeInformer: controllertest.NewFakeInformer(controllertest.Synced)}
	reader := &policies.Reader{CRDs: from, NewCache: server.NewCache, Now: time.Now}
	for {
		if _, err := reader.Refusal(context.Background(), "", ""); !errors.Is(err, policies.ErrListing) {
			return reader
		}
		runtime.Gosched()
	}
}

// CRD returns the CRD of Policies.
func CRD() client.Object {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(references.CRD().GroupVersionKind())
	crd.SetName(fleetpolicy.CRD)
	return crd
}
