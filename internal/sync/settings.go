package sync

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// settingsReader reads the settings in force from the cached FleetAddonConfig.
type settingsReader struct {
	client.Reader
	// last is what was read last. Settings are asked for with each event and change with
	// each release of somebody's platform: parsing selectors once is enough.
	last atomic.Pointer[inForce]
}

// inForce are the settings of one version of the FleetAddonConfig, to be read only.
type inForce struct {
	uid      types.UID
	version  string
	settings settings.Settings
	usable   bool
}

// current returns the settings in force, to be read only. They are not usable while the
// FleetAddonConfig is invalid: nothing is changed then until it is not (the condition
// ConfigValid says so), and its next change brings everything back.
func (r *settingsReader) current(ctx context.Context) (in settings.Settings, usable bool, err error) {
	config := &addonsv1.FleetAddonConfig{}
	switch err := r.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config, client.UnsafeDisableDeepCopy); {
	case client.IgnoreNotFound(err) != nil:
		return settings.Settings{}, false, err
	case err != nil:
		config = nil
	}
	now := inForce{usable: true}
	if config != nil {
		now.uid, now.version = config.UID, config.ResourceVersion
	}
	if last := r.last.Load(); last != nil && last.uid == now.uid && last.version == now.version {
		return last.settings, last.usable, nil
	}
	var invalid error
	if now.settings, invalid = settings.From(config); invalid != nil {
		now.settings, now.usable = settings.Held(config), false
	}
	r.last.Store(&now)
	return now.settings, now.usable, nil
}

// config returns the FleetAddonConfig, or nil if there is none.
func (r *settingsReader) config(ctx context.Context) (*addonsv1.FleetAddonConfig, error) {
	var config addonsv1.FleetAddonConfig
	if err := r.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, &config); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &config, nil
}
