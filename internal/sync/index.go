package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/observed"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// Indexes, so that "who uses it now?" does not walk through all clusters.
const (
	byClass          = "muster.class"          // "<class namespace>/<class name>" of a Cluster's topology
	byClassNamespace = "muster.classNamespace" // class namespace that a Cluster, or a Fleet Cluster of ours, uses from another namespace
	byGroup          = "muster.group"          // name of the cross-namespace ClusterGroup it uses
	byPin            = "muster.pin"            // name of the Fleet Cluster it is pinned to
	byUID            = "muster.uid"            // UID of a Cluster
	byOrigin         = "muster.origin"         // the CAPI Cluster a Fleet Cluster was made from: originName and originUID
	byReleased       = "muster.released"       // "true" for a released Fleet Cluster
)

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		values client.IndexerFunc
	}{
		{&clusterv1.Cluster{}, byClass, func(o client.Object) []string {
			return nonEmpty(o.(*clusterv1.Cluster).GetClassKey().String())
		}},
		{&clusterv1.Cluster{}, byClassNamespace, ofUse(byClassNamespace)},
		{&clusterv1.Cluster{}, byGroup, ofUse(byGroup)},
		{&clusterv1.Cluster{}, byPin, func(o client.Object) []string {
			return nonEmpty(stamp.PinOf(o.GetAnnotations()).ClusterName)
		}},
		{&clusterv1.Cluster{}, byUID, func(o client.Object) []string { return nonEmpty(string(o.GetUID())) }},
		{&fleetv1.Cluster{}, byOrigin, func(o client.Object) []string { return origins(o) }},
		{&fleetv1.Cluster{}, byReleased, func(o client.Object) []string {
			return trueIf(o.GetAnnotations()[stamp.ReleasedAnnotation] == "true")
		}},
		{&fleetv1.Cluster{}, byClassNamespace, ofUse(byClassNamespace)},
		{&fleetv1.Cluster{}, byGroup, ofUse(byGroup)},
		{&clusterv1.Cluster{}, sources.ByReference, sources.References},
		{&clusterv1.Cluster{}, sources.ByKind, sources.Kinds},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("adding index %s: %w", index.name, err)
		}
	}
	return observed.IndexRivals(ctx, indexer)
}

// ofUse indexes Clusters and Fleet Clusters by what they use.
func ofUse(index string) client.IndexerFunc {
	return func(object client.Object) []string {
		switch cluster := object.(type) {
		case *clusterv1.Cluster:
			return indexed(useOf(cluster))[index]
		case *fleetv1.Cluster:
			return indexed(useOfFleet(cluster))[index]
		default:
			return nil
		}
	}
}

// indexed returns the values of a use in the indexes.
func indexed(used use) map[string][]string {
	if used.isZero() {
		return nil
	}
	return map[string][]string{byClassNamespace: {used.class.Namespace}, byGroup: {used.group().Name}}
}

// origins returns the keys by which a CAPI Cluster finds its Fleet Cluster.
func origins(cluster client.Object) []string {
	var result []string
	if name := cluster.GetAnnotations()[stamp.ImportedFromAnnotation]; name != "" {
		result = append(result, originName(name))
	}
	for _, owner := range cluster.GetOwnerReferences() {
		if !stamp.IsCluster(owner) {
			continue
		}
		result = append(result, originUID(owner.UID))
		if owner.Name != cluster.GetAnnotations()[stamp.ImportedFromAnnotation] {
			result = append(result, originName(owner.Name))
		}
	}
	if uid := cluster.GetAnnotations()[stamp.ImportedUIDAnnotation]; uid != "" {
		result = append(result, originUID(types.UID(uid)))
	}
	return result
}

func originName(name string) string  { return "name/" + name }
func originUID(uid types.UID) string { return "uid/" + string(uid) }

func trueIf(holds bool) []string {
	if holds {
		return []string{"true"}
	}
	return nil
}

func nonEmpty(value string) []string {
	if value == "" || value == "/" {
		return nil
	}
	return []string{value}
}
