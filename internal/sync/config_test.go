package sync

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// A mapping that the flag --namespace keeps the syncer from reading is reported, and fails nothing else. The Fleet
// Clusters of a workspace are listed once, however many namespaces are open to it.
func TestBundleMappingsThatAreNotRead(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	namespaces := map[string]cache.Config{"one": {}, "two": {}, "ws": {}}
	objects := []client.Object{&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "a"}}}
	asked := []types.NamespacedName{{Namespace: "one", Name: "ws"}, {Namespace: "two", Name: "ws"}, {Namespace: "other", Name: "ws"}, {Namespace: "one", Name: "elsewhere"}}
	for _, key := range asked {
		objects = append(objects, desired.Mapping(key.Namespace, key.Name))
	}
	lists, unknown := 0, errors.New("unknown namespace for the cache")
	r := &configReconciler{namespaces: namespaces, Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if _, found := namespaces[key.Namespace]; !found {
				return unknown
			}
			return c.Get(ctx, key, object, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			lists++
			if _, found := namespaces[(&client.ListOptions{}).ApplyOptions(options).Namespace]; !found {
				return unknown
			}
			return c.List(ctx, list, options...)
		},
	}).Build()}
	got, err := r.mappings(t.Context(), asked)
	want := []addonsv1.BundleMappingStatus{{Namespace: "one", Workspace: "ws", Clusters: 1}, {Namespace: "two", Workspace: "ws", Clusters: 1}}
	if err != nil || !slices.Equal(got, want) || lists != 1 {
		t.Errorf("got %v, %v, in %d lists", got, err, lists)
	}

	s := &configState{InForce: &settings.InForce{Config: &addonsv1.FleetAddonConfig{}}, ineffective: r.unread(asked)}
	status := s.status(time.Now())
	for _, condition := range status.Conditions {
		if condition.Type == addonsv1.ConfigValidCondition && (condition.Status != metav1.ConditionFalse || condition.Message !=
			"spec.rancher.bundleMappings: the flag --namespace of the syncer leaves out the namespace or the workspace of other/ws, one/elsewhere") {
			t.Errorf("got %+v", condition)
		}
	}
}

// A FleetAddonConfig that is gone for more than a minute is reported, and one that is replaced is not.
func TestMissingConfigIsReported(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "muster"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "muster", Name: settings.RecordName}, Data: map[string]string{"uid": "1"}},
	).Build()
	now, recorder := time.Now(), events.NewFakeRecorder(10)
	r := &configReconciler{
		Client: api, settings: settings.NewReader(api).WithRecord(api, api, "muster"), recorder: recorder, now: func() time.Time { return now },
	}
	reconcile := func(after, again time.Duration, isReported bool) {
		t.Helper()
		now = now.Add(after)
		result, err := r.Reconcile(t.Context(), ctrl.Request{})
		if err != nil || result.RequeueAfter != again {
			t.Errorf("again after %s (%v), want %s", result.RequeueAfter, err, again)
		}
		var event string
		select {
		case event = <-recorder.Events:
		default:
		}
		if isReported != (event != "") || isReported && (!strings.Contains(event, "FleetAddonConfigMissing") || !strings.Contains(event, "spec: {}") || !strings.Contains(event, "muster/muster-config")) {
			t.Errorf("the event is %q", event)
		}
		families, err := ctrlmetrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "muster_config_missing" && (family.GetMetric()[0].GetGauge().GetValue() == 1) != isReported {
				t.Errorf("the metric is %v", family)
			}
		}
	}
	reconcile(0, time.Minute, false)
	reconcile(20*time.Second, 40*time.Second, false)
	reconcile(40*time.Second, time.Hour, true)
	config := &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: addonsv1.FleetAddonConfigName, Labels: map[string]string{"a": "b"}}}
	r.watchFilter = "none" // Its status is not written.
	if err := api.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	reconcile(time.Hour, settings.UnwatchedInterval, false)
	if err := api.Delete(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	reconcile(0, time.Minute, false)
}

// configCache has the informer of FleetAddonConfigs, and none of others that ever sees an object.
type configCache struct {
	informertest.FakeInformers
	configs toolscache.SharedIndexInformer
}

func (c *configCache) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	if _, isConfig := object.(*addonsv1.FleetAddonConfig); isConfig {
		return c.configs, nil
	}
	return controllertest.NewFakeInformer(controllertest.Synced), nil
}

// The reconciler reads a status again that differs from the one it saw in the cache: another writer may have written it, or the
// reconciler itself before its last write.
func TestWrittenStatusIsReadAgain(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	config := &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: addonsv1.FleetAddonConfigName}}
	written, reads := cachetesting.NewFakeControllerSource(), make(chan struct{}, 10)
	written.Add(config)
	configs := toolscache.NewSharedIndexInformer(written, config, 0, nil)
	api := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			reads <- struct{}{}
			return apierrors.NewNotFound(schema.GroupResource{}, "")
		},
	}).Build()
	mgr, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return api.RESTMapper(), nil },
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return &configCache{configs: configs}, nil },
		NewClient:      func(*rest.Config, client.Options) (client.Client, error) { return api, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &configReconciler{Client: api, settings: settings.NewReader(api), now: time.Now}
	if err := r.setUp(mgr); err != nil {
		t.Fatal(err)
	}
	go configs.Run(t.Context().Done())
	go func() { _ = mgr.Start(t.Context()) }() // It returns the error of the context.
	within := time.After(20 * time.Second)
	select {
	case <-reads:
	case <-within:
		t.Fatal("it is not read at the start")
	}
	config = config.DeepCopy()
	config.Status.Clusters = &addonsv1.ClusterCounts{Imported: 1}
	written.Modify(config)
	select {
	case <-reads:
	case <-within:
		t.Error("it is not read again")
	}
}

