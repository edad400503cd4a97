package sync

import (
	"context"
	"crypto/sha256"
	gosync "sync"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// memo makes the template values of Clusters, and remembers the hash of each Cluster's last ones. To inflate two objects and
// to hash the values takes longer than the rest of a reconcile that changes nothing.
type memo struct {
	*references.Reader
	known gosync.Map // of remembered, by the key of the Cluster
}

// remembered is the hash of all that template values were made of, among it the Cluster's UID, and these values, short.
type remembered struct {
	inputs     [sha256.Size]byte
	isAttached bool // The values are short by key.
	values     map[string]any
}

// templateValues are template values as they are compared: short. Whole makes them as they are written.
type templateValues struct {
	values map[string]any
	whole  func() (map[string]any, error)
}

// of returns the template values of a Cluster. It makes them only if they were made of something else the last time.
func (m *memo) of(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster, isAttached bool) (templateValues, error) {
	referred, err := m.Read(ctx, cluster)
	if err != nil {
		return templateValues{}, err
	}
	inputs, err := referred.Hash(in, cluster)
	if err != nil {
		return templateValues{}, err
	}
	whole := func() (map[string]any, error) { return referred.Values(in, cluster) }
	key := client.ObjectKeyFromObject(cluster)
	if found, _ := m.known.Load(key); found != nil {
		if last := found.(remembered); last.inputs == inputs && last.isAttached == isAttached {
			return templateValues{last.values, whole}, nil
		}
	}
	values, err := whole()
	if err != nil {
		return templateValues{}, err
	}
	short := desired.ShortValues
	if isAttached {
		short = desired.ShortValuesByKey
	}
	its := remembered{inputs, isAttached, short(values)}
	m.known.Store(key, its)
	return templateValues{its.values, func() (map[string]any, error) { return values, nil }}, nil
}

// inflate makes the values whole, if there are any.
func (v *templateValues) inflate() (err error) {
	if v.whole != nil {
		v.values, err = v.whole()
	}
	return err
}
