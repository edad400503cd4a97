package oracle

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// If no Fleet runs, a test must play it. The functions below return what Fleet would write. A driver writes that to
// the API server, and a test that needs only the result applies it to a state.

// Agent returns Fleet's own Bundle with the agent of a Fleet Cluster.
func Agent(fleet *fleetv1.Cluster) *fleetv1.Bundle {
	key := AgentBundle(client.ObjectKeyFromObject(fleet))
	bundle := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{"objectset.rio.cattle.io/hash": "x"},
	}}
	bundle.Spec.Resources = []fleetv1.BundleResource{{Name: "agent.yaml", Content: "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: fleet-agent}}\n"}}
	bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: fleet.Name}}
	return bundle
}

// Credential returns the Secret that Fleet leaves for a registration of a Fleet Cluster.
func Credential(of *fleetv1.ClusterRegistration, fleet *fleetv1.Cluster, token string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-clusters-system", Name: CredentialName(of)},
		Data: map[string][]byte{
			"token": []byte(token), "clusterName": []byte(fleet.Name), "clusterNamespace": []byte(fleet.Namespace),
			"deploymentNamespace": []byte(FleetNamespace(client.ObjectKeyFromObject(fleet))),
		},
	}
}

// FleetAnswers plays Fleet for all Fleet Clusters until nothing is left to do: it adds namespaces, agents and
// credentials. Then the agents of Clusters with a manifest check in.
func FleetAnswers(in State, token func(*fleetv1.Cluster) string) State {
	s := Converge(in)
	for _, fleet := range s.FleetClusters {
		key := client.ObjectKeyFromObject(fleet)
		if fleet.UID == "" {
			fleet.UID = types.UID(key.String())
		}
		fleet.Status.Namespace = FleetNamespace(key)
		s.FleetNamespaces[fleet.Status.Namespace] = s.Holder(key)
		s.AgentInitiated.Bundles[AgentBundle(key)] = Agent(fleet)
	}
	s = Converge(s)
	for _, fleet := range s.FleetClusters {
		ours, _ := s.registrationsOf(fleet)
		for _, key := range ours {
			asked := s.AgentInitiated.Registrations[key]
			if asked.Spec.ClientID == fleet.Spec.ClientID && !asked.Status.Granted {
				asked.Spec.ClientRandom = Drawn + " of " + key.String() // No two are alike.
				asked.Name, asked.Status.Granted, asked.Status.ClusterName = key.Name, true, fleet.Name
				s.AgentInitiated.Credentials[CredentialName(asked)] = Credential(asked, fleet, token(fleet))
			}
		}
	}
	s = Converge(s)
	for _, cluster := range s.Clusters {
		if meta.IsStatusConditionTrue(cluster.Status.Conditions, manifestCondition) {
			s.AgentInitiated.CheckedIn[s.FleetClusters[fleetKey(cluster)].UID] = true
		}
	}
	return Converge(s)
}
