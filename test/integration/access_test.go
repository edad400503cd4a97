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
