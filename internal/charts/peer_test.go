package charts

import (
	"context"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// left is a HelmReleaseProxy as cluster-api-addon-provider-helm leaves it.
func left(proxy *addonsv1.HelmChartProxy, cluster, release string, annotations map[string]string) *addonsv1.HelmReleaseProxy {
	its := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{
		Namespace: proxy.Namespace, Name: "web-" + cluster + "-x7k2p", Annotations: annotations, Finalizers: []string{"helmreleaseproxy.addons.cluster.x-k8s.io"},
		Labels: map[string]string{clusterv1.ClusterNameLabel: cluster, addonsv1.HelmChartProxyLabel: proxy.Name},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: addonsv1.GroupVersion.String(), Kind: "HelmChartProxy", Name: proxy.Name, UID: proxy.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
		}},
	}}
	its.Spec.ClusterRef = corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Namespace: proxy.Namespace, Name: cluster}
	its.Spec.ReleaseName, its.Spec.ReleaseNamespace, its.Spec.ChartName, its.Spec.Values = release, "default", proxy.Spec.ChartName, "name: "+cluster
	its.Status.Status, its.Status.Revision = "deployed", 3
	return its
}

func (s *scene) mirror(name string) *addonsv1.HelmReleaseProxy {
	s.Helper()
	its := &addonsv1.HelmReleaseProxy{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: key.Namespace, Name: name}, its); err != nil {
		s.Fatal(err)
	}
	return its
}

// releases are the names of the releases that targets have of their own.
func (s *scene) releases() string {
	s.Helper()
	var names []string
	for _, target := range s.bundle().Spec.Targets {
		name := ""
		if target.Helm != nil {
			name = target.Helm.ReleaseName
		}
		names = append(names, target.ClusterName+"="+name)
	}
	return strings.Join(names, " ")
}

// Names that Helm has generated for cluster-api-addon-provider-helm stay, each on its Cluster, while
// spec.releaseName is empty: the annotation is-release-name-generated says so, there and here.
func TestGeneratedName(t *testing.T) {
	generated := map[string]string{addonsv1.ReleaseNameGeneratedAnnotation: "true"}
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.Version = "7.0.0" // Nothing can be written at first.
	s.create(proxy)
	s.create(left(proxy, "one", "web-1716000000", generated))
	s.create(left(proxy, "two", "web-1716000001", nil))
	s.looks()
	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "1.0.0", 2 })
	s.looks()
	expect(t, "names", s.releases(), "fleet-one=web-1716000000 fleet-three= fleet-two=")
	expect(t, "root", s.bundle().Spec.Helm.ReleaseName, "web")
	mirror := s.mirror("web-one-x7k2p")
	expect(t, "spec.releaseName", mirror.Spec.ReleaseName, "web-1716000000")
	expect(t, "values", mirror.Spec.Values, "")
	expect(t, "finalizers", len(mirror.Finalizers), 0)
	expect(t, "annotations", mirror.Annotations, generated)
	expect(t, "of one that is named here", s.mirror("web-three").Annotations, generated)
	expect(t, "its name", s.mirror("web-three").Spec.ReleaseName, "web")

	// The HelmReleaseProxy plays no part any more.
	s.change(mirror, func() { mirror.Spec.ReleaseName = "web-1716009999" })
	s.looks()
	expect(t, "names", s.releases(), "fleet-one=web-1716000000 fleet-three= fleet-two=")
	expect(t, "spec.releaseName", s.mirror("web-one-x7k2p").Spec.ReleaseName, "web-1716000000")

	s.change(proxy, func() { proxy.Spec.ReleaseName, proxy.Generation = "named", 3 })
	s.looks()
	var bundles fleetv1.BundleList
	if err := s.api.List(context.Background(), &bundles); err != nil || len(bundles.Items) != 1 {
		t.Fatalf("%d Bundles: %v", len(bundles.Items), err)
	}
	for _, target := range bundles.Items[0].Spec.Targets {
		if target.Helm.ReleaseName != "" {
			t.Errorf("%s has %s", target.ClusterName, target.Helm.ReleaseName)
		}
	}
}

// A HelmReleaseProxy does not have just any release overwritten.
func TestForgedName(t *testing.T) {
	for _, name := range []string{"cilium", "cilium-1716000000", "web-17160000001", "web-x-1716000000", "web"} {
		s := newScene(t)
		proxy := s.proxy()
		s.create(proxy)
		s.create(left(proxy, "one", name, map[string]string{addonsv1.ReleaseNameGeneratedAnnotation: "true"}))
		s.looks()
		expect(t, name, s.releases(), "fleet-one= fleet-three= fleet-two=")
	}
	if !plan.IsGeneratedOf("team/web.server", "web-1716000000") {
		t.Error("a chart in a folder, with a dot")
	}
}

// What cluster-api-addon-provider-helm has installed once, which release-successfully-installed
// says, is not touched; what it has not is installed.
func TestInstalledByCAAPH(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.ReconcileStrategy, proxy.Spec.ReleaseName = addonsv1.ReconcileStrategyInstallOnce, "web"
	s.create(proxy)
	s.create(left(proxy, "one", "web", map[string]string{addonsv1.ReleaseInstalledAnnotation: "true"}))
	s.create(left(proxy, "two", "web", nil))
	s.looks()
	s.restart()
	s.looks()
	var bundles fleetv1.BundleList
	if err := s.api.List(context.Background(), &bundles); err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, bundle := range bundles.Items {
		targets = append(targets, bundle.Spec.Targets[0].ClusterName)
	}
	expect(t, "targets", strings.Join(targets, " "), "fleet-three fleet-two")
	its := s.mirror("web-one-x7k2p")
	expect(t, "status", its.Status.Status, "deployed")
	expect(t, "revision", its.Status.Revision, 3)
	expect(t, "conditions", its.Status.Conditions[0].Reason, "Ready")

	first := bundles.Items[0]
	s.create(deployment(&first, first.Spec.Targets[0].ClusterName))
	s.looks()
	expect(t, "one that was installed here", s.mirror("web-three").Annotations, map[string]string{addonsv1.ReleaseInstalledAnnotation: "true"})
}
