package charts

import (
	"bytes"
	"hash/fnv"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/settings"
)

// memory keeps what was rendered, by what it was rendered from: rendering anew for each
// event of each Cluster would be most of the work. So would be to work out what templates
// may read of a Cluster: that is kept by its version.
type memory struct {
	mu  sync.Mutex
	all map[plan.Key]map[types.UID]remembered
}

type remembered struct {
	// seen is the version of the Cluster, and which settings there were, and read the digest of
	// what templates may read of it then.
	seen seen
	read uint64
	// values are what was rendered from what has this digest.
	digest uint64
	values []byte
}

type seen struct{ version, effect string }

func newMemory() *memory { return &memory{all: map[plan.Key]map[types.UID]remembered{}} }

// read returns the digest of what templates may read of a Cluster.
func (m *memory) read(proxy plan.Key, cluster *clusterv1.Cluster, in *settings.InForce) (uint64, error) {
	now := seen{cluster.ResourceVersion, in.Effect}
	m.mu.Lock()
	known := m.all[proxy][cluster.UID]
	m.mu.Unlock()
	if known.seen == now && now.version != "" {
		return known.read, nil
	}
	digest := fnv.New64a()
	if err := plan.WriteRead(cluster, in.Cluster.Exclude, digest); err != nil {
		return 0, err
	}
	m.change(proxy, cluster.UID, func(its *remembered) { its.seen, its.read = now, digest.Sum64() })
	return digest.Sum64(), nil
}

func (m *memory) get(proxy plan.Key, cluster types.UID, digest uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.all[proxy][cluster]
	return known.values, known.values != nil && known.digest == digest
}

func (m *memory) put(proxy plan.Key, cluster types.UID, digest uint64, values []byte) {
	// As it was written it has room for more, which would stay as long as it does.
	m.change(proxy, cluster, func(its *remembered) { its.digest, its.values = digest, bytes.Clone(values) })
}

func (m *memory) change(proxy plan.Key, cluster types.UID, change func(*remembered)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[proxy] == nil {
		m.all[proxy] = map[types.UID]remembered{}
	}
	its := m.all[proxy][cluster]
	change(&its)
	m.all[proxy][cluster] = its
}

// keep forgets all but these Clusters.
func (m *memory) keep(proxy plan.Key, clusters []*selected) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all[proxy]) == 0 {
		return
	}
	there := make(map[types.UID]bool, len(clusters))
	for _, cluster := range clusters {
		there[cluster.UID] = true
	}
	maps.DeleteFunc(m.all[proxy], func(cluster types.UID, _ remembered) bool { return !there[cluster] })
}

func (m *memory) forget(proxy plan.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, proxy)
}
