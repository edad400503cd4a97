package settings

import (
	"context"
	"encoding/json"
	"errors"
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
	// record reads and writes the record that there is a FleetAddonConfig; nil if there is no record.
	record *record

	// mu is never held while the API server is asked: all reconciles read the settings.
	mu sync.Mutex
	// had means that there is a FleetAddonConfig, or was one. A process does not forget that.
	had bool
	// last holds the settings that were read last. Every event reads the settings, but they change only a few
	// times a year, so they are parsed once.
	last *InForce
}

// InForce are the effective settings, read-only.
type InForce struct {
	Settings
	// Config is the FleetAddonConfig that the settings come from, as cached; nil if there is none.
	Config *addonsv1.FleetAddonConfig
	// Invalid explains why the FleetAddonConfig cannot be used; nil if it can. Until it is fixed, or back, everything
	// stays as it is, and Settings are those of Suspended.
	Invalid error
	// Effect differs if settings differ in a way that matters to a Cluster that is imported and stays selected.
	// Naming does not matter to such a Cluster, nor do the selectors that select it.
	Effect string
}

// IsUnknown reports whether nothing is known of the settings: the FleetAddonConfig is gone. Then
// the settings that even an invalid FleetAddonConfig has, such as exclusions from template values, are unknown, too.
func (f *InForce) IsUnknown() bool { return f.Config == nil && f.Invalid != nil }

// NewReader returns a Reader on a cache, without a record: it remembers a FleetAddonConfig only as long as it lives.
func NewReader(cache client.Reader) *Reader { return &Reader{config: cache} }

// Current returns the effective settings. Together with an error, these are unknown settings, or nil if the cache
// cannot be read.
func (r *Reader) Current(ctx context.Context) (*InForce, error) {
	config, err := r.get(ctx)
	if err != nil {
		return nil, err
	}
	if config != nil {
		r.Saw(config)
		r.record.note(ctx, config)
	} else if err := r.look(ctx); err != nil {
		return unknown(err), err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil && isSame(r.last.Config, config) && (config != nil || r.last.IsUnknown() == r.had) {
		same := *r.last
		same.Config = config
		r.last = &same
		return r.last, nil
	}
	now := &InForce{Config: config}
	now.Settings, now.Invalid = From(config)
	switch {
	case config == nil && r.had:
		now = unknown(errors.New(r.record.missing()))
	case now.Invalid != nil:
		now.Settings = Suspended(config)
	}
	if now.Effect, err = effectOf(now.Settings); err != nil {
		return nil, err
	}
	r.last = now
	return now, nil
}

// look asks whether there was a FleetAddonConfig, unless it knows.
func (r *Reader) look(ctx context.Context) error {
	r.mu.Lock()
	had := r.had
	r.mu.Unlock()
	if had {
		return nil
	}
	had, err := r.record.has(ctx)
	if err == nil && had {
		r.Saw(nil)
	}
	return err
}

// unknown returns the settings of a FleetAddonConfig that is gone.
func unknown(why error) *InForce { return &InForce{Settings: Suspended(nil), Invalid: why} }

// Saw notes that there is a FleetAddonConfig, or was one: programs that seldom ask for the settings call it for each
// event. It is a predicate that is always true.
func (r *Reader) Saw(client.Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.had = true
	return true
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
