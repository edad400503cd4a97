package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/fetch"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/charts/repository"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// scene is a reconciler on a fake API server, whose objects it sees as its cache has them.
type scene struct {
	*testing.T
	*reconciler
	api    client.WithWatch
	charts *repository.Repository
	writes []string
	// puts are the Secrets of which an update was requested, even if it changed nothing.
	puts []string
	// fails says what cannot be created or deleted.
	fails func(client.Object) bool
	// patching sees patches, and may refuse them.
	patching func(client.Object, client.Patch) error
}

var errRefused = errors.New("refused by a test")

// bundleName is that of the Bundle for the HelmChartProxy of these tests.
var bundleName = plan.BundleName(&addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}, "team", "")

var key = types.NamespacedName{Namespace: "team", Name: "web"}

func newScene(t *testing.T) *scene {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t}
	note := func(verb string, object client.Object) { s.writes = append(s.writes, verb+" "+describe(object)) }
	s.api = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&addonsv1.HelmChartProxy{}, &addonsv1.HelmReleaseProxy{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				note("create", object)
				if s.fails != nil && s.fails(object) {
					return errRefused
				}
				return c.Create(ctx, object, options...)
			},
			Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
				if secret, ok := object.(*corev1.Secret); ok && len(options) > 0 {
					return s.replaces(ctx, c, secret, note)
				}
				return c.Update(ctx, object, options...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				note("patch", object)
				if s.patching != nil {
					if err := s.patching(object, patch); err != nil {
						return err
					}
				}
				return c.Patch(ctx, object, patch, options...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
				note("delete", object)
				if s.fails != nil && s.fails(object) {
					return errRefused
				}
				return s.delete(ctx, c, object, options)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, of string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
				note("patch "+of, object)
				return c.SubResource(of).Patch(ctx, object, patch, options...)
			},
		}).Build()
	s.charts = repository.New()
	t.Cleanup(s.charts.Close)
	for _, version := range []string{"1.0.0", "1.1.0"} {
		if err := s.charts.Publish("web", version, map[string]string{"a.yaml": "v: " + version}); err != nil {
			t.Fatal(err)
		}
	}
	s.restart()
	crd := sources.CRD()
	crd.Name, crd.Labels = proxyCRD, map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
	s.create(crd)
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: digestKeyName}, Data: map[string][]byte{"key": []byte("key")}})
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "repository"}, Data: map[string][]byte{
		"username": []byte(repository.Username), "password": []byte(repository.Password), "ca.crt": s.charts.CA,
	}})
	for _, name := range []string{"one", "two", "three"} {
		s.create(cluster(name))
		s.create(fleetCluster("team", name))
	}
	return s
}

// replaces replaces a Secret, as an API server, the shipped policy and the garbage collector do.
func (s *scene) replaces(ctx context.Context, c client.WithWatch, secret *corev1.Secret, note func(string, client.Object)) error {
	s.puts = append(s.puts, secret.Name)
	have := &corev1.Secret{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(secret), have); err != nil {
		return err
	}
	if have.Type != secret.Type || have.Labels[plan.ProxyLabel] == "" || have.Labels[stamp.ManagedByLabel] != stamp.ManagedBy {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, secret.Name, errors.New("denied request: "+refusesOthers))
	}
	owners := secret.OwnerReferences
	if equality.Semantic.DeepEqual(have.Data, secret.Data) && equality.Semantic.DeepEqual(have.OwnerReferences, owners) && cmp.Equal(have.Labels, secret.Labels) && cmp.Equal(have.Annotations, secret.Annotations) {
		return nil
	}
	note("update", secret)
	if s.fails != nil && s.fails(secret) {
		return errRefused
	}
	if len(owners) == 1 && owners[0].UID == neverUID(client.ObjectKeyFromObject(secret)) {
		return c.Delete(ctx, have)
	}
	return c.Update(ctx, secret)
}

// delete deletes what is there only if it is what was seen, as an API server does.
func (s *scene) delete(ctx context.Context, c client.WithWatch, object client.Object, all []client.DeleteOption) error {
	options := (&client.DeleteOptions{}).ApplyOptions(all)
	if options.Preconditions == nil || options.Preconditions.UID == nil {
		return c.Delete(ctx, object) // A test does.
	}
	there := object.DeepCopyObject().(client.Object)
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), there); err != nil {
		return err
	}
	if there.GetUID() != *options.Preconditions.UID {
		return apierrors.NewConflict(schema.GroupResource{Resource: describe(object)}, object.GetName(), errors.New("it is another"))
	}
	return c.Delete(ctx, object)
}

