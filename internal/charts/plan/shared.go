package plan

import (
	"fmt"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// SecretKind is the kind of Secrets that values are read from.
const SecretKind = "Secret"

const configMapKind = "ConfigMap"

// Shared are the values for all Clusters.
type Shared struct {
	// Data are the values by key; they are merged in the order of Keys.
	Data map[string][]byte
	Keys []string
	// Secret says that they are from a Secret.
	Secret bool
	// Kept says that they are to stay as they are; there are no Data.
	Kept bool
}

// NewShared returns no values.
func NewShared() *Shared { return &Shared{Data: map[string][]byte{}} }

// Add adds what spec.valuesFrom names at an index.
func (s *Shared) Add(index int, from addonsv1.ValuesReference, data []byte) error {
	if err := CheckValues(data); err != nil {
		return fmt.Errorf("spec.valuesFrom[%d]: %w", index, err)
	}
	s.add(fmt.Sprintf("%02d.yaml", index), data)
	s.Secret = s.Secret || from.Kind == SecretKind
	return nil
}

// With returns the values with those of a template that is the same for all Clusters; nil
// if there are none.
func (s *Shared) With(proxy *addonsv1.HelmChartProxy, template *Template) (*Shared, error) {
	if template.IsStatic() && proxy.Spec.ValuesTemplate != "" {
		values, err := template.Render(nil)
		if err != nil {
			return nil, fmt.Errorf("spec.valuesTemplate: %w", err)
		}
		s.add(ValuesKey, values)
	}
	if len(s.Keys) == 0 {
		return nil, nil
	}
	return s, nil
}

func (s *Shared) add(key string, data []byte) {
	s.Data[key], s.Keys = data, append(s.Keys, key)
}
