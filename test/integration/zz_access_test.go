package integration

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/muster-fleet/muster/test/stack"
)

// The tests of a package run in the order of their files: when this one runs, the audit
// log holds all that the others made the two ServiceAccounts do. Neither RBAC nor the
// policies that bound the syncer refused any of it, but for the one thing that is asked
// for without being granted: the CA that a FleetAddonConfig refers to.
func TestNothingWasRefused(t *testing.T) {
	g := NewWithT(t)
	for _, account := range []string{"muster-webhook", "muster-syncer"} {
		user := stack.ServiceAccount("muster-system", account)
		all, err := env.AuditLog(stack.AuditFilter{User: user})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).NotTo(BeEmpty(), account)
		refused, err := env.AuditLog(stack.AuditFilter{User: user, Where: func(e stack.AuditEvent) bool {
			isCA := account == "muster-webhook" && e.Verb == "get" && (e.Resource == "configmaps" || e.Resource == "secrets")
			return e.Code == http.StatusForbidden && e.UserAgent != thiefAgent && !isCA && !provoked[e.Namespace]
		}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(refused).To(BeEmpty(), account)
		t.Logf("%s: %d requests, none refused", account, len(all))
	}
}

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
