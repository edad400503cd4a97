// Package fleetpolicy says what Fleet's Policies refuse a Bundle. It follows AuthorizeBundle and policyrestrictions.Aggregate
// in Fleet 0.16: the Policies of the Bundle's own namespace count, all together, and of each only the two fields about
// ServiceAccounts; defaults for GitRepos and HelmOps do not apply to Bundles. Fleet checks a Bundle when it reconciles it; it
// does not watch Policies. The deployments of a refused Bundle stay as they are.
package fleetpolicy

import (
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"

	"github.com/muster-fleet/muster/internal/message"
)

// CRD is the name of the CRD of Policies. Fleet has it since 0.16.
const CRD = "policies.fleet.cattle.io"

const (
	// MostAllowed is how many ServiceAccounts of a Policy Muster looks at. If a Policy allows more, only Fleet judges which.
	MostAllowed = 1000
	// listed is how many ServiceAccounts a message names, and longest how many bytes of each.
	listed, longest = 5, 253
)

// Refusal says why Fleet refuses a Bundle.
type Refusal struct {
	// ServiceAccount is the one that is not allowed; empty if the Bundle lacks one.
	ServiceAccount string
	// Target is the target of the Bundle that names it; empty if the Bundle itself does.
	Target string
	// Allowed are the allowed ones, sorted; empty if all are.
	Allowed []string
}

// Of returns why the Policies of a Bundle's namespace refuse it; nil if they do not.
func Of(policies []fleetv1.Policy, bundle *fleetv1.BundleSpec) *Refusal {
	var allowed []string
	isRequired, isAnyAllowed := false, false
	for i := range policies {
		its := &policies[i]
		isRequired = isRequired || its.RequireServiceAccount
		isAnyAllowed = isAnyAllowed || len(its.AllowedServiceAccounts) > MostAllowed
		allowed = append(allowed, its.AllowedServiceAccounts...)
	}
	slices.Sort(allowed)
	allowed = slices.Compact(allowed)
	if isRequired && bundle.ServiceAccount == "" {
		return &Refusal{Allowed: allowed}
	}
	isRefused := func(name string) bool {
		_, found := slices.BinarySearch(allowed, name)
		return name != "" && len(allowed) > 0 && !isAnyAllowed && !found
	}
	if isRefused(bundle.ServiceAccount) {
		return &Refusal{ServiceAccount: bundle.ServiceAccount, Allowed: allowed}
	}
	for i := range bundle.Targets {
		if its := &bundle.Targets[i]; isRefused(its.ServiceAccount) {
			return &Refusal{ServiceAccount: its.ServiceAccount, Target: its.Name, Allowed: allowed}
		}
	}
	return nil
}

// Why says which Policies refuse what.
func (r *Refusal) Why(namespace string) string {
	switch {
	case r.ServiceAccount == "":
		return "a Policy of Fleet in namespace " + namespace + " requires a ServiceAccount"
	case r.Target != "":
		return fmt.Sprintf("no Policy of Fleet in namespace %s allows ServiceAccount %s of target %q", namespace, r.ServiceAccount, r.Target)
	default:
		return fmt.Sprintf("no Policy of Fleet in namespace %s allows ServiceAccount %s", namespace, r.ServiceAccount)
	}
}

// Do says how to set a field of an object so that Fleet accepts the Bundle.
func (r *Refusal) Do(field string) string {
	if len(r.Allowed) == 0 {
		return "set " + field + " to a ServiceAccount that exists on the Cluster, in the namespace of Fleet's agent"
	}
	var names []string
	for _, name := range r.Allowed[:min(len(r.Allowed), listed+1)] {
		names = append(names, message.Short(name, longest))
	}
	if more := len(r.Allowed) - listed; more > 0 {
		names[listed] = fmt.Sprintf("%d more", more)
	}
	return "set " + field + " to one that is allowed: " + strings.Join(names, ", ")
}
