package integration

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
)

// With the policy of the page, a tenant's Bundle takes no Bundle of a class off a Cluster: Fleet would deploy the last of
// two with one name.
func TestBundleNames(t *testing.T) {
	g := NewWithT(t)
	blocks, err := fixture.Guide("../reference/conditions.md", 1)
	g.Expect(err).NotTo(HaveOccurred())
	classes, team := newNamespace(t, g, "classes-", nil), newNamespace(t, g, "team-", nil)
	bundle := func(namespace, name string, args ...string) (string, error) {
		return apply(t, "{apiVersion: fleet.cattle.io/v1alpha1, kind: Bundle, metadata: {namespace: "+namespace+", name: "+name+"}}", args...)
	}
	_, err = bundle(classes, "base")
	g.Expect(err).NotTo(HaveOccurred())
	says := "namespace " + classes + " has a Bundle of this name"
	bind := func(action string) {
		text := strings.NewReplacer("namespace: classes", "namespace: "+classes, "[Deny]", "["+action+"]").Replace(blocks[0])
		_, err := apply(t, text)
		g.Expect(err).NotTo(HaveOccurred())
	}
	deleteByKubectl(t, "validatingadmissionpolicy,validatingadmissionpolicybinding", "bundle-names")
	bind("Deny")
	g.Eventually(func() error {
		_, err := bundle(team, "base", "--dry-run=server")
		return err
	}).Should(MatchError(ContainSubstring(says)))
	for namespace, name := range map[string]string{team: "other", classes: "another"} {
		_, err := bundle(namespace, name)
		g.Expect(err).NotTo(HaveOccurred())
	}
	bind("Warn")
	g.Eventually(func() error {
		_, err := bundle(team, "base", "--dry-run=server", "--warnings-as-errors")
		return err
	}).Should(MatchError(And(ContainSubstring("Warning: "), ContainSubstring(says), ContainSubstring("1 warning received"))))
	_, err = bundle(team, "base")
	g.Expect(err).NotTo(HaveOccurred())
}