// restart begins anew, with nothing remembered.
func (s *scene) restart() {
	cached := trimmed{s.api}
	s.reconciler = &reconciler{
		Client: cached, Options: Options{ChartInterval: time.Minute}, live: s.api, settings: settings.NewReader(s.api), sources: nothing{},
		charts: fetch.New(time.Minute), recorder: events.NewFakeRecorder(100), now: time.Now, peer: newPeer(s.api), rendered: newMemory(), versions: newVersions(), large: newLarge(), traces: newTraces(time.Now()), digests: &digests{client: s.api, live: s.api, namespace: "muster-system"}, tally: newTally(), pace: newPace(),
	}
}

// trimmed reads objects as the cache has them.
type trimmed struct{ client.Client }

func (c trimmed) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, object); err != nil {
		return err
	}
	_, err := Trim(object)
	return err
}

func (c trimmed) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	kept := slices.DeleteFunc(options, func(option client.ListOption) bool { return option == client.UnsafeDisableDeepCopy })
	if err := c.Client.List(ctx, list, kept...); err != nil {
		return err
	}
	return meta.EachListItem(list, func(object runtime.Object) error {
		_, err := Trim(object)
		return err
	})
}

// nothing refers to nothing.
type nothing struct{}

func (nothing) Objects(_ context.Context, cluster *clusterv1.Cluster) (map[string]any, map[string]any, error) {
	if cluster.Annotations["unresolved"] != "" {
		return nil, nil, errors.New("spec.controlPlaneRef: not found")
	}
	return nil, nil, nil
}

func (nothing) Digest(_ context.Context, cluster *clusterv1.Cluster, digest io.Writer) bool {
	return cluster.Annotations["unresolved"] == ""
}

func cluster(name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID(name), Labels: map[string]string{"web": "yes"},
		Annotations: map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "fleet-" + name},
	}}
}

// fleetCluster is that of a Cluster, as the syncer makes it.
func fleetCluster(namespace, name string) *fleetv1.Cluster {
	return &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "fleet-" + name, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: types.UID(name)}},
	}}
}

func (s *scene) create(object client.Object) {
	s.Helper()
	if err := s.api.Create(context.Background(), object); err != nil {
		s.Fatal(err)
	}
	s.writes = nil
}

func (s *scene) change(object client.Object, change func()) {
	s.Helper()
	if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(object), object); err != nil {
		s.Fatal(err)
	}
	change()
	if err := s.api.Update(context.Background(), object); err != nil {
		s.Fatal(err)
	}
	s.writes = nil
}

// release has the Fleet Cluster of a Cluster released, as when the Cluster is moved.
func (s *scene) release(name string) {
	s.Helper()
	fleet := fleetCluster("team", name)
	s.change(fleet, func() {
		fleet.OwnerReferences, fleet.Annotations = nil, map[string]string{stamp.ReleasedAnnotation: "true", stamp.ImportedUIDAnnotation: name}
	})
}

// drop deletes an object.
func (s *scene) drop(object client.Object) {
	s.Helper()
	if err := s.api.Delete(s.Context(), object); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) proxy() *addonsv1.HelmChartProxy {
	its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "proxy", Generation: 1}}
	its.Spec.ClusterSelector = metav1.LabelSelector{MatchLabels: map[string]string{"web": "yes"}}
	its.Spec.RepoURL, its.Spec.ChartName, its.Spec.Version = s.charts.URL, "web", "1.0.0"
	its.Spec.ValuesTemplate = "name: {{ .Cluster.metadata.name }}"
	its.Spec.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "repository"}, Key: "config.json"}
	its.Spec.TLSConfig = &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: "repository"}}
	return its
}

// looks looks as often as somebody writes, and returns what was written.
func (s *scene) looks() []string {
	s.Helper()
	var all []string
	for range 10 {
		s.writes = nil
		if _, err := s.Reconcile(context.Background(), ctrl.Request{NamespacedName: key}); err != nil {
			s.Fatal(err)
		}
		if len(s.writes) == 0 {
			return all
		}
		all = append(all, s.writes...)
	}
	s.Fatalf("it goes on writing: %v", s.writes)
	return nil
}

