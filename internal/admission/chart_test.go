package admission

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/crd"
	"github.com/muster-fleet/muster/internal/helm/templates"
	"github.com/muster-fleet/muster/internal/helm/values"
	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/program"
)

// A configuration of earlier versions, which is left behind, changes and refuses nothing.
func TestChartDefaultsAreNoneOfTheWebhook(t *testing.T) {
	review := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","object":{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"HelmChartProxy","spec":{"options":{"atomic":true}}}}}`
	if answer := send(t, served(t)[DefaultChartPath], []byte(review)); answer == nil || !answer.Allowed || len(answer.Patch) > 0 || len(answer.Warnings) > 0 {
		t.Errorf("the answer is %v", answer)
	}
}

// A HelmChartProxy delivers the Secrets and ConfigMaps that it names, so its author must be allowed to read them.
func TestChartAuthor(t *testing.T) {
	var asked []string
	reviewer := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
			review := object.(*authorizationv1.SubjectAccessReview)
			what := review.Spec.ResourceAttributes
			asked = append(asked, what.Verb+" "+what.Resource+" "+what.Namespace+"/"+what.Name)
			review.Status.Allowed = what.Name == "mine"
			return nil
		},
	}).Build()
	validator := ChartValidator{Reviewer: reviewer}
	ctx := admission.NewContextWithRequest(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UserInfo: authenticationv1.UserInfo{Username: "mallory"},
	}})
	good := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	good.Spec.RepoURL, good.Spec.ChartName = "https://charts.example.com", "web"
	good.Spec.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "mine"}}
	if _, err := validator.ValidateCreate(ctx, good); err != nil {
		t.Error(err)
	}
	bad := good.DeepCopy()
	bad.Spec.Credentials.Secret.Namespace, bad.Spec.Credentials.Secret.Name = "kube-system", "admin"
	bad.Spec.TLSConfig = &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: "theirs"}}
	bad.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: "theirs"}, {Kind: "ConfigMap", Name: "theirs"}}
	bad.Spec.NamespaceSelector = &metav1.LabelSelector{}
	asked = nil
	_, err := validator.ValidateUpdate(ctx, good, bad)
	want := []string{"get secrets kube-system/admin", "get secrets team/theirs", "get secrets team/theirs", "get configmaps team/theirs", "create helmchartproxies /"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	for _, field := range []string{"spec.credentials.secret", "spec.tlsConfig.caSecret", "spec.valuesFrom[0]", "spec.valuesFrom[1]", "spec.namespaceSelector"} {
		if err == nil || !strings.Contains(err.Error(), field+": Forbidden: user \"mallory\"") {
			t.Errorf("%s is not refused: %v", field, err)
		}
	}
	// An update that leaves the spec alone needs no permission: a controller adds a label.
	asked = nil
	if _, err := validator.ValidateUpdate(ctx, bad, bad.DeepCopy()); err != nil || len(asked) > 0 {
		t.Errorf("%v, asked %v", err, asked)
	}
}

