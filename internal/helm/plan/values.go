package plan

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// PollInterval is how often Muster reads the ConfigMaps and Secrets of valuesFrom again: it may not watch them.
const PollInterval = 30 * time.Second

// Layer is a layer of values: Helm merges the later ones over the earlier ones.
type Layer struct {
	Key  string
	Data []byte
}

// MarshalJSON makes digests cover both fields.
func (l Layer) MarshalJSON() ([]byte, error) { return json.Marshal([]any{l.Key, l.Data}) }

// ValuesObject returns the object with a Cluster's values, as the record says, without an owner.
func ValuesObject(proxy Key, namespace string, record Record, layers []Layer) desired.Object {
	meta := Meta(proxy, namespace, ValuesName(proxy, namespace, record.FleetCluster, record.Revision))
	data, text := map[string][]byte{}, map[string]string{}
	for _, its := range layers {
		data[record.Key(its.Key)], text[record.Key(its.Key)] = its.Data, string(its.Data)
	}
	if record.Secret {
		return &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: SecretKind}, ObjectMeta: meta, Type: ValuesSecretType, Data: data}
	}
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: ConfigMapKind}, ObjectMeta: meta, Data: text}
}

// OrNoValues returns the layers, or, if there are none, one layer without values: if the object were empty, Helm
// would keep the last values.
func OrNoValues(layers []Layer) []Layer {
	if len(layers) > 0 {
		return layers
	}
	return []Layer{{Key: ValuesKey, Data: []byte("global: {}\n")}}
}
