package random

import (
	"errors"
	"fmt"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
)

// tenantRole is what a tenant may do, in one namespace.
const tenantRole = "random-tenant"

func makeTenantRole() error {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: tenantRole}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters", "clusterclasses"}, Verbs: []string{"*"}},
		{APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"clusters", "clustergroups", "bundles"}, Verbs: []string{"*"}},
	}}
	if err := admin.Create(ctx, role); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// tenantNamespace is the namespace that is a tenant's.
func (r *run) tenantNamespace() string { return r.namespace(namespaceCount - 1) }

// newTenant returns the client of somebody who has rights in one namespace.
func newTenant(namespace string) (client.Client, error) {
	user := "tenant-" + namespace
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: tenantRole},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: tenantRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if err := admin.Create(ctx, binding); err != nil {
		return nil, err
	}
	tenant, err := fixture.ClientAs(env, user)
	if err != nil {
		return nil, err
	}
	// The API server hears of the binding a moment later.
	return tenant, try(10*time.Second, func() error { return tenant.List(ctx, &fleetv1.ClusterList{}, client.InNamespace(namespace)) })
}

// withPolicies leaves the shipped admission policies in force, or takes their bindings
// away: no decision of Muster's may rest on them. MUSTER_POLICIES=on or off has the last
// word. It returns what puts them back.
func withPolicies(inForce bool) (restore func() error, err error) {
	inForce = asked("MUSTER_POLICIES", inForce)
	restore = func() error { return nil }
	if inForce {
		return restore, nil
	}
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	if err := admin.List(ctx, &bindings); err != nil {
		return restore, err
	}
	var taken []*admissionv1.ValidatingAdmissionPolicyBinding
	for i := range bindings.Items {
		binding := &bindings.Items[i]
		if !strings.HasPrefix(binding.Name, "muster-") {
			continue
		}
		if err := admin.Delete(ctx, binding.DeepCopy()); err != nil {
			return restore, err
		}
		taken = append(taken, &admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}, Spec: binding.Spec,
		})
	}
	time.Sleep(time.Second) // The API server forgets them a moment later.
	return func() error {
		var errs []error
		for _, binding := range taken {
			errs = append(errs, admin.Create(ctx, binding))
		}
		time.Sleep(time.Second)
		return errors.Join(errs...)
	}, nil
}

// noteRightful notes which groups and mappings may be made as things are now: those for
// Clusters that are selected and name the class, and those of the classes themselves.
// Nobody but the administrator of this run can make a Cluster name a class of another
// namespace, and the oracle has no part in this.
func (r *run) noteRightful() {
	r.noteWished()
	for _, cluster := range r.state.Clusters {
		ref := cluster.Spec.Topology.ClassRef
		if ref.Name == "" || ref.Namespace == "" || ref.Namespace == cluster.Namespace || !r.isSelected(cluster) {
			continue
		}
		r.rightful[made("bundlenamespacemappings", ref.Namespace, cluster.Namespace)] = true
		r.rightful[made("clustergroups", cluster.Namespace, ref.Name+"."+ref.Namespace)] = true
	}
	for key := range r.state.Classes {
		r.rightful[made("clustergroups", key.Namespace, key.Name)] = true
	}
}

func made(resource, namespace, name string) string { return resource + " " + namespace + "/" + name }

// isSelected: both selectors match, and the Cluster is not paused.
func (r *run) isSelected(cluster *clusterv1.Cluster) bool {
	_, annotated := cluster.Annotations["cluster.x-k8s.io/paused"]
	if annotated || ptr.Deref(cluster.Spec.Paused, false) {
		return false
	}
	config := r.state.Config
	if config == nil || config.Spec.Cluster == nil {
		return true
	}
	stamped := oracle.Admitted(oracle.State{Namespaces: r.state.Namespaces}, cluster).Labels
	matches := func(selector *metav1.LabelSelector, set map[string]string) bool {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		return selector == nil || err == nil && parsed.Matches(labels.Set(set))
	}
	return !isFalse(config.Spec.Cluster.Enabled) && matches(config.Spec.Cluster.Selector, stamped) &&
		matches(config.Spec.Cluster.NamespaceSelector, r.state.Namespaces[cluster.Namespace].Labels)
}

// nothingOpened fails if since the last quiet point the syncer has made a mapping or a
// group that nobody entitled to it wished for. The audit log forgets nothing, however
// short it was there.
func (r *run) nothingOpened() error {
	events, err := r.audit.Read(stack.AuditFilter{
		User: stack.ServiceAccount("muster-system", syncerProcess),
		Where: func(event stack.AuditEvent) bool {
			return event.Code == 201 && event.Group == "fleet.cattle.io" && event.Subresource == "" && strings.HasPrefix(event.Namespace, r.id+"-")
		},
	})
	if err != nil {
		return err
	}
	for _, event := range events {
		what := made(event.Resource, event.Namespace, event.Name)
		if (event.Resource == "bundlenamespacemappings" || event.Resource == "clustergroups") && !r.rightful[what] {
			return &oracleError{fmt.Sprintf("%s was made at %s, and nobody entitled to it wished for it", what, event.Received.Format("15:04:05.000"))}
		}
	}
	clear(r.rightful)
	r.noteRightful()
	return nil
}
