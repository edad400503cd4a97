package sync

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
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

// TestSettingsFollowTheirVersion: what was parsed is kept for as long as the
// FleetAddonConfig is the same, and not a change longer.
func TestSettingsFollowTheirVersion(t *testing.T) {
	g := NewWithT(t)
	cache := &oneConfig{}
	reader := &settingsReader{Reader: cache}
	prefix := func(wantUsable bool) string {
		in, usable, err := reader.current(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(usable).To(Equal(wantUsable))
		return in.Cluster.Prefix
	}
	config := func(uid, version, prefix string) *addonsv1.FleetAddonConfig {
		return &addonsv1.FleetAddonConfig{
			ObjectMeta: metav1.ObjectMeta{Name: addonsv1.FleetAddonConfigName, UID: types.UID(uid), ResourceVersion: version},
			Spec:       addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: prefix}}},
		}
	}

	g.Expect(prefix(true)).To(BeEmpty())
	cache.config = config("1", "10", "a-")
	g.Expect(prefix(true)).To(Equal("a-"))
	g.Expect(prefix(true)).To(Equal("a-"))
	cache.config = config("1", "11", "b-")
	g.Expect(prefix(true)).To(Equal("b-"))

	cache.config = config("1", "12", "c-")
	cache.config.Spec.Cluster.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Nonsense"}}}
	g.Expect(prefix(false)).To(Equal("c-"))
	g.Expect(prefix(false)).To(Equal("c-"))
	cache.config = config("1", "13", "d-")
	g.Expect(prefix(true)).To(Equal("d-"))

	cache.config = nil
	g.Expect(prefix(true)).To(BeEmpty())
	// Restored from a backup: another object, perhaps of a version that was there before.
	cache.config = config("2", "13", "e-")
	g.Expect(prefix(true)).To(Equal("e-"))
}
