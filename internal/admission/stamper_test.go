package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// cached plays the informers: it holds a FleetAddonConfig and the labels of Namespaces.
type cached struct {
	client.Reader
	config     *addonsv1.FleetAddonConfig
	namespaces map[string]map[string]string
	err        error
}

func (c *cached) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if c.err != nil {
		return c.err
	}
	switch object := object.(type) {
	case *addonsv1.FleetAddonConfig:
		if c.config != nil && key.Name == addonsv1.FleetAddonConfigName {
			c.config.DeepCopyInto(object)
			return nil
		}
	case *metav1.PartialObjectMetadata:
		if labels, found := c.namespaces[key.Name]; found {
			object.Name, object.Labels = key.Name, labels
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// configured returns a cache with a FleetAddonConfig of this spec.
func configured(t testing.TB, spec string) *cached {
	t.Helper()
	config := &addonsv1.FleetAddonConfig{}
	config.Name = addonsv1.FleetAddonConfigName
	if err := yaml.UnmarshalStrict([]byte(spec), &config.Spec); err != nil {
		t.Fatal(err)
	}
	return &cached{config: config, namespaces: map[string]map[string]string{"team": {"team": "a"}}}
}

func create(object string) admission.Request {
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "1", Operation: admissionv1.Create, Namespace: "team", Object: runtime.RawExtension{Raw: []byte(object)},
	}}
}

func update(old, object string) admission.Request {
	req := create(object)
	req.Operation, req.OldObject.Raw = admissionv1.Update, []byte(old)
	return req
}

const syncerUser = "system:serviceaccount:muster-system:muster-syncer"

// bySyncer makes the syncer the user of a request.
func bySyncer(req admission.Request) admission.Request {
	req.UserInfo.Username = syncerUser
	return req
}

// handle lets the Stamper answer and applies its patch as the API server does.
func handle(t testing.TB, reader client.Reader, req admission.Request) (string, admission.Response) {
	t.Helper()
	response := (&Stamper{Settings: settings.NewReader(reader), Namespaces: reader, Others: &others{}, Syncer: syncerUser}).Handle(t.Context(), req)
	if !response.Allowed {
		t.Fatalf("refused: %v", response.Result)
	}
	patched, err := patchedBy(response, req.Object.Raw)
	if err != nil {
		t.Fatal(err)
	}
	return string(patched), response
}

func patchedBy(response admission.Response, raw []byte) ([]byte, error) {
	if len(response.Patches) == 0 {
		return raw, nil
	}
	operations, err := json.Marshal(response.Patches)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", operations, err)
	}
	options := jsonpatch.NewApplyOptions()
	options.EscapeHTML = false
	patched, err := patch.ApplyWithOptions(raw, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", operations, err)
	}
	return patched, nil
}

