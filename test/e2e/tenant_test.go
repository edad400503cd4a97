package e2e

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/test/stack"
)

const (
	// platform is where the platform team keeps its class std and the bundles beside it.
	platform      = "platform"
	platformClass = "std"
	platformGroup = platformClass + "." + platform
	baseline      = "baseline"

	// lookout is how long after the last trick nothing may happen. The syncer acts within
	// milliseconds and Fleet within two seconds.
	lookout = 8 * time.Second
)

// trick is one way in that a tenant tries, in a namespace of its own.
type trick struct {
	name string
	// unselected says that the namespace is one that the namespaceSelector leaves out.
	unselected bool
	// ownGroup says that Muster makes a group of that name for a class of the namespace.
	ownGroup bool
	play     func(g Gomega, m *tenant)
	// after is what else must hold when all is played.
	after func(g Gomega, m *tenant)
}

// A tenant, mallory, may write everything that is his to write: Clusters, ClusterClasses
// and Fleet's objects of his namespaces. He has no right in the namespace platform, so
// nothing of it may ever reach him, whatever he writes. Muster's admission policies are a
// second fence: all of it must hold without them.
func TestTenant(t *testing.T) {
	g := NewWithT(t)
	setUpPlatform(t, g)
	tricks := append(append(append(fleetClusterTricks(), pinTricks()...), classTricks()...), keepingTricks()...)

	t.Run("as shipped", func(t *testing.T) { playTricks(t, "fenced", tricks) })
	t.Run("without our policies", func(t *testing.T) {
		withoutPolicies(t, NewWithT(t))
		playTricks(t, "open", tricks)
	})
}

// playTricks plays every trick, watches the platform's namespace meanwhile and some time
// longer, and then says of each what it has led to.
func playTricks(t *testing.T, prefix string, tricks []trick) {
	g := NewWithT(t)
	audit, err := env.AuditTail()
	g.Expect(err).NotTo(HaveOccurred())
	tenants := newTenants(t, g, prefix, tricks)
	watch := watchPlatform()
	defer watch.stop()

	for i, trick := range tricks {
		t.Run("playing: "+trick.name, func(t *testing.T) {
			tenants[i].T = t
			trick.play(NewWithT(t), tenants[i])
		})
	}
	touchBundle(g) // What a mapping has opened, Fleet finds when it looks at the bundle.
	time.Sleep(lookout)
	watch.stop()

	written, err := audit.Read(stack.AuditFilter{User: stack.ServiceAccount("muster-system", syncerProcess), Where: makesTargets})
	g.Expect(err).NotTo(HaveOccurred())
	for i, trick := range tricks {
		t.Run(trick.name, func(t *testing.T) {
			g := NewWithT(t)
			m := tenants[i]
			g.Expect(watch.problem).NotTo(HaveOccurred())
			g.Expect(watch.seen(m.namespace, m.since)).To(BeEmpty(), "what of the namespace platform was open to him")
			for _, event := range written {
				if event.Received.Before(m.since) {
					continue
				}
				g.Expect(event.Resource == "bundlenamespacemappings" && event.Namespace == platform && event.Name == m.namespace).
					To(BeFalse(), "Muster wrote a mapping: %s", event)
				g.Expect(!trick.ownGroup && event.Resource == "clustergroups" && event.Namespace == m.namespace && strings.HasSuffix(event.Name, "."+platform)).
					To(BeFalse(), "Muster wrote a group: %s", event)
			}
			if trick.after != nil {
				m.T = t
				trick.after(g, m)
			}
		})
	}
}

// makesTargets selects the requests that made or changed a group or a mapping.
func makesTargets(event stack.AuditEvent) bool {
	targets := event.Resource == "bundlenamespacemappings" || event.Resource == "clustergroups"
	return targets && event.Code < 300 && (event.Verb == "create" || event.Verb == "patch" || event.Verb == "update")
}

// withoutPolicies takes Muster's admission policies out of force until the test ends.
func withoutPolicies(t *testing.T, g Gomega) {
	var bindings admissionregistrationv1.ValidatingAdmissionPolicyBindingList
	g.Expect(admin.List(ctx, &bindings)).To(Succeed())
	gone := 0
	for _, binding := range bindings.Items {
		if !strings.HasPrefix(binding.Name, "muster-") {
			continue
		}
		gone++
		g.Expect(admin.Delete(ctx, &binding)).To(Succeed())
		t.Cleanup(func() {
			binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}
			if err := admin.Create(ctx, &binding); err != nil {
				t.Errorf("putting back the policy binding %s: %v", binding.Name, err)
			}
		})
	}
	g.Expect(gone).To(BeNumerically(">", 0))
	time.Sleep(2 * time.Second) // The API server forgets them a moment later.
}

// touchBundle makes Fleet work out the targets of the platform's bundle again.
func touchBundle(g Gomega) {
	_, err := env.Kubectl(ctx, "-n", platform, "annotate", "--overwrite", "bundles.fleet.cattle.io", baseline, "look="+time.Now().Format("150405.000"))
	g.Expect(err).NotTo(HaveOccurred())
}
