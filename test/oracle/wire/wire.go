// Package wire lets the oracle of another revision of Muster judge: as a program of its own,
// which is built among that revision's sources from this file and from test/cmd/oracle. So
// what is here uses nothing of package oracle but what every revision's has.
package wire

import (
	"encoding/json"
	"errors"
	"io"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/oracle"
)

// message is a state, and the Cluster that is to be admitted, if there is one. It is both
// the question and the answer.
type message struct {
	Config        *addonsv1.FleetAddonConfig
	Namespaces    []*corev1.Namespace
	Classes       []*clusterv1.ClusterClass
	Clusters      []*clusterv1.Cluster
	Referenced    []*unstructured.Unstructured
	FleetClusters []*fleetv1.Cluster
	Groups        []*fleetv1.ClusterGroup
	Mappings      []*fleetv1.BundleNamespaceMapping

	Admit *clusterv1.Cluster
}

// Serve answers questions with the oracle that it was built with until there are no more.
func Serve(questions io.Reader, answers io.Writer) error {
	decoder, encoder := json.NewDecoder(questions), json.NewEncoder(answers)
	for {
		var asked message
		if err := decoder.Decode(&asked); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var said message
		if asked.Admit != nil {
			said.Admit = oracle.Admitted(asked.state(), asked.Admit)
		} else {
			said = messageOf(oracle.Settle(asked.state()))
		}
		if err := encoder.Encode(said); err != nil {
			return err
		}
	}
}

func messageOf(s oracle.State) message {
	return message{
		Config: s.Config, Namespaces: valuesOf(s.Namespaces), Classes: valuesOf(s.Classes), Clusters: valuesOf(s.Clusters),
		Referenced: valuesOf(s.Referenced), FleetClusters: valuesOf(s.FleetClusters), Groups: valuesOf(s.Groups), Mappings: valuesOf(s.Mappings),
	}
}

func (m message) state() oracle.State {
	s := oracle.NewState()
	s.Config = m.Config
	for _, namespace := range m.Namespaces {
		s.Namespaces[namespace.Name] = namespace
	}
	for _, object := range m.Referenced {
		kind := object.GroupVersionKind()
		s.Referenced[oracle.Reference{Group: kind.Group, Kind: kind.Kind, Key: client.ObjectKeyFromObject(object)}] = object
	}
	keep(s.Classes, m.Classes)
	keep(s.Clusters, m.Clusters)
	keep(s.FleetClusters, m.FleetClusters)
	keep(s.Groups, m.Groups)
	keep(s.Mappings, m.Mappings)
	return s
}

func keep[T client.Object](into map[oracle.Key]T, objects []T) {
	for _, object := range objects {
		into[client.ObjectKeyFromObject(object)] = object
	}
}

func valuesOf[K comparable, V any](objects map[K]V) []V {
	values := make([]V, 0, len(objects))
	for _, object := range objects {
		values = append(values, object)
	}
	return values
}