// stampOf returns the keys of the stamp that an object has.
func stampOf(t testing.TB, object string) map[string]string {
	t.Helper()
	cluster, err := parseCluster([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	result := map[string]string{}
	for _, key := range []string{stamp.ClassNameLabel, stamp.ClassNamespaceLabel} {
		if value, found := cluster.Metadata.Labels[key]; found {
			result[key] = value
		}
	}
	for _, key := range []string{stamp.ClassFullNameAnnotation, stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation} {
		if value, found := cluster.Metadata.Annotations[key]; found {
			result[key] = value
		}
	}
	return result
}

func wantStamp(class, classNamespace, name string) map[string]string {
	result := map[string]string{}
	if class != "" {
		result[stamp.ClassNameLabel], result[stamp.ClassNamespaceLabel] = class, classNamespace
	}
	if name != "" {
		result[stamp.OwnedByAnnotation], result[stamp.ClusterNameAnnotation] = addonsv1.FleetAddonConfigName, name
	}
	return result
}

// A Cluster gets the same stamp in each version of the API.
func TestVersionsAreStampedAlike(t *testing.T) {
	tests := map[string]struct {
		beta1, beta2 string
		want         map[string]string
	}{
		"a class elsewhere": {
			beta1: `{"apiVersion":"cluster.x-k8s.io/v1beta1","kind":"Cluster","metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"class":"standard","classNamespace":"classes","version":"v1.36.3"}}}`,
			beta2: `{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"classes"},"version":"v1.36.3"}}}`,
			want:  wantStamp("standard", "classes", "prod"),
		},
		"a class in the same namespace": {
			beta1: `{"apiVersion":"cluster.x-k8s.io/v1beta1","metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"class":"standard"}}}`,
			beta2: `{"metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"classRef":{"name":"standard"}}}}`,
			want:  wantStamp("standard", "team", "prod"),
		},
		"its own namespace, named": {
			beta1: `{"apiVersion":"cluster.x-k8s.io/v1beta1","metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"class":"standard","classNamespace":"team"}}}`,
			beta2: `{"metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"team"}}}}`,
			want:  wantStamp("standard", "team", "prod"),
		},
		"no topology": {
			beta1: `{"apiVersion":"cluster.x-k8s.io/v1beta1","metadata":{"name":"prod","namespace":"team"},"spec":{"infrastructureRef":{"apiVersion":"infrastructure.cluster.x-k8s.io/v1beta1","kind":"DockerCluster","name":"prod"}}}`,
			beta2: `{"metadata":{"name":"prod","namespace":"team"},"spec":{"infrastructureRef":{"apiGroup":"infrastructure.cluster.x-k8s.io","kind":"DockerCluster","name":"prod"}}}`,
			want:  wantStamp("", "", "prod"),
		},
	}
	for name, test := range tests {
		for version, object := range map[string]string{"v1beta1": test.beta1, "v1beta2": test.beta2} {
			t.Run(name+" in "+version, func(t *testing.T) {
				patched, response := handle(t, &cached{}, create(object))
				if diff := cmp.Diff(test.want, stampOf(t, patched)); diff != "" {
					t.Errorf("stamp (-want +got):\n%s", diff)
				}
				if len(response.Warnings) > 0 {
					t.Errorf("warnings: %v", response.Warnings)
				}
				if _, again := handle(t, &cached{}, create(patched)); len(again.Patches) > 0 {
					t.Errorf("the second time: %v", again.Patches)
				}
			})
		}
	}
}

func TestStamper(t *testing.T) {
	const (
		plain   = `{"metadata":{"name":"prod","namespace":"team"}}`
		labeled = `{"metadata":{"name":"prod","namespace":"team","labels":{"import":"true"}}}`
		pinned  = `{"metadata":{"name":"prod","namespace":"team","annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"prod","fleet.addons.cluster.x-k8s.io/owned-by":"fleet-addon-config"}}}`
		pinned2 = `{"metadata":{"name":"prod","namespace":"team","annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"other","fleet.addons.cluster.x-k8s.io/owned-by":"me"}}}`
		half    = `{"metadata":{"name":"prod","namespace":"team","annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"prod"}}}`
		classed = `{"metadata":{"name":"prod","namespace":"team","labels":{"clusterclass-name.fleet.addons.cluster.x-k8s.io":"forged","clusterclass-namespace.fleet.addons.cluster.x-k8s.io":"forged"}}}`
	)
	broken := errors.New("the cache is broken")
	longClass := strings.Repeat("c", 64)
	tests := map[string]struct {
		reader   *cached
		request  admission.Request
		want     map[string]string
		warnings []string
	}{
		"no config":                 {reader: &cached{}, request: create(plain), want: wantStamp("", "", "prod")},
		"a prefix":                  {reader: configured(t, `cluster: {naming: {prefix: capi-}}`), request: create(plain), want: wantStamp("", "", "capi-prod")},
		"selected":                  {reader: configured(t, `cluster: {selector: {matchLabels: {import: "true"}}}`), request: create(labeled), want: wantStamp("", "", "prod")},
		"not selected":              {reader: configured(t, `cluster: {selector: {matchLabels: {import: "true"}}}`), request: create(plain), want: wantStamp("", "", "")},
		"its Namespace selected":    {reader: configured(t, `cluster: {namespaceSelector: {matchLabels: {team: a}}}`), request: create(plain), want: wantStamp("", "", "prod")},
		"its Namespace not":         {reader: configured(t, `cluster: {namespaceSelector: {matchLabels: {team: b}}}`), request: create(plain), want: wantStamp("", "", "")},
		"import off":                {reader: configured(t, `cluster: {enabled: false}`), request: create(plain), want: wantStamp("", "", "")},
		"generateName":              {reader: &cached{}, request: create(`{"metadata":{"generateName":"prod-","namespace":"team"},"spec":{"topology":{"classRef":{"name":"standard"}}}}`), want: wantStamp("standard", "team", "")},
		"labels null":               {reader: &cached{}, request: create(`{"metadata":{"name":"prod","labels":null,"annotations":null},"spec":{"topology":{"classRef":{"name":"standard"}}}}`), want: wantStamp("standard", "team", "prod")},
		"labels empty":              {reader: &cached{}, request: create(`{"metadata":{"name":"prod","labels":{},"annotations":{}},"spec":{"topology":{"classRef":{"name":"standard"}}}}`), want: wantStamp("standard", "team", "prod")},
		"forged labels":             {reader: &cached{}, request: create(classed), want: wantStamp("", "", "prod")},
		"other spelling is nothing": {reader: &cached{}, request: create(`{"metadata":{"name":"prod"},"spec":{"topology":{"classref":{"name":"standard"},"Class":"standard"}}}`), want: wantStamp("", "", "prod")},
		"a name that does not fit": {
			reader: &cached{}, request: create(`{"metadata":{"name":"prod.eu","namespace":"team"}}`), want: wantStamp("", "", "prod-eu-2740657d"),
			warnings: []string{`the Cluster's name does not fit Fleet, which wants a DNS label of at most 63 characters: its Fleet Cluster will be named "prod-eu-2740657d"`},
		},
		"a class name that does not fit": {
			reader: &cached{}, request: create(fmt.Sprintf(`{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":%q}}}}`, longClass)),
			want: map[string]string{
				stamp.ClassNameLabel: longClass[:54] + "-52b6419d", stamp.ClassNamespaceLabel: "team", stamp.ClassFullNameAnnotation: longClass,
				stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "prod",
			},
		},
		"a pin brought along": {
			reader: &cached{}, request: create(strings.ReplaceAll(pinned2, `"other"`, `"capi-prod"`)), want: wantStamp("", "", "capi-prod"),
			warnings: []string{`this Cluster's Fleet Cluster is "capi-prod", as its annotation fleet.addons.cluster.x-k8s.io/cluster-name says, not "prod", as spec.cluster.naming of the FleetAddonConfig gives; remove the annotation if this is not a Cluster that was restored or moved`},
		},
		"another's pin": {
			reader: &cached{}, request: create(pinned2), want: wantStamp("", "", "prod"),
			warnings: []string{`annotation fleet.addons.cluster.x-k8s.io/cluster-name names Fleet Cluster "other", which is not this Cluster's: it is replaced`},
		},

		"update: nothing":           {reader: &cached{}, request: update(pinned, pinned), want: wantStamp("", "", "prod")},
		"update: pin dropped":       {reader: &cached{}, request: update(pinned, plain), want: wantStamp("", "", "prod")},
		"update: pin altered":       {reader: &cached{}, request: update(pinned, pinned2), want: wantStamp("", "", "prod")},
		"update: no pin invented":   {reader: &cached{}, request: update(plain, labeled), want: wantStamp("", "", "")},
		"update: pin forged":        {reader: &cached{}, request: update(plain, pinned), want: wantStamp("", "", "")},
		"update: half a pin forged": {reader: &cached{}, request: update(plain, half), want: wantStamp("", "", "")},
		"update: the syncer pins":   {reader: &cached{}, request: bySyncer(update(plain, pinned)), want: wantStamp("", "", "prod")},
		"update: it pins again":     {reader: &cached{}, request: bySyncer(update(pinned2, pinned)), want: wantStamp("", "", "prod")},
		"update: it unpins":         {reader: &cached{}, request: bySyncer(update(pinned, plain)), want: wantStamp("", "", "")},
		"update: labels put right":  {reader: &cached{}, request: update(plain, classed), want: wantStamp("", "", "")},
		"update: not withdrawn":     {reader: configured(t, `cluster: {onDeselect: Delete, selector: {matchLabels: {import: "true"}}}`), request: update(pinned, plain), want: wantStamp("", "", "prod")},
		"update: kept":              {reader: configured(t, `cluster: {onDeselect: Keep, selector: {matchLabels: {import: "true"}}}`), request: update(pinned, plain), want: wantStamp("", "", "prod")},
		"update: rebased":           {reader: &cached{}, request: update(`{"metadata":{"name":"prod"}}`, `{"metadata":{"name":"prod","labels":{"clusterclass-name.fleet.addons.cluster.x-k8s.io":"old"}},"spec":{"topology":{"classRef":{"name":"new","namespace":"elsewhere"}}}}`), want: wantStamp("new", "elsewhere", "")},
		"update: topology gone":     {reader: &cached{}, request: update(pinned, classed), want: wantStamp("", "", "prod")},
		"update: name does not fit": {reader: &cached{}, request: update(`{"metadata":{"name":"prod.eu"}}`, `{"metadata":{"name":"prod.eu"}}`), want: wantStamp("", "", "")},

		"undecided: the class only":            {reader: &cached{err: broken}, request: create(`{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard"}}}}`), want: wantStamp("standard", "team", "")},
		"undecided: no warning of a name":      {reader: &cached{err: broken}, request: create(`{"metadata":{"name":"prod.eu"}}`), want: wantStamp("", "", "")},
		"undecided: a pin brought along stays": {reader: &cached{err: broken}, request: create(pinned), want: wantStamp("", "", "prod")},
		"undecided: a dropped pin is restored": {reader: &cached{err: broken}, request: update(pinned, plain), want: wantStamp("", "", "prod")},
		"undecided: an altered one as well":    {reader: &cached{err: broken}, request: update(pinned, pinned2), want: wantStamp("", "", "prod")},
		"undecided: selectors do not parse":    {reader: configured(t, `cluster: {selector: {matchExpressions: [{key: a, operator: Is}]}}`), request: create(plain), want: wantStamp("", "", "")},
		"undecided: Namespace unknown":         {reader: &cached{config: configured(t, `cluster: {namespaceSelector: {matchLabels: {team: a}}}`).config}, request: create(plain), want: wantStamp("", "", "")},
		"undecided: Namespace, Delete, update": {reader: &cached{config: configured(t, `cluster: {onDeselect: Delete, namespaceSelector: {matchLabels: {team: a}}}`).config}, request: update(pinned, plain), want: wantStamp("", "", "prod")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			patched, response := handle(t, test.reader, test.request)
			if diff := cmp.Diff(test.want, stampOf(t, patched)); diff != "" {
				t.Errorf("stamp (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.warnings, response.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			test.request.Object.Raw = []byte(patched)
			if _, again := handle(t, test.reader, test.request); len(again.Patches) > 0 {
				t.Errorf("the second time: %v", again.Patches)
			}
		})
	}
}

func TestStamperLetsOtherOperationsThrough(t *testing.T) {
	for _, operation := range []admissionv1.Operation{admissionv1.Delete, admissionv1.Connect} {
		req := create(`{"metadata":{"name":"prod"}}`)
		req.Operation = operation
		if response := (&Stamper{Settings: settings.NewReader(&cached{}), Namespaces: &cached{}, Others: &others{}}).Handle(t.Context(), req); !response.Allowed || len(response.Patches) > 0 {
			t.Errorf("%s: %+v", operation, response)
		}
	}
}

func TestStamperRefusesWhatIsNoCluster(t *testing.T) {
	for name, req := range map[string]admission.Request{
		"nothing":             create(``),
		"no object":           create(`[]`),
		"labels of numbers":   create(`{"metadata":{"labels":{"a":1}}}`),
		"an old one of those": update(`{"metadata":{"labels":{"a":1}}}`, `{"metadata":{"name":"prod"}}`),
		"no old one":          update(``, `{"metadata":{"name":"prod"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			response := (&Stamper{Settings: settings.NewReader(&cached{}), Namespaces: &cached{}, Others: &others{}}).Handle(t.Context(), req)
			if response.Allowed || response.Result.Code != 400 || !strings.HasPrefix(response.Result.Message, "decoding Cluster: ") {
				t.Errorf("the answer is %+v", response.AdmissionResponse)
			}
		})
	}
}

// The Stamper changes only the keys of the stamp. Everything else stays byte for byte: fields that this release
// does not know, big numbers, the order of keys.
func TestStampTouchesNothingElse(t *testing.T) {
	const (
		spec   = `{"zzz":{"b":1,"a":[1.0,1e3,12345678901234567890,null,""]},"paused":false,"topology":{"classRef":{"name":"standard","future":{"x":"<&>\u2028"}},"version":"v1.36.3","variables":[{"name":"n","value":{"deep":[{},[],null]}}]}}`
		future = `{"kept":"as is","and":[true,{"é":"\u00e9"}]}`
		object = `{"apiVersion":"cluster.x-k8s.io/v1beta9","kind":"Cluster","metadata":{"name":"prod","namespace":"team","labels":{"b":"2","a":"1"},"annotations":{"x/y~z":"~1"},"finalizers":["f"],"newer":{"b":1,"a":2}},"spec":` + spec + `,"future":` + future + `}`
	)
	patched, _ := handle(t, &cached{}, create(object))
	if diff := cmp.Diff(wantStamp("standard", "team", "prod"), stampOf(t, patched)); diff != "" {
		t.Errorf("stamp (-want +got):\n%s", diff)
	}
	for _, part := range []string{`"spec":` + spec, `"future":` + future, `"newer":{"b":1,"a":2}`, `"finalizers":["f"]`, `"apiVersion":"cluster.x-k8s.io/v1beta9"`, `"x/y~z":"~1"`} {
		if !strings.Contains(patched, part) {
			t.Errorf("%s\nis no longer in\n%s", part, patched)
		}
	}

	// Without the stamp, the object equals the original.
	var before, after map[string]any
	if err := errors.Join(json.Unmarshal([]byte(object), &before), json.Unmarshal([]byte(patched), &after)); err != nil {
		t.Fatal(err)
	}
	metadata := after["metadata"].(map[string]any)
	for key := range wantStamp("standard", "team", "prod") {
		delete(metadata["labels"].(map[string]any), key)
		delete(metadata["annotations"].(map[string]any), key)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("beside the stamp (-before +after):\n%s", diff)
	}
}

// The Stamper answers an AdmissionReview over the wire.
func TestStamperOverTheWire(t *testing.T) {
	review := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u1","kind":{"group":"cluster.x-k8s.io","version":"v1beta1","kind":"Cluster"},` +
		`"resource":{"group":"cluster.x-k8s.io","version":"v1beta1","resource":"clusters"},"name":"prod","namespace":"team","operation":"CREATE","userInfo":{"username":"u"},` +
		`"object":{"apiVersion":"cluster.x-k8s.io/v1beta1","kind":"Cluster","metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"class":"standard","classNamespace":"classes"}}},"oldObject":null,"dryRun":true}}`
	answer := post(t, &admission.Webhook{Handler: &Stamper{Settings: settings.NewReader(&cached{}), Namespaces: &cached{}, Others: &others{}}}, review)
	if !answer.Response.Allowed || answer.Response.UID != "u1" || ptr.Deref(answer.Response.PatchType, "") != admissionv1.PatchTypeJSONPatch {
		t.Fatalf("the answer is %+v", answer.Response)
	}
	var operations []map[string]any
	if err := json.Unmarshal(answer.Response.Patch, &operations); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"op": "add", "path": "/metadata/labels", "value": map[string]any{}},
		{"op": "add", "path": "/metadata/labels/clusterclass-name.fleet.addons.cluster.x-k8s.io", "value": "standard"},
		{"op": "add", "path": "/metadata/labels/clusterclass-namespace.fleet.addons.cluster.x-k8s.io", "value": "classes"},
		{"op": "add", "path": "/metadata/annotations", "value": map[string]any{}},
		{"op": "add", "path": "/metadata/annotations/fleet.addons.cluster.x-k8s.io~1cluster-name", "value": "prod"},
		{"op": "add", "path": "/metadata/annotations/fleet.addons.cluster.x-k8s.io~1owned-by", "value": "fleet-addon-config"},
	}
	if diff := cmp.Diff(want, operations); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
}

// The Stamper answers any review and does not panic. It does not change an object that it has stamped.
func FuzzStamper(f *testing.F) {
	const pin = `"annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"prod","fleet.addons.cluster.x-k8s.io/owned-by":"fleet-addon-config"}`
	for _, seed := range []struct{ old, object string }{
		{``, `{"metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"classes"}}}}`},
		{``, `{"metadata":{"name":"prod","namespace":"team"},"spec":{"topology":{"class":"standard","classNamespace":"classes"}}}`},
		{``, `{"metadata":{"generateName":"prod-"}}`},
		{``, `{"metadata":{"name":"prod.eu","labels":{"clusterclass-name.fleet.addons.cluster.x-k8s.io":""}}}`},
		{``, `{"metadata":{"name":"","labels":null,` + pin + `}}`},
		{`{"metadata":{"name":"prod",` + pin + `}}`, `{"metadata":{"name":"prod"}}`},
		{`{"metadata":{"name":"prod",` + pin + `}}`, `{"metadata":{"name":"prod","annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"Not.OK"}}}`},
		{`{"metadata":{"name":"prod"}}`, `{"metadata":{"name":"prod","labels":{"import":"true"}},"spec":{"topology":{"classRef":{"name":"` + strings.Repeat("c", 64) + `"}}}}`},
		{`{}`, `{}`}, {`[]`, `null`}, {`{"metadata":null}`, `{"metadata":{"labels":{"a/~b":"c"}},"spec":null}`},
	} {
		f.Add([]byte(seed.old), []byte(seed.object), "team")
	}
	readers := []*cached{
		{},
		{err: errors.New("broken")},
		configured(f, `cluster: {onDeselect: Delete, selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}, naming: {prefix: p-, suffix: -s}}`),
		configured(f, `cluster: {selector: {matchLabels: {clusterclass-name.fleet.addons.cluster.x-k8s.io: standard}}}`),
	}
	f.Fuzz(func(t *testing.T, old, object []byte, namespace string) {
		for _, reader := range readers {
			handler := &Stamper{Settings: settings.NewReader(reader), Namespaces: reader, Others: &others{}}
			for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update} {
				// As the client wrote it, and as the API server would write it.
				for _, raw := range [][]byte{object, canonical(object)} {
					req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
						Operation: operation, Namespace: namespace,
						Object: runtime.RawExtension{Raw: raw}, OldObject: runtime.RawExtension{Raw: canonical(old)},
					}}
					response := handler.Handle(t.Context(), req)
					if !response.Allowed || !hasMetadata(raw) || !bytes.Equal(raw, canonical(raw)) {
						continue
					}
					patched, err := patchedBy(response, raw)
					if err != nil {
						t.Fatalf("%s of %s: %v", operation, raw, err)
					}
					if operation == admissionv1.Update {
						checkPinStayed(t, req.OldObject.Raw, patched)
					}
					req.Object.Raw = patched
					if again := handler.Handle(t.Context(), req); !again.Allowed || len(again.Patches) > 0 {
						t.Errorf("%s of %s: patched again with %v: %v", operation, patched, again.Patches, again.Result)
					}
				}
			}
		}
	})
}

// checkPinStayed checks that a request by a user other than the syncer left the pin unchanged.
func checkPinStayed(t *testing.T, old, patched []byte) {
	t.Helper()
	before, err := parseCluster(old)
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseCluster(patched)
	if err != nil {
		t.Fatal(err)
	}
	if was, is := stamp.PinOf(before.Metadata.Annotations), stamp.PinOf(after.Metadata.Annotations); is != was {
		t.Errorf("an update of %s made the pin %v out of %v", old, is, was)
	}
}

// canonical writes JSON like a server that has decoded it: no key appears twice.
func canonical(raw []byte) []byte {
	var object any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if decoder.Decode(&object) != nil || decoder.More() {
		return raw
	}
	result, err := json.Marshal(object)
	if err != nil {
		return raw
	}
	return result
}

func hasMetadata(raw []byte) bool {
	var object map[string]map[string]any
	_ = json.Unmarshal(raw, &object) // spec may be anything
	return object["metadata"] != nil
}
