package settings

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// oneConfig is a cache with one FleetAddonConfig, or none.
type oneConfig struct {
	client.Reader
	config *addonsv1.FleetAddonConfig
}

func (o *oneConfig) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if o.config == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	o.config.DeepCopyInto(into.(*addonsv1.FleetAddonConfig))
	return nil
}

// TestReader: what was parsed is kept for as long as the FleetAddonConfig asks for the
// same, and not a change longer.
func TestReader(t *testing.T) {
	config := func(uid types.UID, version, prefix, selector string) *addonsv1.FleetAddonConfig {
		return &addonsv1.FleetAddonConfig{
			ObjectMeta: metav1.ObjectMeta{Name: addonsv1.FleetAddonConfigName, UID: uid, ResourceVersion: version},
			Spec: addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
				Naming:   &addonsv1.NamingStrategy{Prefix: prefix},
				Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOperator(selector)}}},
			}},
		}
	}
	cache := &oneConfig{}
	reader := NewReader(cache)
	for i, test := range []struct {
		config   *addonsv1.FleetAddonConfig
		prefix   string
		invalid  bool
		revision int
	}{
		{nil, "", false, 0},
		{config("1", "10", "a-", "Exists"), "a-", false, 1},
		{config("1", "10", "a-", "Exists"), "a-", false, 1},
		{config("1", "11", "a-", "Exists"), "a-", false, 1}, // Its status was written.
		{config("1", "12", "b-", "Exists"), "b-", false, 2},
		{config("1", "13", "c-", "Nonsense"), "c-", true, 3},
		{config("1", "13", "c-", "Nonsense"), "c-", true, 3},
		{config("1", "14", "d-", "Exists"), "d-", false, 4},
		{nil, "", false, 5},
		{config("2", "14", "e-", "Exists"), "e-", false, 6}, // Another one, perhaps from a backup.
	} {
		cache.config = test.config
		in, err := reader.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if in.Cluster.Prefix != test.prefix || (in.Invalid != nil) != test.invalid || in.Revision != test.revision || in.Cluster.Enabled == test.invalid {
			t.Errorf("%d: prefix %q, invalid %v, revision %d, enabled %v; want %+v", i, in.Cluster.Prefix, in.Invalid, in.Revision, in.Cluster.Enabled, test)
		}
	}
}
