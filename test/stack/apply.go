package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// Apply applies every object of a YAML stream with server-side apply.
func (s *Stack) Apply(ctx context.Context, yaml string) error {
	objects, err := decode([]byte(yaml))
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := s.apply(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stack) apply(ctx context.Context, object *unstructured.Unstructured) error {
	namespaced, err := s.client.IsObjectNamespaced(object)
	if err == nil {
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
		err = s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("muster-stack"), client.ForceOwnership)
	}
	if err != nil {
		return fmt.Errorf("apply %s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
	}
	return nil
}

// decode reads a stream of YAML documents, and skips empty ones.
func decode(content []byte) ([]*unstructured.Unstructured, error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	var objects []*unstructured.Unstructured
	for {
		var raw runtime.RawExtension
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if len(raw.Raw) == 0 {
			continue
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

// typed converts an object into its Go type.
func typed[T any](object *unstructured.Unstructured) (*T, error) {
	into := new(T)
	return into, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
}

// installCRDs applies the CRDs of all systems before their users start, and waits until the API server serves them.
func (s *Stack) installCRDs(ctx context.Context) error {
	begin := time.Now()
	names := []string{"cert-manager"}
	if !s.options.WithoutFleet {
		names = append(names, "fleet")
	}
	for _, provider := range parts.CAPIProviders {
		names = append(names, provider.Name)
	}
	var crds []*unstructured.Unstructured
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(s.tools.Manifests, name+"-crds.yaml"))
		if err != nil {
			return err
		}
		objects, err := decode(content)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, crd := range objects {
			if err := s.convergeConversion(name, crd); err != nil {
				return fmt.Errorf("%s: %w", crd.GetName(), err)
			}
		}
		crds = append(crds, objects...)
	}
	if err := s.applyCRDs(ctx, crds); err != nil {
		return err
	}
	s.say("%d CRDs served (%s)", len(crds), poll.Since(begin))
	return nil
}

// convergeConversion sets how a CRD converts between its versions: through its provider's manager, or not at all if
// no manager runs. In that case the API server takes objects of other versions as they are.
func (s *Stack) convergeConversion(provider string, crd *unstructured.Unstructured) error {
	_, found, _ := unstructured.NestedMap(crd.Object, "spec", "conversion", "webhook")
	switch {
	case !found:
		return nil
	case s.options.Profile != Full:
		return unstructured.SetNestedMap(crd.Object, map[string]any{"strategy": "None"}, "spec", "conversion")
	default:
		return unstructured.SetNestedMap(crd.Object, s.loopbackClient(provider, "/convert"), "spec", "conversion", "webhook", "clientConfig")
	}
}

// ApplyCRDs applies the CRDs in a stream of YAML documents, and waits until the API server serves them.
func (s *Stack) ApplyCRDs(ctx context.Context, content []byte) error {
	crds, err := decode(content)
	if err != nil {
		return err
	}
	return s.applyCRDs(ctx, crds)
}

func (s *Stack) applyCRDs(ctx context.Context, crds []*unstructured.Unstructured) error {
	group, applying := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, crd := range crds {
		group.Go(func() error { return s.apply(applying, crd) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.waitServed(ctx, crds)
}

// waitServed waits until the kinds of these CRDs are in the API server's discovery, which is a moment after the
// CRDs are established. Until then clients do not know the kinds.
func (s *Stack) waitServed(ctx context.Context, crds []*unstructured.Unstructured) error {
	var kinds []schema.GroupVersionKind
	for _, object := range crds {
		crd, err := typed[apiextensionsv1.CustomResourceDefinition](object)
		if err != nil {
			return err
		}
		for _, version := range crd.Spec.Versions {
			if version.Served {
				kinds = append(kinds, schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind})
			}
		}
	}
	return poll.Until(ctx, "CRDs to be served", 5*time.Minute, func(context.Context) error {
		_, served, _, err := s.hub.client.GroupsAndMaybeResources()
		if err != nil {
			return err
		}
		var missing []string
		for _, kind := range kinds {
			resources := served[kind.GroupVersion()]
			if resources == nil || !slices.ContainsFunc(resources.APIResources, func(its metav1.APIResource) bool { return its.Kind == kind.Kind }) {
				missing = append(missing, kind.String())
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("not in the API server's discovery: %s", strings.Join(missing, "; "))
		}
		return nil
	})
}
