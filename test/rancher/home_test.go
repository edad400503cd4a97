package rancher

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/oracle"
)

// lag is how long a condition may be behind on a loaded machine.
const lag = 3 * time.Second

// sampler looks all the time whether a condition of a Cluster is True although Fleet has no namespace for it, or has
// not heard of its agent.
type sampler struct {
	key             types.NamespacedName
	isWrong         map[string]time.Time
	longest         map[string]time.Duration
	order           []string
	stop, isStopped chan struct{}
}

func sample(key types.NamespacedName) *sampler {
	s := &sampler{key: key, isWrong: map[string]time.Time{}, longest: map[string]time.Duration{}, stop: make(chan struct{}), isStopped: make(chan struct{})}
	go func() {
		defer close(s.isStopped)
		for {
			select {
			case <-s.stop:
				return
			case <-time.After(20 * time.Millisecond):
				s.look()
			}
		}
	}()
	return s
}

// facts are what FleetImported and FleetBundlesReady need.
func (s *sampler) facts() (hasNamespace, hasAgent bool) {
	var namespace corev1.Namespace
	err := admin.Get(ctx, client.ObjectKey{Name: oracle.FleetNamespace(s.key)}, &namespace)
	var fleet fleetv1.Cluster
	fleetErr := admin.Get(ctx, s.key, &fleet)
	return err == nil && namespace.DeletionTimestamp == nil, fleetErr == nil && !fleet.Status.Agent.LastSeen.IsZero()
}

func (s *sampler) look() {
	var cluster clusterv1.Cluster
	hadNamespace, hadAgent := s.facts()
	if admin.Get(ctx, s.key, &cluster) != nil {
		return
	}
	hasNamespace, hasAgent := s.facts()
	isImported, isReady := conditions.IsTrue(&cluster, "FleetImported"), conditions.IsTrue(&cluster, "FleetBundlesReady")
	for what, wrong := range map[string]bool{
		"FleetImported is True without a namespace":           isImported && !hadNamespace && !hasNamespace,
		"FleetBundlesReady is True without a namespace":       isReady && !hadNamespace && !hasNamespace,
		"FleetBundlesReady is True without an agent's report": isReady && !hadAgent && !hasAgent,
	} {
		switch since := s.isWrong[what]; {
		case !wrong:
			delete(s.isWrong, what)
		case since.IsZero():
			s.isWrong[what] = time.Now()
		default:
			s.longest[what] = max(s.longest[what], time.Since(since))
		}
	}
	if ready := meta.FindStatusCondition(cluster.Status.Conditions, "FleetBundlesReady"); ready != nil &&
		(len(s.order) == 0 || s.order[len(s.order)-1] != string(ready.Status)) {
		s.order = append(s.order, string(ready.Status))
	}
}

// A Fleet Cluster that somebody deletes comes back with its namespace, although Fleet removes that from under it, and
// until then no condition is True. FleetBundlesReady waits for the agent of each one.
func TestDeletedFleetClusterComesBack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace := newNamespace(g, "team", nil)
	kubeconfig, err := os.ReadFile(env.Kubeconfig) // Fleet deploys its agent, which nobody runs; it does not try again.
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one-kubeconfig"}, Data: map[string][]byte{"value": kubeconfig}})).To(Succeed())
	cluster := newCluster(g, namespace, "one", "", "", nil)
	key := client.ObjectKeyFromObject(cluster)
	watching := sample(key)
	var last types.UID
	const times = 8
	for i := range times + 1 {
		home := &corev1.Namespace{}
		var gone time.Time
		g.Eventually(func(g Gomega) {
			fleet := &fleetv1.Cluster{}
			g.Expect(admin.Get(ctx, key, fleet)).To(Succeed())
			g.Expect(fleet.UID).NotTo(Equal(last))
			err := admin.Get(ctx, client.ObjectKey{Name: oracle.FleetNamespace(key)}, home)
			if err != nil && gone.IsZero() {
				gone = time.Now()
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(fleet.Status.Namespace).To(Equal(home.Name))
			g.Expect(home.DeletionTimestamp).To(BeNil())
			last = fleet.UID
		}).Should(Succeed())
		willReport(g, cluster, "True Imported")
		if i > 0 && !gone.IsZero() {
			t.Logf("deletion %d: the namespace is there %s after the old one was gone, uid %s", i, time.Since(gone).Round(time.Millisecond), home.UID)
		}
		bundlesReady(g, cluster, "Unknown AgentNotSeen", "")
		g.Eventually(func(g Gomega) {
			agentReports(g, cluster)
			isBundlesReady(g, cluster, "False BundlesNotReady", "WaitApplied(1)")
		}).WithPolling(time.Second).Should(Succeed())
		g.Eventually(func(g Gomega) {
			agentReports(g, cluster)
			agent := &fleetv1.BundleDeployment{}
			g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: home.Name, Name: "fleet-agent-one"}, agent)).To(Succeed())
			if agent.Status.AppliedDeploymentID != agent.Spec.DeploymentID {
				patchStatus(g, agent, fmt.Sprintf(`{"appliedDeploymentID":%q,"ready":true,"nonModified":true}`, agent.Spec.DeploymentID))
			}
			isBundlesReady(g, cluster, "True BundlesReady", "0 bundles besides Fleet's agent")
		}).WithPolling(time.Second).Should(Succeed())
		if i < times {
			g.Expect(admin.Delete(ctx, ownFleetCluster(g, cluster))).To(Succeed())
		}
	}
	close(watching.stop)
	<-watching.isStopped
	for what, longest := range watching.longest {
		g.Expect(longest).To(BeNumerically("<", lag), what)
	}
	// A report that was lost makes it Unknown once more.
	g.Expect(strings.Join(watching.order, " ")).To(MatchRegexp("^( ?Unknown( False| Unknown)* True)+$"))
	g.Expect(strings.Count(strings.Join(watching.order, " "), "True")).To(BeNumerically(">", times))
}

// agentReports plays the agent. Fleet writes the status as it last knew it, so a first report may be lost; an agent
// repeats it.
func agentReports(g Gomega, cluster *clusterv1.Cluster) {
	if fleet := ownFleetCluster(g, cluster); fleet.Status.Agent.LastSeen.IsZero() {
		patchStatus(g, fleet, fmt.Sprintf(`{"agent":{"lastSeen":%q,"namespace":"fleet-addon-agent"}}`, time.Now().UTC().Format(time.RFC3339)))
	}
}

// bundlesReady waits until FleetBundlesReady has this status, reason and message.
func bundlesReady(g Gomega, cluster *clusterv1.Cluster, state, message string) {
	g.Eventually(func(g Gomega) { isBundlesReady(g, cluster, state, message) }).Should(Succeed())
}

func isBundlesReady(g Gomega, cluster *clusterv1.Cluster, state, message string) {
	its := conditions.Get(current(g, cluster), "FleetBundlesReady")
	g.Expect(its).NotTo(BeNil())
	g.Expect(fmt.Sprintf("%s %s", its.Status, its.Reason)).To(Equal(state), its.Message)
	g.Expect(its.Message).To(ContainSubstring(message))
}

func patchStatus(g Gomega, object client.Object, status string) {
	g.Expect(admin.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":%s}`, status)))).To(Succeed())
}