func (s *scene) bundle() *fleetv1.Bundle {
	s.Helper()
	its := &fleetv1.Bundle{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: bundleName}, its); err != nil {
		s.Fatal(err)
	}
	return its
}

func (s *scene) targets() string {
	s.Helper()
	var names []string
	for _, target := range s.bundle().Spec.Targets {
		names = append(names, target.ClusterName)
	}
	return strings.Join(names, " ")
}

func (s *scene) condition(of string) string {
	s.Helper()
	its := &addonsv1.HelmChartProxy{}
	if err := s.api.Get(context.Background(), key, its); err != nil {
		s.Fatal(err)
	}
	condition := meta.FindStatusCondition(its.Status.Conditions, of)
	return fmt.Sprintf("%s %s %s", condition.Status, condition.Reason, condition.Message)
}

func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestLife(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	written := s.looks()
	expect(t, "values and Bundle", written[:4], []string{
		"create ConfigMap team/hcp-web.for.fleet-one", "create ConfigMap team/hcp-web.for.fleet-three", "create ConfigMap team/hcp-web.for.fleet-two",
		"create Bundle team/" + bundleName,
	})
	expect(t, "all writes: values, Bundle, mirrors with status, own status, and when Fleet has taken it over", len(written), 3+1+2*3+2)
	expect(t, "targets", s.targets(), "fleet-one fleet-three fleet-two")

	s.restart()
	expect(t, "after a restart", s.looks(), []string(nil))
	paths, _ := s.charts.Asked()
	expect(t, "downloads", paths, []string{"/index.yaml", "/web-1.0.0.tgz"})

	one := cluster("one")
	s.change(one, func() { one.Labels["other"] = "x" })
	expect(t, "a change that does not reach the values", s.looks(), []string(nil))

	proxy := s.proxy()
	s.change(proxy, func() {
		proxy.Spec.ValuesTemplate = `name: {{ .Cluster.metadata.labels.other | default "none" }}`
		proxy.Generation = 2
	})
	expect(t, "other values: elsewhere, and then nothing is left", s.writesValues(), []string{
		"create ConfigMap team/hcp-web.for.fleet-one.1", "create ConfigMap team/hcp-web.for.fleet-three.1", "create ConfigMap team/hcp-web.for.fleet-two.1",
		"delete ConfigMap team/hcp-web.for.fleet-one", "delete ConfigMap team/hcp-web.for.fleet-three", "delete ConfigMap team/hcp-web.for.fleet-two",
	})
	s.change(one, func() { one.Labels["other"] = "y" })
	expect(t, "a change of one Cluster", s.looks(), []string{
		"create ConfigMap team/hcp-web.for.fleet-one", "patch Bundle team/" + bundleName, "patch status HelmChartProxy team/web",
		"delete ConfigMap team/hcp-web.for.fleet-one.1", "patch status HelmChartProxy team/web",
	})

	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "1.1.0", 3 })
	expect(t, "another version", s.looks(), []string{
		"patch Bundle team/" + bundleName,
		"patch HelmReleaseProxy team/web-one", "patch HelmReleaseProxy team/web-three", "patch HelmReleaseProxy team/web-two",
		"patch status HelmChartProxy team/web", "patch status HelmChartProxy team/web",
	})
	content, err := json.Marshal(s.bundle().Spec.Resources)
	if err != nil || !strings.Contains(string(content), "v: 1.1.0") {
		t.Errorf("the Bundle holds %s", content)
	}

	s.change(one, func() { delete(one.Labels, "web") })
	expect(t, "deselected", s.looks(), []string{
		"patch Bundle team/" + bundleName, "delete HelmReleaseProxy team/web-one", "patch status HelmChartProxy team/web",
		"delete ConfigMap team/hcp-web.for.fleet-one", "patch status HelmChartProxy team/web",
	})
	expect(t, "targets", s.targets(), "fleet-three fleet-two")

	s.drop(proxy)
	s.restart()
	expect(t, "gone while nobody looked", s.looks(), []string{
		"delete Bundle team/" + bundleName, "delete ConfigMap team/hcp-web.for.fleet-three.1", "delete ConfigMap team/hcp-web.for.fleet-two.1",
	})
}

