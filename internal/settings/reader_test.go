package settings

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// TestReader checks that the Reader keeps the parsed settings until the FleetAddonConfig has different ones.
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
	effect := ""
	for i, test := range []struct {
		config  *addonsv1.FleetAddonConfig
		prefix  string
		invalid bool
		effect  bool // whether the effect differs from the one before
	}{
		{nil, "", false, true},
		{config("1", "10", "a-", "Exists"), "a-", false, true}, // Agents that have checked in depend on whether there is one.
		{config("1", "10", "a-", "Exists"), "a-", false, false},
		{config("1", "11", "a-", "Exists"), "a-", false, false}, // Its status was written.
		{config("1", "12", "b-", "Exists"), "b-", false, false},
		{config("1", "13", "c-", "Nonsense"), "c-", true, true}, // Disabled until it is fixed.
		{config("1", "13", "c-", "Nonsense"), "c-", true, false},
		{config("1", "14", "d-", "Exists"), "d-", false, true},
		{nil, "", true, true},                                  // It is gone.
		{config("2", "14", "e-", "Exists"), "e-", false, true}, // The object was recreated, perhaps from a backup.
	} {
		cache.config = test.config
		in, err := reader.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if in.Cluster.Prefix != test.prefix || (in.Invalid != nil) != test.invalid || (in.Effect != effect) != test.effect || in.Cluster.Enabled == test.invalid {
			t.Errorf("%d: prefix %q, invalid %v, effect %s, enabled %v; want %+v", i, in.Cluster.Prefix, in.Invalid, in.Effect, in.Cluster.Enabled, test)
		}
		effect = in.Effect
	}
}

// TestEffect checks that every setting that affects an imported Cluster changes the effect, including fields that
// are added to Settings later.
func TestEffect(t *testing.T) {
	base, err := effectOf(Default())
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Settings){
		"enabled":            func(s *Settings) { s.Cluster.Enabled = false },
		"applyClassGroup":    func(s *Settings) { s.Cluster.ApplyClassGroup = false },
		"patchResource":      func(s *Settings) { s.Cluster.PatchResource = false },
		"setOwnerReferences": func(s *Settings) { s.Cluster.SetOwnerReferences = false },
		"hostNetwork":        func(s *Settings) { s.Cluster.HostNetwork = false },
		"agentNamespace":     func(s *Settings) { s.Cluster.AgentNamespace = "agents" },
		"agentTolerations":   func(s *Settings) { s.Cluster.AgentTolerations = nil },
		"agentEnvVars":       func(s *Settings) { s.Cluster.AgentEnvVars = []corev1.EnvVar{{Name: "A"}} },
		"agentPullSecrets":   func(s *Settings) { s.Cluster.AgentPullSecrets = &[]corev1.LocalObjectReference{} },
		"exclude":            func(s *Settings) { s.Cluster.Exclude = []string{"/Variables"} },
		"agentInitiated":     func(s *Settings) { s.Cluster.AgentInitiated = true },
		"agentInitiatedSelector": func(s *Settings) {
			s.Cluster.AgentInitiatedSelector = labels.SelectorFromSet(labels.Set{"a": "b"})
		},
		"class": func(s *Settings) { s.Class.PatchResource = false },
	} {
		in := Default()
		change(&in)
		if effect, err := effectOf(in); err != nil || effect == base {
			t.Errorf("%s has no effect: %v", name, err)
		}
	}
}
