// Package audit finds objects in a management cluster that no one authorized: open mappings without a
// rightful user, Clusters that use a class of another namespace, and released Fleet Clusters that were
// left over. Audit is pure; Read fetches its input, with the rights of the person who runs it; the rest
// prints.
package audit

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// State has the objects that exist. A list that could not be read is nil, and its kind is in Unread.
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
	// Now is when the state was read.
	Now time.Time
	// Unread has, for each kind that could not be read, the reason.
	Unread map[Kind]string
}

// Kind is a kind of objects that Read reads.
type Kind string

// The kinds.
const (
	Configs       Kind = "FleetAddonConfig"
	Namespaces    Kind = "Namespaces"
	Clusters      Kind = "Clusters"
	Classes       Kind = "ClusterClasses"
	FleetClusters Kind = "Fleet Clusters"
	Mappings      Kind = "BundleNamespaceMappings"
	Webhook       Kind = "ValidatingWebhookConfiguration " + webhookName
)

// webhookName is the webhook configuration that checks who may use a class.
const webhookName = "muster-validating-webhook"

// Report has the findings, each list sorted by namespace and name.
type Report struct {
	// Mappings are open mappings without a rightful user.
	Mappings []Mapping `json:"mappings"`
	// Clusters use a class of another namespace.
	Clusters []Use `json:"clusters"`
	// Released are released Fleet Clusters whose Cluster is gone.
	Released []Leftover `json:"released"`
	// Doubles are Clusters that are in Fleet twice: as a Fleet Cluster of Muster's and as one of Rancher's.
	Doubles []Double `json:"doubles"`
	// Holds are the upgrades that are held, and why.
	Holds []Hold `json:"holds"`
	// Notes say which kinds could not be read, and what is therefore unknown.
	Notes []string `json:"notes"`
}

// Mapping is one of Muster's BundleNamespaceMappings, open without a rightful user.
type Mapping struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Edited means that its selectors are not those that Muster made.
	Edited bool `json:"edited"`
	// RetainedBy has the objects for which Muster leaves it open; empty if there are none.
	RetainedBy []Retainer `json:"retainedBy"`
}

// Retainer is an object that keeps a mapping open.
type Retainer struct {
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

// Asked says whether the webhook has checked the author's right to use the class.
type Asked string

// The answers.
const (
	// AskedYes means that the Cluster is younger than the webhook.
	AskedYes Asked = "yes"
	// AskedOlder means that it is older: the webhook checked it only if its class has changed since.
	AskedOlder Asked = "no, older than the webhook"
	// AskedNobody means that there is no webhook.
	AskedNobody Asked = "no, there is no webhook"
	// AskedUnknown means that the webhook configuration could not be read.
	AskedUnknown Asked = "unknown"
)

// Leftover is a Fleet Cluster that outlived its Cluster.
type Leftover struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Cluster is the name of the Cluster from which it was made; empty if unknown.
	Cluster string    `json:"cluster,omitempty"`
	Created time.Time `json:"created"`
	// Delete is the command that deletes it, and with it everything that Fleet deployed there.
	Delete string `json:"delete"`
}

// Double is a Cluster that is in Fleet twice.
type Double struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Message is that of its condition FleetImported.
	Message string `json:"message"`
}

// Hold is a hold on the upgrade of a Cluster. It keeps back all changes of the Cluster's topology.
type Hold struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Why       string `json:"why"`
	// End is the command that ends it.
	End string `json:"end"`
}

