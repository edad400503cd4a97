package helm

import (
	"maps"
	"strings"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	program "github.com/muster-fleet/muster/internal/helm/store"
)

// isWhole expects that the cache keeps all parts of the objects that Muster and Fleet create for a
// HelmChartProxy: the program reads a cut object again before each write.
func isWhole(g Gomega, name string) {
	var bundles fleetv1.BundleList
	g.Expect(admin.List(ctx, &bundles, client.InNamespace(team))).To(Succeed())
	var all []client.Object
	for i := range bundles.Items {
		all = append(all, &bundles.Items[i])
	}
	seen := 0
	for _, object := range all {
		if !strings.HasPrefix(object.GetName(), "hcp-"+name) {
			continue
		}
		seen++
		before := maps.Clone(object.GetAnnotations())
		_, err := program.Trim(object)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(object.GetAnnotations()).To(Equal(before), "%T %s is cut in the cache", object, object.GetName())
	}
	g.Expect(seen).NotTo(BeZero())
}