// Whatever Fleet and Helm say of a release, the status can be written.
func TestLongMessages(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	its := deployment(s.bundle(), "fleet-one")
	its.Status.Conditions = []genericcondition.GenericCondition{{
		Type: fleetv1.BundleDeploymentConditionDeployed, Status: corev1.ConditionFalse, Message: "\x1b[31mno" + strings.Repeat("x", 40<<10),
	}}
	s.create(its)
	s.looks()
	mirror := &addonsv1.HelmReleaseProxy{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: "web-one"}, mirror); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{addonsv1.ReadyCondition, addonsv1.HelmReleaseReadyCondition} {
		its := meta.FindStatusCondition(mirror.Status.Conditions, of)
		if !strings.HasPrefix(its.Message, `\x1b[31mnoxx`) || len(its.Message) > message.Condition {
			t.Errorf("%s: %d bytes: %.20s", of, len(its.Message), its.Message)
		}
	}
}

// Somebody edits what was made: it is put back.
func TestEdited(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	want := s.bundle()
	for name, edit := range map[string]func(*fleetv1.Bundle){
		"targets": func(b *fleetv1.Bundle) { b.Spec.Targets = b.Spec.Targets[1:] },
		"options": func(b *fleetv1.Bundle) { b.Spec.Helm.ReleaseName, b.Spec.ServiceAccount = "other", "admin" },
		"chart":   func(b *fleetv1.Bundle) { b.Spec.Resources[0].Content = "evil" },
		"more": func(b *fleetv1.Bundle) {
			b.Spec.Resources = append(b.Spec.Resources, fleetv1.BundleResource{Name: "templates/evil.yaml"})
		},
		"owner":     func(b *fleetv1.Bundle) { b.OwnerReferences = nil },
		"chart for": func(b *fleetv1.Bundle) { b.Annotations[plan.VersionAnnotation] = "9" },
	} {
		bundle := s.bundle()
		s.change(bundle, func() { edit(bundle) })
		written := slices.DeleteFunc(s.looks(), func(its string) bool { return its == "patch status HelmChartProxy team/web" })
		expect(t, name, written, []string{"patch Bundle team/" + bundleName})
		got := s.bundle()
		got.ResourceVersion = want.ResourceVersion
		expect(t, name, got, want)
	}
	values := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hcp-web.for.fleet-one"}}
	s.change(values, func() { values.Data[plan.ValuesKey] = "evil: yes" })
	expect(t, "values", s.writesValues(), []string{"create ConfigMap team/hcp-web.for.fleet-one.1", "delete ConfigMap team/hcp-web.for.fleet-one"})
}

// What is wrong with one Cluster holds up no other.
func TestOneFails(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.ValuesTemplate = `name: {{ index .Cluster.metadata.annotations "fleet.addons.cluster.x-k8s.io/owned-by" }}{{ if eq .Cluster.metadata.name "two" }}{{ fail "sesame" }}{{ end }}`
	s.create(proxy)
	three := cluster("three")
	s.change(three, func() { delete(three.Annotations, stamp.ClusterNameAnnotation) })
	s.looks()
	expect(t, "targets", s.targets(), "fleet-one")
	expect(t, "condition", s.condition(addonsv1.HelmReleaseProxySpecsUpToDateCondition),
		`False GetClusterFailed team/three: the Cluster is not in Fleet; see its condition FleetImported; team/two: valuesTemplate:1:131: executing "valuesTemplate" at <fail "sesame">: error calling fail`)

	// One that worked and fails now keeps what it has.
	one := cluster("one")
	s.change(one, func() { one.Annotations["unresolved"] = "yes" })
	expect(t, "kept", s.looks(), []string{"patch status HelmReleaseProxy team/web-one", "patch status HelmChartProxy team/web"})
	expect(t, "targets", s.targets(), "fleet-one")
}

