package channels

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
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

// helmStops tries to uninstall while the hold of an upgrade cannot be ended: Helm stops before it deletes anything, and
// the log of its Job says why.
func helmStops(s *scene) {
	g := NewWithT(s.T)
	g.SetDefaultEventuallyTimeout(patience)
	before := s.present(g)
	touch := func() error {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"}}
		return s.admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"probe":"x"}}}`)), client.DryRunAll)
	}
	g.Expect(s.env.Apply(ctx, fixture.Deny("freeze", "team", clusterv1.GroupVersion.Group, "clusters", "no changes on Fridays"))).To(Succeed())
	g.Eventually(touch).Should(MatchError(ContainSubstring("Fridays")))
	_, err := s.try("helm uninstall muster --namespace muster-system")
	s.Log(err)
	g.Expect(err).To(MatchError(ContainSubstring("resource Job/muster-system/muster-end-upgrade-holds not ready. status: Failed")))
	log, _ := s.jobs.Load("muster-end-upgrade-holds")
	s.Log(log)
	g.Expect(log).To(And(ContainSubstring("team/one: "), ContainSubstring("no changes on Fridays"), ContainSubstring("--no-hooks")))
	g.Expect(s.present(g)).To(Equal(before))
	s.sh("kubectl delete validatingadmissionpolicybinding,validatingadmissionpolicy freeze")
	g.Eventually(touch).Should(Succeed())
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
