package integration

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// nothingRefused is asked when all tests on a stack are over: the audit log then holds all
// that they made the two ServiceAccounts do. Neither RBAC nor the policies that bound the
// syncer refused any of it, but for the one thing that is asked for without being granted:
// the CA that a FleetAddonConfig refers to.
func nothingRefused(s *stack.Stack) error {
	var problems []error
	for _, account := range []string{webhookProcess, syncerProcess} {
		all, err := s.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", account)})
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("%s has asked for nothing", account)
		}
		problems = append(problems, err)
		for _, e := range all {
			isCA := account == webhookProcess && e.Verb == "get" && (e.Resource == "configmaps" || e.Resource == "secrets")
			if e.Code == http.StatusForbidden && e.UserAgent != thiefAgent && !isCA && !provoked[e.Namespace] {
				problems = append(problems, fmt.Errorf("%s was refused: %s: %s", account, e, e.Reason))
			}
		}
	}
	return errors.Join(problems...)
}

// What the two ServiceAccounts may do is written out, and none of it is too much.
func TestAccessIsNarrow(t *testing.T) {
	g := NewWithT(t)
	var roles rbacv1.ClusterRoleList
	g.Expect(admin.List(ctx, &roles)).To(Succeed())
	seen := 0
	for _, role := range roles.Items {
		if !strings.HasPrefix(role.Name, "muster-") {
			continue
		}
		seen++
		for _, rule := range role.Rules {
			all := slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs)
			g.Expect(all).NotTo(ContainElement(ContainSubstring("*")), "a wildcard in %s", role.Name)
			g.Expect(rule.Resources).NotTo(ContainElement("secrets"), role.Name)
			g.Expect(rule.Resources).NotTo(ContainElement("configmaps"), role.Name)
			g.Expect(rule.Verbs).NotTo(ContainElements("escalate", "bind", "impersonate", "deletecollection"), role.Name)
		}
	}
	g.Expect(seen).To(BeNumerically(">", 5))

	var bindings rbacv1.ClusterRoleBindingList
	g.Expect(admin.List(ctx, &bindings)).To(Succeed())
	for _, binding := range bindings.Items {
		for _, subject := range binding.Subjects {
			if subject.Namespace == "muster-system" {
				g.Expect(binding.RoleRef.Name).To(HavePrefix("muster-"), binding.Name)
			}
		}
	}
}

// Names are chosen by those who may make namespaces and accounts: none exempts.
func TestNoNameExempts(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: %[1]s, name: muster-syncer}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, namespace: %[1]s, name: muster-syncer}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: muster-system, name: test-tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: User, name: squatter}]
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %[1]s, name: bare, labels: {app.kubernetes.io/managed-by: muster}}
`, s.namespace))).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "-n", "muster-system", "delete", "rolebinding", "test-tenant"); err != nil {
			t.Error(err)
		}
	})

	t.Run("an account of the syncer's name", func(t *testing.T) {
		g := NewWithT(t)
		config, err := env.RESTConfig()
		g.Expect(err).NotTo(HaveOccurred())
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = tokenOfAccount(g, s.namespace, "muster-syncer")
		namesake, err := fixture.ClientOf(config)
		g.Expect(err).NotTo(HaveOccurred())
		bare := func() client.Object { return target(fleetVersion, "Cluster", s.namespace, "bare") }
		g.Eventually(func() error { // The authorizer learns of the role.
			return namesake.Patch(ctx, bare(), mergePatch(`{"metadata":{"labels":{"a":"b"}}}`))
		}).Should(Succeed())
		err = namesake.Patch(ctx, bare(), mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, stamp.ReleasedAnnotation)))
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(err).To(MatchError(ContainSubstring("muster-bookkeeping")))
		// It is bounded like the syncer, and loses nothing but its own rights by that.
		err = namesake.Create(ctx, object(g, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":%q,"name":"new"}}`, s.namespace)))
		g.Expect(err).To(MatchError(ContainSubstring("muster-syncer-nothing-else")))
	})
	t.Run("a namespace of Muster's name", func(t *testing.T) {
		g := NewWithT(t)
		cluster := fixture.Cluster("muster-system", "squatting", "standard", s.classNamespace)
		g.Eventually(func() error { return tenant(g, "squatter").Create(ctx, cluster.DeepCopy(), client.DryRunAll) }).
			Should(MatchError(ContainSubstring("class-access.clusters.fleet.addons.cluster.x-k8s.io")))
	})
}