// holds lists the upgrades that are held.
func (a *audit) holds() {
	for _, cluster := range a.Clusters {
		if why := hold.Why(cluster.Annotations, a.Now); why != "" {
			a.report.Holds = append(a.report.Holds, Hold{
				Namespace: cluster.Namespace, Name: cluster.Name, Why: why,
				End: fmt.Sprintf("kubectl -n %s annotate clusters.cluster.x-k8s.io %s %s-", cluster.Namespace, cluster.Name, stamp.HookAnnotation),
			})
		}
	}
	slices.SortFunc(a.report.Holds, func(x, y Hold) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
}

// doubles lists the Clusters that are in Fleet twice, according to the syncer.
func (a *audit) doubles() {
	for _, cluster := range a.Clusters {
		if said := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition); said != nil && said.Reason == addonsv1.DoubleImportReason {
			a.report.Doubles = append(a.report.Doubles, Double{cluster.Namespace, cluster.Name, said.Message})
		}
	}
	slices.SortFunc(a.report.Doubles, func(x, y Double) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
}

// Audit reports on a state.
func Audit(state *State) *Report {
	a := &audit{State: state, report: &Report{Mappings: []Mapping{}, Clusters: []Use{}, Released: []Leftover{}, Doubles: []Double{}, Holds: []Hold{}, Notes: []string{}}}
	a.index()
	a.notes()
	a.mappings()
	a.uses()
	a.leftovers()
	a.doubles()
	a.holds()
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

// uses lists the Clusters that use a class of another namespace.
func (a *audit) uses() {
	for _, clusters := range a.users {
		for _, cluster := range clusters {
			class := cluster.GetClassKey()
			a.report.Clusters = append(a.report.Clusters, Use{
				Namespace: cluster.Namespace, Name: cluster.Name, Class: class.Name, ClassNamespace: class.Namespace,
				Created: cluster.CreationTimestamp.Time, Asked: a.asked(cluster),
			})
		}
	}
}

func (a *audit) asked(cluster *clusterv1.Cluster) Asked {
	switch {
	case a.Unread[Webhook] != "":
		return AskedUnknown
	case a.AskedSince == nil:
		return AskedNobody
	case cluster.CreationTimestamp.Time.Before(*a.AskedSince):
		return AskedOlder
	default:
		return AskedYes
	}
}

// leftovers lists the released Fleet Clusters whose Cluster is gone.
func (a *audit) leftovers() {
	if a.Unread[Clusters] != "" {
		return
	}
	for _, clusters := range a.copies {
		for _, cluster := range clusters {
			if !isReleased(cluster) || !cluster.DeletionTimestamp.IsZero() || a.clusterOf(cluster) != nil {
				continue
			}
			a.report.Released = append(a.report.Released, Leftover{
				Namespace: cluster.Namespace, Name: cluster.Name, Cluster: stamp.OriginOf(cluster).Name, Created: cluster.CreationTimestamp.Time,
				Delete: fmt.Sprintf("kubectl -n %s delete clusters.fleet.cattle.io %s", cluster.Namespace, cluster.Name),
			})
		}
	}
}

// needed are the kinds that decide whether a user is rightful.
var needed = []Kind{Configs, Clusters, Classes, FleetClusters}

// undecided reports whether a rightful user of a mapping could be among the unread objects.
func (a *audit) undecided() bool {
	return a.Unread[Namespaces] != "" && !a.Settings.Cluster.NamespaceSelector.Empty() ||
		slices.ContainsFunc(needed, func(kind Kind) bool { return a.Unread[kind] != "" })
}

// notes adds a note for each kind that was not read, and for the consequences.
func (a *audit) notes() {
	for _, kind := range slices.Sorted(maps.Keys(a.Unread)) {
		a.report.Notes = append(a.report.Notes, fmt.Sprintf("%s: %s", kind, a.Unread[kind]))
	}
	var silent []string
	if a.Unread[Mappings] != "" || a.undecided() {
		silent = append(silent, "whether a mapping has a rightful user")
	}
	if a.Unread[Clusters] != "" {
		silent = append(silent, "which Clusters use a class of another namespace", "which are in Fleet twice", "which upgrades are held")
	}
	if a.Unread[Clusters] != "" || a.Unread[FleetClusters] != "" {
		silent = append(silent, "which Fleet Clusters are left over")
	}
	if len(silent) > 0 {
		a.report.Notes = append(a.report.Notes, "unknown: "+strings.Join(silent, ", "))
	}
	if a.Unread[Configs] == "" && !a.Settings.Cluster.Enabled {
		a.report.Notes = append(a.report.Notes, "spec.cluster.enabled of the FleetAddonConfig is false, so Muster changes nothing; the users above are judged as if it were true")
	}
}

// WriteTables writes a report as tables.
func (r *Report) WriteTables(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 3, ' ', 0)
	section(table, "BundleNamespaceMappings without a rightful user", len(r.Mappings), "NAMESPACE\tNAME\tMAPS\tRETAINED BY")
	for _, mapping := range r.Mappings {
		maps := "as made"
		if mapping.Edited {
			maps = "edited"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", mapping.Namespace, mapping.Name, maps, retainedBy(mapping.RetainedBy))
	}
	fmt.Fprintln(table)
	section(table, "Clusters that use a class of another namespace", len(r.Clusters), "NAMESPACE\tNAME\tCLASS\tCREATED\tASKED")
	for _, use := range r.Clusters {
		fmt.Fprintf(table, "%s\t%s\t%s/%s\t%s\t%s\n", use.Namespace, use.Name, use.ClassNamespace, use.Class, use.Created.UTC().Format(time.RFC3339), use.Asked)
	}
	fmt.Fprintln(table)
	section(table, "Released Fleet Clusters whose Cluster is gone", len(r.Released), "NAMESPACE\tNAME\tCREATED\tTO DELETE IT AND ITS DEPLOYMENTS")
	for _, leftover := range r.Released {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", leftover.Namespace, leftover.Name, leftover.Created.UTC().Format(time.RFC3339), leftover.Delete)
	}
	if len(r.Doubles) > 0 { // There are none without Rancher.
		fmt.Fprintln(table)
		section(table, "Clusters that are in Fleet twice, as Muster's and as Rancher's", len(r.Doubles), "NAMESPACE\tNAME\tHOW")
	}
	for _, double := range r.Doubles {
		fmt.Fprintf(table, "%s\t%s\t%s\n", double.Namespace, double.Name, double.Message)
	}
	if len(r.Holds) > 0 {
		fmt.Fprintln(table)
		section(table, "Upgrades that are held", len(r.Holds), "NAMESPACE\tNAME\tWHY\tTO END IT")
	}
	for _, its := range r.Holds {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", its.Namespace, its.Name, its.Why, its.End)
	}
	for i, note := range r.Notes {
		if i == 0 {
			fmt.Fprintln(table)
		}
		fmt.Fprintf(table, "note: %s\n", note)
	}
	return table.Flush()
}

func section(to io.Writer, title string, count int, header string) {
	fmt.Fprintf(to, "%s: %d\n", title, count)
	if count > 0 {
		fmt.Fprintln(to, header)
	}
}

func retainedBy(retainers []Retainer) string {
	var names []string
	for _, retainer := range retainers {
		names = append(names, fmt.Sprintf("%s %s (%s)", retainer.Kind, retainer.Name, retainer.Why))
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
