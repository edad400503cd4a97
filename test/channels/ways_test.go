package channels

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
)

// helmAlongside tries what the chart refuses: a second release, and unknown values.
func helmAlongside(s *scene) {
	g := NewWithT(s.T)
	_, err := s.try("helm install second charts/muster --namespace second --create-namespace")
	g.Expect(err).To(MatchError(ContainSubstring(
		"Muster is installed in this cluster already, by the release muster in the namespace muster-system. A cluster has one Muster")))
	_, err = s.try("helm upgrade muster charts/muster --namespace muster-system --set webhook.replica=3")
	g.Expect(err).To(MatchError(ContainSubstring("'/webhook': additional properties 'replica' not allowed")))
}

// coreProvider makes the cluster look like one that clusterctl initialized. Cluster API's kinds exist already, so its
// core is only a Namespace here. Before clusterctl checks cert-manager again, the namespace of its last check must be
// gone; otherwise clusterctl tries to install its own cert-manager.
func coreProvider(s *scene) {
	s.sh(`
mkdir -p ~/core/cluster-api/v1.14.2
cat > ~/core/cluster-api/v1.14.2/core-components.yaml <<EOF
apiVersion: v1
kind: Namespace
metadata: {name: capi-system}
EOF
cat > ~/core/cluster-api/v1.14.2/metadata.yaml <<EOF
apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries: [{major: 1, minor: 14, contract: v1beta2}]
EOF
mkdir -p ~/.config/cluster-api
cat > ~/.config/cluster-api/clusterctl.yaml <<EOF
providers:
- {name: cluster-api, type: CoreProvider, url: "file://$HOME/core/cluster-api/v1.14.2/core-components.yaml"}
EOF
clusterctl init --core cluster-api:v1.14.2 --bootstrap - --control-plane -
kubectl wait --for=delete namespace/cert-manager-test --timeout=1m
`)
}

// clusterctlAlongside checks how clusterctl changes the components.
func clusterctlAlongside(s *scene) {
	g := NewWithT(s.T)
	g.Expect(s.sh("kubectl get providers.clusterctl.cluster.x-k8s.io -A")).To(MatchRegexp(`muster-system +addon-muster .*muster +v0\.1\.0`))
	g.Expect(s.sh("clusterctl upgrade plan")).To(ContainSubstring("addon-muster"))

	// This sets its variable, another namespace and another registry.
	s.sh("echo 'images: {addon-muster: {repository: registry.example.com/muster}}' >> ~/.config/cluster-api/clusterctl.yaml")
	moved := s.sh("MUSTER_LOG_LEVEL=debug clusterctl generate provider --addon muster:v0.1.0 --target-namespace fleet-addons")
	g.Expect(moved).NotTo(Or(ContainSubstring("muster-system"), ContainSubstring("ghcr.io"), ContainSubstring("${")))
	g.Expect(strings.Count(moved, "--log-level=debug")).To(Equal(2))
	for _, program := range []string{"webhook", "syncer"} {
		g.Expect(moved).To(ContainSubstring(fmt.Sprintf("image: registry.example.com/muster/muster-%s:v0.1.0", program)))
	}
	s.sh("sed -i '/^images:/d' ~/.config/cluster-api/clusterctl.yaml")
}
