package sync

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// settingsReader reads the settings in force from the cached FleetAddonConfig.
type settingsReader struct{ client.Reader }

// current returns the settings in force. They are not usable while the FleetAddonConfig
// is invalid: nothing is changed then until it is not (the condition ConfigValid says
// so), and its next change brings everything back.
func (r *settingsReader) current(ctx context.Context) (in settings.Settings, usable bool, err error) {
	config, err := r.config(ctx)
	if err != nil {
		return settings.Settings{}, false, err
	}
	in, invalid := settings.From(config)
	if invalid != nil {
		return settings.Held(config), false, nil
	}
	return in, true, nil
}

// config returns the FleetAddonConfig, or nil if there is none.
func (r *settingsReader) config(ctx context.Context) (*addonsv1.FleetAddonConfig, error) {
	var config addonsv1.FleetAddonConfig
	if err := r.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, &config); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &config, nil
}