// What cannot be downloaded or read changes nothing.
func TestHeld(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	proxy := s.proxy()
	s.change(proxy, func() { proxy.Spec.Version, proxy.Spec.ValuesTemplate, proxy.Generation = "7.0.0", "other: 1", 2 })
	expect(t, "no such version", s.looks(), []string{
		"patch HelmReleaseProxy team/web-one", "patch status HelmReleaseProxy team/web-one",
		"patch HelmReleaseProxy team/web-three", "patch status HelmReleaseProxy team/web-three",
		"patch HelmReleaseProxy team/web-two", "patch status HelmReleaseProxy team/web-two",
		"patch status HelmChartProxy team/web",
	})
	expect(t, "condition", s.condition("Ready"), fmt.Sprintf(`False HelmReleaseProxyCreationFailed repository %s has no version "7.0.0" of chart "web"`, s.charts.URL))

	s.change(proxy, func() {
		proxy.Spec.Version, proxy.Generation = "1.0.0", 3
		proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: "values"}}
	})
	s.looks()
	expect(t, "condition", s.condition("Ready"), `False ValueParsingFailed spec.valuesFrom[0]: there is no Secret "values" with the key "values.yaml"`)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "values"}, Data: map[string][]byte{"values.yaml": []byte("password: sesame")}}
	s.create(secret)
	written := s.looks()
	if !slices.Contains(written, "create Secret team/hcp-web.for-all") || !slices.Contains(written, "patch Bundle team/"+bundleName) {
		t.Errorf("written: %v", written)
	}
	s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: other") })
	expect(t, "the Secret changes: elsewhere, and what was secret is overwritten", s.writesValues(), []string{"create Secret team/hcp-web.for-all.1", "update Secret team/hcp-web.for-all"})
	s.change(proxy, func() { proxy.Spec.ValuesFrom = nil })
	if written := s.looks(); !slices.Contains(written, "update Secret team/hcp-web.for-all.1") {
		t.Errorf("written: %v", written)
	}
}

// deployment is what Fleet makes of a Bundle for a Fleet Cluster, once it is ready.
func deployment(bundle *fleetv1.Bundle, fleetCluster string) *fleetv1.BundleDeployment {
	its := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: stamp.FleetNamespace(bundle.Namespace, fleetCluster), Name: bundle.Name, Labels: maps.Clone(bundle.Labels),
	}}
	its.Labels[fleetv1.BundleLabel], its.Labels[fleetv1.BundleNamespaceLabel] = bundle.Name, bundle.Namespace
	its.Labels[fleetv1.ClusterLabel], its.Labels[fleetv1.ClusterNamespaceLabel] = fleetCluster, bundle.Namespace
	its.Spec.DeploymentID, its.Spec.StagedDeploymentID = "a", "a"
	its.Status.AppliedDeploymentID, its.Status.Ready, its.Status.NonModified = "a", true, true
	return its
}

// What is installed once is never touched again: not by another chart, not by other
// values, not by an edit of what is there.
func TestInstallOnce(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce
	s.create(proxy)
	s.looks()
	var bundles fleetv1.BundleList
	if err := s.api.List(context.Background(), &bundles); err != nil || len(bundles.Items) != 3 {
		t.Fatalf("%d Bundles: %v", len(bundles.Items), err)
	}
	first := &bundles.Items[0]
	expect(t, "keeps resources", first.Spec.KeepResources, true)
	s.create(deployment(first, first.Spec.Targets[0].ClusterName))
	written := s.looks()
	expect(t, "installed", written[0], "patch Bundle team/"+first.Name)
	if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(first), first); err != nil {
		t.Fatal(err)
	}
	expect(t, "paused", first.Spec.Paused, true)

	s.change(proxy, func() {
		proxy.Spec.Version, proxy.Spec.ValuesTemplate, proxy.Generation = "1.1.0", "other: {{ .Cluster.metadata.name }}", 2
	})
	for _, write := range s.looks() {
		if strings.HasSuffix(write, first.Name) || strings.HasSuffix(write, "for."+first.Spec.Targets[0].ClusterName) {
			t.Errorf("%s, after it was installed", write)
		}
	}
}

// A Cluster that is paused keeps what it has, and gets nothing new.
func TestPausedCluster(t *testing.T) {
	s := newScene(t)
	two := cluster("two")
	s.change(two, func() { two.Spec.Paused = ptr.To(true) })
	s.create(s.proxy())
	s.looks()
	expect(t, "targets", s.targets(), "fleet-one fleet-three")
	one := cluster("one")
	s.change(one, func() { one.Spec.Paused = ptr.To(true) })
	proxy := s.proxy()
	s.change(proxy, func() { proxy.Spec.ValuesTemplate, proxy.Generation = "other: {{ .Cluster.metadata.name }}", 2 })
	for _, write := range s.looks() {
		if strings.HasSuffix(write, "for.fleet-one") {
			t.Errorf("%s, of a paused Cluster", write)
		}
	}
	expect(t, "targets", s.targets(), "fleet-one fleet-three")
	s.change(one, func() { one.Spec.Paused = nil })
	expect(t, "goes on", s.writesValues(), []string{"create ConfigMap team/hcp-web.for.fleet-one.1", "delete ConfigMap team/hcp-web.for.fleet-one"})
}

