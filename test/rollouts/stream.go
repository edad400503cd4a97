package rollouts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Event is a change of one object.
type Event struct {
	// At is when it was heard of.
	At time.Time
	// Object is empty but for its name once it is deleted.
	Object    client.Object
	IsDeleted bool
}

// kinds are the kinds that a Judge knows, by the keys in etcd under which their objects are.
var kinds = map[string]func() client.Object{
	"addons.cluster.x-k8s.io/helmchartproxies":   func() client.Object { return &addonsv1.HelmChartProxy{} },
	"addons.cluster.x-k8s.io/helmreleaseproxies": func() client.Object { return &addonsv1.HelmReleaseProxy{} },
	"cluster.x-k8s.io/clusters":                  func() client.Object { return &clusterv1.Cluster{} },
	"configmaps":                                 func() client.Object { return &corev1.ConfigMap{} },
	"fleet.cattle.io/bundledeployments":          func() client.Object { return &fleetv1.BundleDeployment{} },
	"fleet.cattle.io/bundles":                    func() client.Object { return &fleetv1.Bundle{} },
	"fleet.cattle.io/clusters":                   func() client.Object { return &fleetv1.Cluster{} },
	"fleet.cattle.io/contents":                   func() client.Object { return &fleetv1.Content{} },
}

const (
	registry = "/registry/"
	// firstKey and lastKey enclose the kinds.
	firstKey, lastKey = registry + "addons.cluster.x-k8s.io/", registry + "fleet.cattle.io0"
)

// keyValue is an entry of etcd, as its gateway for JSON has it.
type keyValue struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// follow hands all that is there to see, and then each event, until the context ends.
func follow(ctx context.Context, etcd string, see func(Event)) error {
	var there struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
		KVs []keyValue `json:"kvs"`
	}
	keys := map[string]any{"key": []byte(firstKey), "range_end": []byte(lastKey)}
	if err := ask(ctx, etcd+"/v3/kv/range", keys, func(answer *json.Decoder) error { return answer.Decode(&there) }); err != nil {
		return err
	}
	for _, kv := range there.KVs {
		if err := hand(kv, false, see); err != nil {
			return err
		}
	}
	keys["start_revision"] = there.Header.Revision + 1
	return ask(ctx, etcd+"/v3/watch", map[string]any{"create_request": keys}, func(answer *json.Decoder) error {
		for {
			var message struct {
				Result struct {
					Canceled bool   `json:"canceled"`
					Reason   string `json:"cancel_reason"`
					Events   []struct {
						Type string   `json:"type"`
						KV   keyValue `json:"kv"`
					} `json:"events"`
				} `json:"result"`
				Error any `json:"error"`
			}
			if err := answer.Decode(&message); err != nil {
				return err
			}
			if message.Error != nil || message.Result.Canceled {
				return fmt.Errorf("etcd ends the watch: %v %s", message.Error, message.Result.Reason)
			}
			for _, event := range message.Result.Events {
				if err := hand(event.KV, event.Type == "DELETE", see); err != nil {
					return err
				}
			}
		}
	})
}

func ask(ctx context.Context, url string, request any, read func(*json.Decoder) error) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // It is read.
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(response.Body)
		return errors.Join(fmt.Errorf("etcd answers %s: %s", response.Status, text), err)
	}
	return read(json.NewDecoder(response.Body))
}

// hand decodes an object of a known kind.
func hand(kv keyValue, isDeleted bool, see func(Event)) error {
	parts := strings.Split(strings.TrimPrefix(string(kv.Key), registry), "/")
	for resource, newObject := range kinds {
		name, is := strings.CutPrefix(strings.Join(parts, "/"), resource+"/")
		if !is {
			continue
		}
		object := newObject()
		if !isDeleted {
			if err := decode(kv.Value, object); err != nil {
				return fmt.Errorf("%s: %w", kv.Key, err)
			}
		}
		namespace, name, isNamespaced := strings.Cut(name, "/")
		if !isNamespaced {
			namespace, name = "", namespace
		}
		object.SetNamespace(namespace)
		object.SetName(name)
		see(Event{At: time.Now(), Object: object, IsDeleted: isDeleted})
	}
	return nil
}

// decode reads custom resources, which are JSON, and objects of Kubernetes' own kinds, which are not.
func decode(data []byte, into client.Object) error {
	if bytes.HasPrefix(data, []byte("{")) {
		return json.Unmarshal(data, into)
	}
	_, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, into)
	return err
}