// The counts are those of the Clusters in the cache. While Cluster API is not served, they are as last reported.
func TestStatusCounts(t *testing.T) {
	config := &addonsv1.FleetAddonConfig{}
	for i, test := range []struct {
		counts map[state]int
		want   addonsv1.ClusterCounts
		reason string
	}{
		{map[state]int{stateImported: 5, statePending: 4, stateConflicted: 2, stateFailed: 1, stateUnselected: 9}, addonsv1.ClusterCounts{Selected: 12, Imported: 5, Pending: 4, Conflicted: 2}, "ClustersStuck"},
		{nil, addonsv1.ClusterCounts{Selected: 12, Imported: 5, Pending: 4, Conflicted: 2}, "ClustersStuck"},
		{map[state]int{}, addonsv1.ClusterCounts{}, "NoneStuck"},
	} {
		config.Status = (&configState{InForce: &settings.InForce{Config: config}, counts: test.counts}).status(time.Now())
		reported := meta.FindStatusCondition(config.Status.Conditions, addonsv1.ClustersImportedCondition)
		if config.Status.Clusters == nil || *config.Status.Clusters != test.want || reported.Reason != test.reason {
			t.Errorf("%d: %+v, %s; want %+v, %s", i, config.Status.Clusters, reported.Reason, test.want, test.reason)
		}
	}
}

// A CRD of Muster's with a lower revision than the program's, or none, is named in the message of Ready and APIsAvailable.
// Their status stays, as does a report of another condition. Another program's CRD counts only if it is the FleetAddonConfig's.
func TestOlderCRDsAreNamed(t *testing.T) {
	crd := func(name, revision, managedBy string) client.Object {
		crd := references.CRD()
		crd.SetName(name)
		crd.SetLabels(map[string]string{stamp.ManagedByLabel: managedBy})
		if revision != "" {
			crd.SetAnnotations(map[string]string{addonsv1.SchemaRevisionAnnotation: revision})
		}
		return crd
	}
	ofHelm := func(namespace string) client.Object {
		its := crd(stamp.HelmCRD, "", "Helm")
		its.SetAnnotations(map[string]string{"meta.helm.sh/release-namespace": namespace})
		return its
	}
	const ours, older = "muster", "older than the syncer: CRD "
	for name, test := range map[string]struct {
		crds   []client.Object
		counts map[state]int
		want   string // what the message of APIsAvailable begins with
	}{
		"current":                {crds: []client.Object{crd(configCRD, strconv.Itoa(addonsv1.SchemaRevision), "")}},
		"newer":                  {crds: []client.Object{crd(configCRD, strconv.Itoa(addonsv1.SchemaRevision+1), "")}},
		"none":                   {},
		"of an earlier Muster":   {crds: []client.Object{crd(configCRD, "", "")}, want: older + configCRD + ";"},
		"older":                  {crds: []client.Object{crd(configCRD, strconv.Itoa(addonsv1.SchemaRevision-1), "")}, want: older + configCRD + ";"},
		"not a number":           {crds: []client.Object{crd(configCRD, "new", "")}, want: older + configCRD + ";"},
		"older, Clusters stuck":  {crds: []client.Object{crd(configCRD, "", "")}, counts: map[state]int{stateFailed: 1}, want: older + configCRD + ";"},
		"of HelmChartProxies":    {crds: []client.Object{crd(stamp.HelmCRD, "", ours)}, want: older + stamp.HelmCRD + ";"},
		"installed by the chart": {crds: []client.Object{ofHelm("muster-system")}, want: older + stamp.HelmCRD + ";"},
		"of CAAPH's own chart":   {crds: []client.Object{ofHelm("caaph-system")}},
		"of CAAPH":               {crds: []client.Object{crd(stamp.HelmCRD, "", "")}},
		"two":                    {crds: []client.Object{crd(configCRD, "", ""), crd(stamp.HelmCRD, "", ours)}, want: older + configCRD + ", CRD " + stamp.HelmCRD + ";"},
		"another program's kind": {crds: []client.Object{crd("clusters.cluster.x-k8s.io", "", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := apiextensionsv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			older, err := olderCRDs(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.crds...).Build(), "muster-system")
			if err != nil {
				t.Fatal(err)
			}
			if test.counts == nil {
				test.counts = map[state]int{}
			}
			status := (&configState{InForce: &settings.InForce{Config: &addonsv1.FleetAddonConfig{}}, older: older, counts: test.counts}).status(time.Now())
			ready, apis := meta.FindStatusCondition(status.Conditions, addonsv1.ReadyCondition), meta.FindStatusCondition(status.Conditions, addonsv1.APIsAvailableCondition)
			if apis.Status != metav1.ConditionTrue || !strings.HasPrefix(apis.Message, test.want) || (test.want == "") != (apis.Message == "") {
				t.Errorf("APIsAvailable is %+v", apis)
			}
			if isStuck := test.counts[stateFailed] > 0; isStuck != (ready.Status == metav1.ConditionFalse) || !isStuck && ready.Message != apis.Message ||
				isStuck && ready.Message != meta.FindStatusCondition(status.Conditions, addonsv1.ClustersImportedCondition).Message {
				t.Errorf("Ready is %+v", ready)
			}
		})
	}
}
