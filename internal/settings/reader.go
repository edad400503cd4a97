package settings

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Reader reads the effective settings from a cached FleetAddonConfig.
type Reader struct {
	config client.Reader

	mu sync.Mutex
	// last holds the settings that were read last. Every event reads the settings, but they change only a few
	// times a year, so they are parsed once.
	last *InForce
}

// InForce are the effective settings, read-only.
type InForce struct {
	Settings
	// Config is the FleetAddonConfig that the settings come from, as cached; nil if there is none.
	Config *addonsv1.FleetAddonConfig
	// Invalid explains why the FleetAddonConfig cannot be used; nil if it can. Until it is fixed, everything stays
	// as it is, and Settings are those of Retained.
	Invalid error
	// Effect differs if settings differ in a way that matters to a Cluster that is imported and stays selected.
	// Naming does not matter to such a Cluster, nor do the selectors that select it.
	Effect string
}

// NewReader returns a Reader on a cache.
func NewReader(cache client.Reader) *Reader { return &Reader{config: cache} }

// Current returns the effective settings.
func (r *Reader) Current(ctx context.Context) (*InForce, error) {
	config, err := r.get(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil && isSame(r.last.Config, config) {
		same := *r.last
		same.Config = config
		r.last = &same
		return r.last, nil
	}
	now := &InForce{Config: config}
	if now.Settings, now.Invalid = From(config); now.Invalid != nil {
		now.Settings = Retained(config)
	}
	effect, err := effectOf(now.Settings)
	if err != nil {
		return nil, err
	}
	now.Effect = effect
	r.last = now
	return now, nil
}

func effectOf(in Settings) (string, error) {
	agentInitiated := in.Cluster.AgentInitiatedSelector.String()
	in.Cluster.Prefix, in.Cluster.Suffix, in.Cluster.Selector, in.Cluster.NamespaceSelector = "", "", nil, nil
	in.Cluster.AgentInitiatedSelector = nil // A parsed selector would be encoded as an empty object.
	in.Mappings = nil
	effect, err := json.Marshal([]any{in, agentInitiated})
	return string(effect), err
}

// isSame reports whether two FleetAddonConfigs have the same settings. Usually they are the same version; a write
// of the status changes only the version.
func isSame(a, b *addonsv1.FleetAddonConfig) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion || equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

func (r *Reader) get(ctx context.Context) (*addonsv1.FleetAddonConfig, error) {
	config := &addonsv1.FleetAddonConfig{}
	err := r.config.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading FleetAddonConfig: %w", err)
	}
	return config, nil
}
