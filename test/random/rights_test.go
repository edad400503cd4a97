package random

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// tenantRole contains a tenant's rights in one namespace.
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

// newTenant returns the client of a user with rights in one namespace.
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
	// The API server notices the binding a moment later.
	return tenant, poll.Until(ctx, "the tenant's rights", 10*time.Second, func(ctx context.Context) error {
		return tenant.List(ctx, &fleetv1.ClusterList{}, client.InNamespace(namespace))
	})
}

// noteRightful records which groups and mappings Muster may make at present: those for selected Clusters that name
// the class, and the groups of the classes themselves. Only the administrator of this run can make a Cluster name a
// class of another namespace, and this check does not use the oracle.
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

func isPaused(cluster *clusterv1.Cluster) bool {
	_, annotated := cluster.Annotations[pausedKey]
	return annotated || ptr.Deref(cluster.Spec.Paused, false)
}

// isSelected reports whether both selectors match, and the Cluster is not paused.
func (r *run) isSelected(cluster *clusterv1.Cluster) bool {
	config, _ := r.config()
	stamped := oracle.Admitted(oracle.State{Namespaces: r.state.Namespaces}, cluster).Labels
	matches := func(selector *metav1.LabelSelector, set map[string]string) bool {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		return selector == nil || err == nil && parsed.Matches(labels.Set(set))
	}
	return !isPaused(cluster) && !isFalse(config.Enabled) && matches(config.Selector, stamped) &&
		matches(config.NamespaceSelector, r.state.Namespaces[cluster.Namespace].Labels)
}

// noteWished records the registrations that the registrar should make at present, each once.
func (r *run) noteWished() {
	want := oracle.Converge(r.state)
	for key, asked := range want.AgentInitiated.Registrations {
		if asked.Name != "" {
			continue
		}
		of := asked.OwnerReferences[0]
		wish := fmt.Sprint(key, of.UID, asked.Spec.ClientID)
		if fleet := want.FleetClusters[oracle.Key{Namespace: key.Namespace, Name: of.Name}]; fleet != nil && len(fleet.OwnerReferences) > 0 {
			uid := fleet.OwnerReferences[0].UID
			wish += fmt.Sprint(uid, want.AgentInitiated.Rotated[uid])
		}
		if r.wished[key.Namespace] == nil {
			r.wished[key.Namespace] = map[string]bool{}
		}
		r.wished[key.Namespace][wish] = true
	}
}

// nothingElse fails if Muster has done something since the last quiet point that the objects no longer show. The
// audit log shows every request, however briefly the object existed.
func (r *run) nothingElse() error {
	events, err := r.audit.Read(stack.AuditFilter{Where: func(event stack.AuditEvent) bool {
		return event.Code == 201 && event.Group == "fleet.cattle.io" && event.Subresource == "" && r.state.Namespaces[event.Namespace] != nil
	}})
	if err != nil {
		return err
	}
	err = errors.Join(r.nothingAnew(), r.nothingOpened(events), r.nothingTwice(events))
	clear(r.rightful)
	clear(r.wished)
	r.noteRightful()
	return err
}

// nothingOpened fails if the syncer has made a mapping or a group for which no entitled user asked.
func (r *run) nothingOpened(events []stack.AuditEvent) error {
	for _, event := range events {
		what := made(event.Resource, event.Namespace, event.Name)
		if event.User == stack.ServiceAccount("muster-system", syncerProcess) && !r.rightful[what] &&
			(event.Resource == "bundlenamespacemappings" || event.Resource == "clustergroups") {
			return &oracleError{fmt.Sprintf("%s was made at %s, and nobody entitled to it wished for it", what, event.Received.Format("15:04:05.000"))}
		}
	}
	return nil
}

// nothingTwice fails if the registrar has made more registrations than it should: each extra one cuts off an agent
// with the earlier credential.
func (r *run) nothingTwice(events []stack.AuditEvent) error {
	made := map[string]int{}
	for _, event := range events {
		if event.User == stack.ServiceAccount("muster-system", registrarProcess) && event.Resource == "clusterregistrations" {
			made[event.Namespace]++
			r.agents++
		}
	}
	for namespace, count := range made {
		if wished := len(r.wished[namespace]); count > wished {
			return &oracleError{fmt.Sprintf("%d ClusterRegistrations were made in %s, and %d were to be made", count, namespace, wished)}
		}
	}
	return nil
}

// uidsOf returns the UIDs of the objects that Muster makes.
func uidsOf(s oracle.State) map[string]types.UID {
	uids := map[string]types.UID{}
	for _, object := range slices.Concat(
		values(s.FleetClusters), values(s.Groups), values(s.Mappings), values(s.AgentInitiated.Registrations), values(s.AgentInitiated.Manifests),
	) {
		uids[fmt.Sprintf("%T %s", object, client.ObjectKeyFromObject(object))] = object.GetUID()
	}
	for of, carrier := range s.Helm.Carriers {
		uids[retainedCarrier(of)] = carrier.UID
	}
	return uids
}

func retainedCarrier(of oracle.Carriage) string {
	return of.String() + ", " + of.Release
}

// noteRetained forgets the objects of the last quiet point that were deleted since, or that the model would have
// deleted for a moment: Muster may make them again.
func (r *run) noteRetained() {
	there, wanted := uidsOf(r.state), uidsOf(oracle.Converge(r.state))
	maps.DeleteFunc(r.retained, func(name string, uid types.UID) bool { return there[name] != uid || wanted[name] != uid })
	// A user has deleted the Fleet Clusters of all the carrier's targets. Everything that Fleet made from the carrier
	// goes with them, whether the carrier stays or not.
	for of, carrier := range r.state.Helm.Carriers {
		if len(carrier.Targets) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(carrier.Targets)), func(name string) bool {
			return r.state.FleetClusters[oracle.Key{Namespace: of.Namespace, Name: name}] != nil
		}) {
			delete(r.retained, retainedCarrier(of))
		}
	}
}

// nothingAnew fails if an object that should stay has been recreated since the last quiet point: to Fleet it is
// another cluster, to which it deploys everything again.
func (r *run) nothingAnew() error {
	seen := uidsOf(r.state)
	for _, name := range slices.Sorted(maps.Keys(r.retained)) {
		if seen[name] != r.retained[name] {
			return &oracleError{fmt.Sprintf("%s was made anew, and nothing was the matter with it", name)}
		}
	}
	r.retained = seen
	return nil
}
