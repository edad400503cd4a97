package installer

import (
	"context"
)

// found are the releases in the cluster, by name.
type found map[string]*Release

func (f found) Find(_ context.Context, name string) (*Release, error)       { return f[name], nil }
func (f found) Put(context.Context, Order) (was, becomes string, err error) { return "", "", nil }
func (f found) Abandon(context.Context, string, string) error               { return nil }
