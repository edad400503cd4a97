// Package audit finds what was never authorized in a management cluster: mappings that are
// open without a rightful user, Clusters that use a class of another namespace, and Fleet
// Clusters that were released and left over. Audit is pure; Read fetches its input, with the
// rights of the person who asks; the rest prints.
package audit

import (
	"cmp"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

// State is what exists. What could not be read is nil, and listed in Unread.
type State struct {
	Settings settings.Settings
	// Namespaces are the labels of each Namespace.
	Namespaces    map[string]map[string]string
	Clusters      []*clusterv1.Cluster
	Classes       map[types.NamespacedName]bool
	FleetClusters []*metav1.PartialObjectMetadata
	Mappings      []*fleetv1.BundleNamespaceMapping
	// AskedSince is when the webhook that checks who may use a class was installed; nil if it
	// does not exist or was not read.
	AskedSince *time.Time
	// Unread maps what could not be read to the reason.
	Unread map[Kind]string
}

// Kind is something that is read.
type Kind string

// What is read.
const (
	Configs       Kind = "FleetAddonConfig"
	Namespaces    Kind = "Namespaces"
	Clusters      Kind = "Clusters"
	Classes       Kind = "ClusterClasses"
	FleetClusters Kind = "Fleet Clusters"
	Mappings      Kind = "BundleNamespaceMappings"
	Webhook       Kind = "ValidatingWebhookConfiguration " + webhookName
)

// webhookName is the configuration whose webhook checks who may use a class.
const webhookName = "muster-validating-webhook"

// Report is what was found, each list in the order of namespace and name.
type Report struct {
	// Mappings are those that are open without a rightful user.
	Mappings []Mapping `json:"mappings"`
	// Clusters are those that use a class of another namespace.
	Clusters []Use `json:"clusters"`
	// Released are the Fleet Clusters that were released and whose Cluster is gone.
	Released []Leftover `json:"released"`
	// Notes say what could not be read, and what is therefore unknown.
	Notes []string `json:"notes"`
}

// Mapping is a BundleNamespaceMapping of Muster's that is open without a rightful user.
type Mapping struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Edited says that someone changed what it maps.
	Edited bool `json:"edited"`
	// KeptBy is why Muster leaves it open; if empty, nothing keeps it.
	KeptBy []Keeper `json:"keptBy"`
}

// Keeper is an object that keeps a mapping open.
type Keeper struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Why       string `json:"why"`
}

// Use is a Cluster that uses a class of another namespace.
type Use struct {
	Namespace      string    `json:"namespace"`
	Name           string    `json:"name"`
	Class          string    `json:"class"`
	ClassNamespace string    `json:"classNamespace"`
	Created        time.Time `json:"created"`
	Asked          Asked     `json:"asked"`
}

// Asked says whether the right to use the class was checked.
type Asked string

// Whether it was checked.
const (
	// AskedYes applies to a Cluster that is younger than the webhook that checks.
	AskedYes Asked = "yes"
	// AskedOlder applies to an older one. It was checked only if its class was changed since.
	AskedOlder Asked = "no, older than the webhook"
	// AskedNobody applies while there is no webhook that checks.
	AskedNobody Asked = "no, there is no webhook"
	// AskedUnknown applies where the webhook may not be read.
	AskedUnknown Asked = "unknown"
)

// Leftover is a Fleet Cluster that outlived its Cluster.
type Leftover struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Cluster is the name of the Cluster it was made from, if that is known.
	Cluster string    `json:"cluster,omitempty"`
	Created time.Time `json:"created"`
	// Delete is the command that deletes it, and with it what Fleet deployed.
	Delete string `json:"delete"`
}

// Audit reports on a state.
func Audit(state *State) *Report {
	a := &audit{State: state, report: &Report{Mappings: []Mapping{}, Clusters: []Use{}, Released: []Leftover{}, Notes: []string{}}}
	a.index()
	a.notes()
	a.mappings()
	a.uses()
	a.leftovers()
	slices.SortFunc(a.report.Mappings, func(x, y Mapping) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	slices.SortFunc(a.report.Clusters, func(x, y Use) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	slices.SortFunc(a.report.Released, func(x, y Leftover) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return a.report
}

type audit struct {
	*State
	report *Report
	byName map[types.NamespacedName]*clusterv1.Cluster
	users  map[string][]*clusterv1.Cluster            // by namespace, those that use a class of another
	copies map[string][]*metav1.PartialObjectMetadata // by namespace, Fleet Clusters of ours
}
