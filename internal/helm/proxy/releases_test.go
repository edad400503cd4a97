package proxy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
)

var cluster = plan.Key{Namespace: "team", Name: "one"}

func proxyNamed(name string) *addonsv1.HelmChartProxy {
	of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: "its"}}
	of.Spec.ChartName, of.Spec.RepoURL, of.Spec.Version = "web", "https://charts.example.com", "1.x"
	of.Spec.ReleaseNamespace, of.Spec.ReleaseName = "apps", "front"
	of.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyContinuous
	of.Spec.Options.Wait = true
	of.Spec.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "repository"}, Key: "config.json"}
	of.Spec.TLSConfig = &addonsv1.TLSConfig{InsecureSkipTLSVerify: true}
	return of
}

func inputsOf(version string) *inputs.Inputs {
	return &inputs.Inputs{Chart: plan.Chart{Version: version}}
}

// A HelmReleaseProxy describes its release as in CAAPH, with the exact version.
func TestWantedRelease(t *testing.T) {
	of := proxyNamed("web")
	got := wantedRelease(of, inputsOf("1.2.3"), cluster, nil)
	want := addonsv1.HelmReleaseProxySpec{
		ClusterRef: corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Namespace: "team", Name: "one"},
		ChartName:  "web", RepoURL: "https://charts.example.com", Version: "1.2.3", ReleaseName: "front", ReleaseNamespace: "apps",
		ReconcileStrategy: addonsv1.ReconcileStrategyContinuous, Options: plan.StoredOptions(of.Spec.Options),
		Credentials: of.Spec.Credentials, TLSConfig: of.Spec.TLSConfig,
	}
	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Error(diff)
	}
	if got.Labels[clusterv1.ClusterNameLabel] != "one" || got.Labels[addonsv1.HelmChartProxyLabel] != "web" {
		t.Errorf("labels %v", got.Labels)
	}
	if !metav1.IsControlledBy(got, of) || got.Annotations[addonsv1.ReleaseNameGeneratedAnnotation] != "" {
		t.Errorf("owners %v, annotations %v", got.OwnerReferences, got.Annotations)
	}
	if again := wantedRelease(of, inputsOf(""), cluster, got); again.Spec.Version != "1.2.3" {
		t.Errorf("version %q while the chart is not known", again.Spec.Version)
	}
}

// A release keeps a name that Helm generated for CAAPH, if the name fits the chart.
func TestGeneratedNames(t *testing.T) {
	of := proxyNamed("front")
	of.Spec.ReleaseName = ""
	for name, want := range map[string]string{"web-1234567890": "web-1234567890", "victim": "front", "other-1234567890": "front"} {
		have := wantedRelease(of, inputsOf("1.2.3"), cluster, nil)
		have.Spec.ReleaseName = name
		if got := wantedRelease(of, inputsOf("1.2.3"), cluster, have); got.Spec.ReleaseName != want || got.Annotations[addonsv1.ReleaseNameGeneratedAnnotation] != "true" {
			t.Errorf("%s: release %q, annotations %v", name, got.Spec.ReleaseName, got.Annotations)
		}
		if is := IsOutdated(of, have); is != (name != want) {
			t.Errorf("%s is outdated: %t", name, is)
		}
	}
}

// A release of another name or namespace is uninstalled before the new one is installed. The shard of its
// Bundle does not matter.
func TestIsOutdated(t *testing.T) {
	of := proxyNamed("web")
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxy, *addonsv1.HelmReleaseProxy)
		want   bool
	}{
		"nothing":       {func(*addonsv1.HelmChartProxy, *addonsv1.HelmReleaseProxy) {}, false},
		"the name":      {func(of *addonsv1.HelmChartProxy, _ *addonsv1.HelmReleaseProxy) { of.Spec.ReleaseName = "other" }, true},
		"the namespace": {func(of *addonsv1.HelmChartProxy, _ *addonsv1.HelmReleaseProxy) { of.Spec.ReleaseNamespace = "other" }, true},
		"the version":   {func(of *addonsv1.HelmChartProxy, _ *addonsv1.HelmReleaseProxy) { of.Spec.Version = "2.x" }, false},
		"a late shard": {func(of *addonsv1.HelmChartProxy, its *addonsv1.HelmReleaseProxy) {
			its.Annotations[plan.BundleAnnotation] = plan.BundleName(of, cluster, 400)
		}, false},
		"someone else's Bundle": {func(_ *addonsv1.HelmChartProxy, its *addonsv1.HelmReleaseProxy) {
			its.Annotations[plan.BundleAnnotation] = "hcp-victim"
		}, true},
	} {
		its, changed := wantedRelease(of, inputsOf("1.2.3"), cluster, nil), of.DeepCopy()
		its.Annotations[plan.BundleAnnotation] = plan.BundleName(of, cluster, 0)
		if test.change(changed, its); IsOutdated(changed, its) != test.want {
			t.Errorf("%s: %t, want %t", name, !test.want, test.want)
		}
	}
}

