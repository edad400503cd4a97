package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
			_, err := s.client.client.Resource(crdResource).Apply(ctx, crd.GetName(), crd, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
			if err == nil {
				err = s.waitEstablished(ctx, crd.GetName())
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, fmt.Errorf("CRD %s: %w", crd.GetName(), err))
			}
		})
	}
	wait.Wait()
	return errors.Join(problems...)
}

func (s *Stack) waitEstablished(ctx context.Context, name string) error {
	return poll.Until(ctx, "CRD "+name+" to be established", time.Minute, func(ctx context.Context) error {
		got, err := s.client.client.Resource(crdResource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		for _, condition := range conditions {
			fields, _ := condition.(map[string]any)
			if fields["type"] == "Established" && fields["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", conditions)
	})
}
