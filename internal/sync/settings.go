package sync

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// settingsReader reads the settings in force from the cached FleetAddonConfig.
type settingsReader struct{ client.Reader }

func (r *settingsReader) current(ctx context.Context) (settings.Settings, error) {
	config, err := r.config(ctx)
	if err != nil {
		return settings.Settings{}, err
	}
	current, err := settings.From(config)
	if err != nil {
		return settings.Settings{}, fmt.Errorf("FleetAddonConfig %s cannot be used: %w", addonsv1.FleetAddonConfigName, err)
	}
	return current, nil
}

// config returns the FleetAddonConfig, or nil if there is none.
func (r *settingsReader) config(ctx context.Context) (*addonsv1.FleetAddonConfig, error) {
	var config addonsv1.FleetAddonConfig
	if err := r.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, &config); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &config, nil
}