// `kubectl muster lint` finds the same problems without a cluster.
func TestCheckChart(t *testing.T) {
	objects, problems := manifests.Read([]string{manifests.Stdin}, strings.NewReader(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {name: web, namespace: team}
spec: {clusterSelector: {}, repoURL: "http://a", chartName: web, chartname: web, valuesTemplate: "{{ if", options: {skipCRDs: true}}
`))
	findings, err := Check(context.Background(), crd.Validate, objects, problems)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, finding := range findings {
		got = append(got, finding.String())
	}
	const who = "-:5: HelmChartProxy team/web: "
	want := []string{
		who + "spec.chartname: is a field that a HelmChartProxy does not have; remove it, or correct its spelling",
		who + `spec.repoURL: Invalid value: "http://a": specified repoURL http://a uses unsupported scheme "http"; supported schemes are https and oci`,
		who + `spec.valuesTemplate: Invalid value: "{{ if": cannot be parsed: valuesTemplate:1: unclosed action`,
		"warning: -:2: HelmChartProxy team/web: " + "spec.options.skipCRDs has no effect: Fleet always installs the CRDs of a chart",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// The fields that are immutable in cluster-api-addon-provider-helm are immutable here, too.
func TestChartImmutable(t *testing.T) {
	old := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	old.Spec.RepoURL, old.Spec.ChartName = "https://charts.example.com", "web"
	changed := old.DeepCopy()
	changed.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyContinuous
	_, err := ChartValidator{}.ValidateUpdate(context.Background(), old, changed)
	if err == nil || !strings.Contains(err.Error(), `spec.reconcileStrategy: Invalid value: "Continuous": field is immutable`) {
		t.Errorf("not refused: %v", err)
	}
}

// A template that is nested too deep is refused, unless an update leaves it as it is: a controller adds a label.
func TestDeepTemplates(t *testing.T) {
	deep := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	deep.Spec.RepoURL, deep.Spec.ChartName = "https://charts.example.com", "web"
	deep.Spec.ValuesTemplate = "a: b\n{{" + strings.Repeat("(", 101) + "1" + strings.Repeat(")", 101) + "}}"
	const want = "cannot be parsed: valuesTemplate:2: blocks and parentheses are nested more than 100 deep; move the inner ones"
	changed := deep.DeepCopy()
	changed.Spec.ValuesTemplate += "\n"
	_, ofCreate := ChartValidator{}.ValidateCreate(t.Context(), deep)
	_, ofUpdate := ChartValidator{}.ValidateUpdate(t.Context(), deep, changed)
	for _, err := range []error{ofCreate, ofUpdate} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("not refused: %v", err)
		}
	}
	labelled := deep.DeepCopy()
	labelled.Labels, labelled.Spec.Version = map[string]string{"a": "b"}, "1.0.0"
	if _, err := (ChartValidator{}).ValidateUpdate(t.Context(), deep, labelled); err != nil {
		t.Error(err)
	}
}

// Templates that are parsed at once are bounded whatever the size of their requests, fairly: a namespace that keeps the
// webhook busy is told to try again, and another one does not notice.
func TestTemplatesWaitForMemory(t *testing.T) {
	chart := func(namespace string) *addonsv1.HelmChartProxy {
		its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
		its.Spec.RepoURL, its.Spec.ChartName, its.Spec.ValuesTemplate = "https://charts.example.com", "web", "a: {{ 1 }}"+strings.Repeat(" ", 128<<10)
		return its
	}
	busy := make(chan struct{})
	var holding, held sync.WaitGroup
	defer held.Wait()
	defer close(busy)
	holding.Add(1)
	held.Go(func() {
		if err := templates.Use(t.Context(), "greedy", strings.Repeat(" ", 256<<10), func(*values.Template) { holding.Done(); <-busy }); err != nil {
			t.Error(err)
		}
	})
	holding.Wait()
	answer := func(its *addonsv1.HelmChartProxy) int {
		scheme, err := program.Scheme()
		if err != nil {
			t.Fatal(err)
		}
		req := create(string(marshal(t, its)))
		recorder, _ := ask(t, newBudget().limit(ValidateChartPath, admission.WithValidator(scheme, ChartValidator{}).Handler), req)
		if after := recorder.Header().Get("Retry-After"); (after == "1") != (recorder.Code == http.StatusTooManyRequests) {
			t.Errorf("%d: Retry-After %q", recorder.Code, after)
		}
		return recorder.Code
	}
	if code := answer(chart("greedy")); code != http.StatusTooManyRequests {
		t.Errorf("the namespace that has its share: %d", code)
	}
	if code := answer(chart("other")); code != http.StatusOK {
		t.Errorf("another namespace: %d", code)
	}
	unchanged := chart("greedy")
	if _, err := (ChartValidator{}).ValidateUpdate(t.Context(), unchanged, unchanged.DeepCopy()); err != nil {
		t.Errorf("an unchanged template: %v", err)
	}
}
