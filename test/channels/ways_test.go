package channels

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// helmAlongside tries what the chart refuses, a second release and unknown values, and its component for HelmChartProxies.
func helmAlongside(s *scene) {
	g := NewWithT(s.T)
	_, err := s.try("helm install second charts/muster --namespace second --create-namespace")
	g.Expect(err).To(MatchError(ContainSubstring(
		"Muster is installed in this cluster already, by the release muster in the namespace muster-system. A cluster has one Muster")))
	_, err = s.try("helm upgrade muster charts/muster --namespace muster-system --set webhook.replica=3")
	g.Expect(err).To(MatchError(ContainSubstring("'/webhook': additional properties 'replica' not allowed")))

	// Helm writes its own label over that by which Muster knows its CRD.
	s.sh("helm upgrade muster charts/muster --namespace muster-system --reuse-values --set helm.enabled=true")
	its := references.CRD()
	g.Expect(s.admin.Get(ctx, client.ObjectKey{Name: stamp.HelmCRD}, its)).To(Succeed())
	g.Expect(stamp.IsHelmCRDOurs(its, standard)).To(BeTrue(), "%v %v", its.Labels, its.Annotations)
	s.sh("helm upgrade muster charts/muster --namespace muster-system --reuse-values --set helm.enabled=false")
}

// helmFreezes keeps the hold of an upgrade from being ended. Helm uninstalls in spite of it.
func helmFreezes(s *scene) {
	g := NewWithT(s.T)
	g.SetDefaultEventuallyTimeout(patience)
	g.Expect(s.env.Apply(ctx, fixture.Deny("freeze", "team", clusterv1.GroupVersion.Group, "clusters", "no changes on Fridays"))).To(Succeed())
	g.Eventually(func() error { return touch(s) }).Should(MatchError(ContainSubstring("Fridays")))
}

func touch(s *scene) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"}}
	return s.admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"probe":"x"}}}`)), client.DryRunAll)
}

// helmHasLeft checks what the log of Helm's Job, and an event on the Cluster, say about the hold, and ends it by the command
// of the event.
func helmHasLeft(s *scene) {
	g := NewWithT(s.T)
	g.SetDefaultEventuallyTimeout(patience)
	log, _ := s.jobs.Load("muster-end-upgrade-holds")
	s.Log(log)
	g.Expect(log).To(And(ContainSubstring("left the hold of team/one: "), ContainSubstring("no changes on Fridays")))
	s.sh("kubectl delete validatingadmissionpolicybinding,validatingadmissionpolicy freeze")
	g.Eventually(func() error { return touch(s) }).Should(Succeed())
	s.sh("sh -c \"$(kubectl get events.events.k8s.io -n team --field-selector reason=HoldLeft -o jsonpath='{.items[0].note}' | sed 's/.*: kubectl/kubectl/')\"")
	cluster := &clusterv1.Cluster{}
	g.Expect(s.admin.Get(ctx, client.ObjectKey{Namespace: "team", Name: "one"}, cluster)).To(Succeed())
	g.Expect(cluster.Annotations).NotTo(HaveKey(stamp.HookAnnotation))
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