// A forged HelmReleaseProxy does not make a HelmChartProxy deploy to another namespace.
func TestConcerns(t *testing.T) {
	of := proxyNamed("web")
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxy, *addonsv1.HelmReleaseProxy)
		want   bool
	}{
		"its own":                      {func(*addonsv1.HelmChartProxy, *addonsv1.HelmReleaseProxy) {}, true},
		"of an earlier HelmChartProxy": {func(of *addonsv1.HelmChartProxy, _ *addonsv1.HelmReleaseProxy) { of.UID = "another" }, false},
		"no controller's": {func(_ *addonsv1.HelmChartProxy, its *addonsv1.HelmReleaseProxy) {
			its.OwnerReferences[0].Controller = ptr.To(false)
		}, false},
		"in another namespace": {func(_ *addonsv1.HelmChartProxy, its *addonsv1.HelmReleaseProxy) { its.Namespace = "other" }, false},
		"for a Cluster of another namespace": {func(_ *addonsv1.HelmChartProxy, its *addonsv1.HelmReleaseProxy) {
			its.Spec.ClusterRef.Namespace = "other"
		}, false},
		"for a HelmChartProxy with namespaceSelector": {func(of *addonsv1.HelmChartProxy, its *addonsv1.HelmReleaseProxy) {
			its.Spec.ClusterRef.Namespace, of.Spec.NamespaceSelector = "other", &metav1.LabelSelector{}
		}, true},
	} {
		its, changed := wantedRelease(of, inputsOf("1.2.3"), cluster, nil), of.DeepCopy()
		if test.change(changed, its); Concerns(changed, its) != test.want {
			t.Errorf("%s: %t, want %t", name, !test.want, test.want)
		}
	}
}

// putReleases chooses the first Bundle with room; many layers of values leave less room.
func TestRoom(t *testing.T) {
	of := proxyNamed("web")
	for layers, room := range map[int]int{0: 250, 3: 250, 4: 125, 16: 50} {
		of.Spec.ValuesFrom = make([]addonsv1.ValuesReference, layers)
		first := plan.BundleName(of, cluster, 0)
		for count, want := range map[int]string{room - 1: first, room: plan.BundleName(of, cluster, 1)} {
			if got := plan.Shard(of, cluster, map[plan.Key]int{{Namespace: cluster.Namespace, Name: first}: count}); got != want {
				t.Errorf("%d layers, %d targets: Bundle %s, want %s", layers, count, got, want)
			}
		}
	}
}

// A release that is found to be installed between the read and the write of its spec keeps the spec with which it was installed, if its
// HelmChartProxy has become InstallOnce.
func TestInstalledBeforeTheSpec(t *testing.T) {
	r := newRolled(t, nil)
	read := r.state.releases[0].DeepCopy()
	read.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "a"}.String()
	if err := r.Update(t.Context(), read); err != nil {
		t.Fatal(err)
	}
	installed := read.DeepCopy()
	installed.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "a", Installed: true}.String()
	if err := r.Update(t.Context(), installed); err != nil {
		t.Fatal(err)
	}
	r.of.Spec.ReconcileStrategy, r.in.Chart.Version = addonsv1.ReconcileStrategyInstallOnce, "2.0.0"
	_, err := r.putRelease(t.Context(), r.of, r.in, plan.ClusterOf(read), read, nil)
	live := &addonsv1.HelmReleaseProxy{}
	if getErr := r.Get(t.Context(), client.ObjectKeyFromObject(read), live); getErr != nil {
		t.Fatal(getErr)
	}
	if !store.IsBehind(err) || live.Spec.Version != "" {
		t.Errorf("it got version %q (%v)", live.Spec.Version, err)
	}
}