func TestPaused(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	s.create(proxy)
	expect(t, "paused", s.looks(), []string(nil))
	s.change(proxy, func() { proxy.Annotations = nil })
	if len(s.looks()) == 0 {
		t.Error("nothing is written once it goes on")
	}
}

// Where the CRD is not Muster's, HelmChartProxies are somebody else's: the condition LeftAlone says
// so, once, until it is Muster's again.
func TestNotOurs(t *testing.T) {
	s := newScene(t)
	crd := sources.CRD()
	crd.Name = proxyCRD
	s.change(crd, func() { crd.Labels = nil })
	proxy := s.proxy()
	proxy.Status.Conditions = []metav1.Condition{{Type: addonsv1.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Theirs"}}
	s.create(proxy)
	expect(t, "not ours", s.looks(), []string{"patch status HelmChartProxy team/web"})
	expect(t, "said", s.condition(addonsv1.LeftAloneCondition),
		"True AnotherController Muster does not carry it out: CustomResourceDefinition helmchartproxies.addons.cluster.x-k8s.io has no label app.kubernetes.io/managed-by=muster; stop cluster-api-addon-provider-helm and apply manifests/helm to have Muster carry it out")
	expect(t, "what is theirs", s.condition(addonsv1.ReadyCondition), "True Theirs ")
	s.change(crd, func() { crd.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy} })
	s.looks()
	if err := s.api.Get(context.Background(), key, proxy); err != nil || meta.FindStatusCondition(proxy.Status.Conditions, addonsv1.LeftAloneCondition) != nil {
		t.Errorf("it is ours, and still said to be left alone: %v %v", proxy.Status.Conditions, err)
	}
}

// cluster-api-addon-provider-helm leaves finalizers, and puts them back if it runs.
func TestPeer(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Finalizers = []string{"other.example.com/keep", peersProxyFinalizer}
	s.create(proxy)
	written := s.looks()
	expect(t, "first", written[0], "patch HelmChartProxy team/web")
	if !slices.Contains(written, "create Bundle team/"+bundleName) {
		t.Errorf("written: %v", written)
	}
	if err := s.api.Get(context.Background(), key, proxy); err != nil {
		t.Fatal(err)
	}
	expect(t, "finalizers", proxy.Finalizers, []string{"other.example.com/keep"})
	s.change(proxy, func() { proxy.Finalizers = append(proxy.Finalizers, peersProxyFinalizer) })
	if _, err := s.Reconcile(context.Background(), ctrl.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	expect(t, "it is back", s.condition("Ready"), "False AnotherController cluster-api-addon-provider-helm runs and carries it out, too; stop it, and remove its finalizer helmchartproxy.addons.cluster.x-k8s.io")
	for _, write := range s.writes {
		if write != "patch status HelmChartProxy team/web" {
			t.Errorf("%s, of what somebody else carries out", write)
		}
	}
	s.drop(proxy)
	s.writes = nil
	expect(t, "deleted while it is back", s.looks(), []string(nil))
	expect(t, "remembered", len(s.peer.released), 1)
	s.change(proxy, func() { proxy.Finalizers = nil })
	s.looks()
	expect(t, "remembered of one that is gone", len(s.peer.released), 0)
}

// The name of one HelmChartProxy may be what that of another is shortened to.
func TestShortenedNamesake(t *testing.T) {
	s := newScene(t)
	long := s.proxy()
	long.Name = strings.Repeat("web-", 30)
	namesake := plan.Labels(client.ObjectKeyFromObject(long))[plan.ProxyLabel]
	s.create(long)
	if _, err := s.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(long)}); err != nil {
		t.Fatal(err)
	}
	s.writes = nil
	if _, err := s.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: namesake}}); err != nil {
		t.Fatal(err)
	}
	expect(t, "what is somebody else's", s.writes, []string(nil))
}
