package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// installCRDs applies the CRDs of every system before anything that uses them
// starts, and waits until they are served.
func (s *Stack) installCRDs(ctx context.Context) error {
	begin := time.Now()
	files := []string{"cert-manager-crds.yaml"}
	if !s.options.WithoutFleet {
		files = append(files, "fleet-crds.yaml")
	}
	crds, err := s.readCRDs("", files...)
	if err != nil {
		return err
	}
	for _, provider := range parts.CAPIProviders {
		more, err := s.readCRDs(provider.Name, provider.Name+"-crds.yaml")
		if err != nil {
			return err
		}
		crds = append(crds, more...)
	}
	if err := s.applyCRDs(ctx, crds); err != nil {
		return err
	}
	s.say("%d CRDs served (%s)", len(crds), poll.Since(begin))
	return nil
}

// readCRDs reads rendered CRDs and settles who converts between their versions.
func (s *Stack) readCRDs(provider string, files ...string) ([]*unstructured.Unstructured, error) {
	var crds []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(s.tools.Manifests, file))
		if err != nil {
			return nil, err
		}
		objects, err := decode(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		crds = append(crds, objects...)
	}
	for _, crd := range crds {
		if s.options.Profile != Full {
			withoutConversion(crd)
		} else if err := s.convertThrough(provider, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", crd.GetName(), err)
		}
	}
	return crds, nil
}

// withoutConversion makes a CRD usable while nobody converts: objects of another
// version are taken as they are.
func withoutConversion(crd *unstructured.Unstructured) {
	if _, found, _ := unstructured.NestedMap(crd.Object, "spec", "conversion"); found {
		_ = unstructured.SetNestedMap(crd.Object, map[string]any{"strategy": "None"}, "spec", "conversion")
	}
}

// ApplyCRDs applies the CRDs of a stream of YAML documents, and waits until they are served.
func (s *Stack) ApplyCRDs(ctx context.Context, content []byte) error {
	crds, err := decode(content)
	if err != nil {
		return err
	}
	return s.applyCRDs(ctx, crds)
}

func (s *Stack) applyCRDs(ctx context.Context, crds []*unstructured.Unstructured) error {
	const atOnce = 4
	var (
		wait     sync.WaitGroup
		mu       sync.Mutex
		problems []error
		slots    = make(chan struct{}, atOnce)
	)
	for _, crd := range crds {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if _, err := s.client.client.Resource(crdResource).Apply(ctx, crd.GetName(), crd, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, fmt.Errorf("CRD %s: %w", crd.GetName(), err))
			}
		})
	}
	wait.Wait()
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return s.waitServed(ctx, crds)
}

// waitServed waits until these CRDs are established and their kinds are in the API server's
// discovery, which follows a moment later: until then clients know no such kind.
func (s *Stack) waitServed(ctx context.Context, crds []*unstructured.Unstructured) error {
	established := map[string]bool{}
	return poll.Until(ctx, "CRDs to be served", time.Minute, func(ctx context.Context) error {
		var missing []string
		for _, crd := range crds {
			if established[crd.GetName()] {
				continue
			}
			got, err := s.client.client.Resource(crdResource).Get(ctx, crd.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			conditions := conditionsOf(got)
			if established[crd.GetName()] = conditions["Established"] == metav1.ConditionTrue; !established[crd.GetName()] {
				missing = append(missing, fmt.Sprintf("%s has the conditions %v", crd.GetName(), conditions))
			}
		}
		if len(missing) > 0 {
			return errors.New(strings.Join(missing, "; "))
		}
		_, served, _, err := s.client.discover.GroupsAndMaybeResources()
		if err != nil {
			return err
		}
		for _, crd := range crds {
			for _, kind := range servedKinds(crd) {
				resources := served[kind.GroupVersion()]
				if resources == nil || !slices.ContainsFunc(resources.APIResources, func(its metav1.APIResource) bool { return its.Kind == kind.Kind }) {
					missing = append(missing, kind.String())
				}
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("not in the API server's discovery: %s", strings.Join(missing, "; "))
		}
		return nil
	})
}

func conditionsOf(object *unstructured.Unstructured) map[string]metav1.ConditionStatus {
	all := map[string]metav1.ConditionStatus{}
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		all[fmt.Sprint(fields["type"])] = metav1.ConditionStatus(fmt.Sprint(fields["status"]))
	}
	return all
}

// servedKinds are a CRD's kind in all versions that it serves.
func servedKinds(crd *unstructured.Unstructured) (kinds []schema.GroupVersionKind) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, version := range versions {
		if fields, _ := version.(map[string]any); fields["served"] == true {
			kinds = append(kinds, schema.GroupVersionKind{Group: group, Version: fmt.Sprint(fields["name"]), Kind: kind})
		}
	}
	return kinds
}
