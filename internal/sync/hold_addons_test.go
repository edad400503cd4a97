package sync

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/program"
)

// A round keeps little of each HelmChartProxy, however large its author makes it.
func TestChartProxyIsSmall(t *testing.T) {
	of := proxyOf("team", "cni", "yes")
	of.Annotations = map[string]string{"large": strings.Repeat("x", 1000)}
	of.Spec.ValuesTemplate = strings.Repeat("{{ .Cluster.spec.topology.version }}", 1000)
	of.Spec.ReleaseName = strings.Repeat("x", 1000)
	of.Status.MatchingClusters = make([]corev1.ObjectReference, 1000)
	of.Status.Conditions = []metav1.Condition{{Type: addonsv1.HelmReleaseProxySpecsUpToDateCondition, Status: metav1.ConditionTrue}}
	got := newChartProxy(of, time.Now())
	if size := len(plan.JSON(got)); size > 1000 {
		t.Errorf("it keeps %d bytes", size)
	}
	if !got.isUpToDate || !plan.HasValues(got.HelmChartProxy) || got.UID != of.UID {
		t.Errorf("%+v", got)
	}
}

// listing answers every list of HelmChartProxies with pages of these, and of nothing else.
func listing(t *testing.T, pages int, page func(number int) []addonsv1.HelmChartProxy) addOnReader {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	there := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			all, isProxies := list.(*addonsv1.HelmChartProxyList)
			if !isProxies {
				return nil
			}
			its, number := (&client.ListOptions{}).ApplyOptions(options), 0
			if its.Continue != "" {
				if _, err := fmt.Sscan(its.Continue, &number); err != nil {
					return err
				}
			}
			if all.Items = page(number); number+1 < pages {
				all.Continue = fmt.Sprint(number + 1)
			}
			return nil
		},
	}).Build()
	return addOnReader{live: there, scopes: &scopeReader{Reader: there}, now: time.Now}
}

// Tools that make a HelmChartProxy for each Cluster and add-on fill a namespace with those of others.
func TestManyHelmChartProxies(t *testing.T) {
	for name, test := range map[string]struct {
		pages   int
		addon   string
		trouble string
	}{
		"of other Clusters":            {pages: 400, addon: "no"},
		"more than can be read":        {pages: 1000, addon: "no", trouble: "too many"},
		"more than a Cluster may have": {pages: 400, addon: "yes", trouble: "select it"},
	} {
		reader := listing(t, test.pages, func(number int) (page []addonsv1.HelmChartProxy) {
			for i := range int(pager.Small) {
				page = append(page, *proxyOf("team", fmt.Sprintf("p%d-%d", number, i), test.addon))
			}
			if number == test.pages-1 {
				page[0] = *proxyOf("team", "last", "yes")
			}
			return page
		})
		got, err := reader.releases(t.Context(), heldOne(), nil)
		switch {
		case test.trouble != "":
			if err == nil || !strings.Contains(err.Error(), test.trouble) {
				t.Errorf("%s: the error is %v", name, err)
			}
		case err != nil || len(got) != 1 || got[0].Name != "HelmChartProxy last":
			t.Errorf("%s: %v (%v)", name, got, err)
		}
	}
}

// Only Muster installs releases. A HelmChartProxy that no program has taken up does not hold an upgrade for long, unless
// releases of it are there.
func TestUnclaimedHelmChartProxies(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxy)
		want   bool
	}{
		"new": {func(*addonsv1.HelmChartProxy) {}, true},
		"a minute old": {func(its *addonsv1.HelmChartProxy) {
			its.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Minute))
		}, false},
		"a minute old, with finalizer": {func(its *addonsv1.HelmChartProxy) {
			its.CreationTimestamp, its.Finalizers = metav1.NewTime(time.Now().Add(-time.Minute)), []string{plan.Finalizer}
		}, true},
		"paused": {func(its *addonsv1.HelmChartProxy) {
			its.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		}, false},
		"not managed": {func(its *addonsv1.HelmChartProxy) {
			its.Status.Conditions = []metav1.Condition{{Type: addonsv1.NotManagedCondition, Status: metav1.ConditionTrue}}
		}, false},
	} {
		its := proxyOf("team", "cni", "yes")
		its.CreationTimestamp, its.Finalizers = metav1.Now(), nil
		test.change(its)
		for has, objects := range map[bool][]client.Object{false: {its}, true: {its, releaseFor("team", "cni", its.UID)}} {
			there := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
			reader := addOnReader{live: there, scopes: &scopeReader{Reader: there}, now: time.Now}
			got, err := reader.releases(t.Context(), heldOne(), nil)
			if want := test.want || has; err != nil || len(got) > 0 != want {
				t.Errorf("%s, with a HelmReleaseProxy %t: %v (%v)", name, has, got, err)
			}
		}
	}
}
