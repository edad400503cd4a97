package admission

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
)

// served returns the webhooks by path, as the server has them.
func served(t testing.TB) map[string]http.Handler {
	t.Helper()
	config := configured(t, `cluster: {onDeselect: Delete, selector: {matchLabels: {import: "true"}}, naming: {prefix: p-}}`)
	return servedWith(t, config, &others{fleetClusters: []object{made("prod", nil)}})
}

// servedWith returns the webhooks by path as the server has them.
func servedWith(t testing.TB, reader client.Reader, others inventory) map[string]http.Handler {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	webhooks := map[string]http.Handler{}
	for path, handler := range handlers(scheme, settings.NewReader(reader), reader, others, &reviewer{}, &authorities{}, syncerUser) {
		webhooks[path] = newBudget().limit(path, handler)
	}
	return webhooks
}

// send posts bytes to a webhook and returns its answer; nil for an error.
func send(t *testing.T, webhook http.Handler, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	webhook.ServeHTTP(recorder, req)
	if message := strings.TrimSpace(recorder.Body.String()); recorder.Code == http.StatusInternalServerError && message != "" {
		if strings.Contains(message, "runtime error") {
			t.Errorf("%s: %s", message, body)
		}
		return nil
	}
	answer := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(recorder.Body.Bytes(), answer); err != nil || recorder.Code != http.StatusOK || answer.Response == nil {
		t.Fatalf("%d: %q: %v", recorder.Code, recorder.Body, err)
	}
	return answer.Response
}

// Each webhook answers any bytes in the protocol, and a refusal says why. It refuses nothing because of its own failure:
// neither a request that it cannot read, nor when everything that it looks at is broken.
func FuzzAdmissionReview(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"request":null}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","namespace":"team","userInfo":{"username":"ann"},"object":{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"classes"}}}}}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"UPDATE","namespace":"team","dryRun":true,"oldObject":{"metadata":{}},"object":{"metadata":{"name":"prod","annotations":{}},"spec":{"topology":{"class":"standard","classNamespace":"classes"}}}}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","object":{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"FleetAddonConfig","metadata":{"name":"fleet-addon-config"},"spec":{"cluster":{"naming":{"prefix":"P"}},"config":{"server":{"custom":{}}}}}}}`,
		`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1","operation":"DELETE","oldObject":{"spec":7}}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CONNECT","object":"x"}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","namespace":"team","object":{"metadata":{"name":"prod","labels":{"a":1}}}}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"UPDATE","namespace":"team","object":{"metadata":{"name":"prod"}},"oldObject":{"metadata":[]}}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"DELETE","oldObject":{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"FleetAddonConfig","metadata":{"name":"fleet-addon-config"}}}}`,
	} {
		f.Add([]byte(seed))
	}
	sound, broken := served(f), servedWith(f, panicking{}, panicking{})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, webhooks := range []map[string]http.Handler{sound, broken} {
			for path, webhook := range webhooks {
				answer := send(t, webhook, body)
				if answer == nil {
					continue
				}
				if !answer.Allowed && (answer.Result == nil || answer.Result.Message == "") {
					t.Errorf("%s: refused without a message: %s", path, body)
				}
				if len(answer.Patch) > 0 && path != StampPath {
					t.Errorf("%s: patches: %s", path, answer.Patch)
				}
				if path == StampPath && !answer.Allowed {
					t.Errorf("%s: refused with %v: %s", path, answer.Result, body)
				}
			}
		}
	})
}

// A Cluster of a class, whatever its name and fields, gets the same stamp in both versions of the API, and gets it
// once. It loses nothing else, and the webhooks accept it with its stamp.
func FuzzStampThroughReviews(f *testing.F) {
	f.Add("prod", "team", "standard", "classes", "spec", "later", `{"a":[1,2.50,9007199254740993]}`)
	f.Add("prod.eu", "team", "standard", "", "metadata", "finalizers", `["a"]`)
	f.Add("<&>", "", "", "", "status", "phase", `"Provisioned"`)
	f.Add(strings.Repeat("n", 80), "team", strings.Repeat("c", 70), "classes", "x", "y", `null`)
	webhooks := servedWith(f, &cached{}, &others{})
	f.Fuzz(func(t *testing.T, name, namespace, class, classNamespace, part, field, value string) {
		for _, text := range []string{name, namespace, class, classNamespace, part, field} {
			if !utf8.ValidString(text) {
				return // The API server sends no invalid UTF-8.
			}
		}
		if part == "apiVersion" || part == "kind" || field == "topology" || field == "name" || !json.Valid([]byte(value)) {
			return
		}
		classRef := map[string]any{"classRef": map[string]any{"name": class, "namespace": classNamespace}}
		v1beta1 := map[string]any{"class": class, "classNamespace": classNamespace}
		var stamps []map[string]string
		for version, topology := range map[string]map[string]any{"v1beta2": classRef, "v1beta1": v1beta1} {
			document := map[string]any{
				"apiVersion": "cluster.x-k8s.io/" + version, "kind": "Cluster",
				"metadata": map[string]any{"name": name, "namespace": namespace},
				"spec":     map[string]any{"topology": topology},
			}
			if document[part] == nil {
				document[part] = map[string]any{}
			}
			document[part].(map[string]any)[field] = json.RawMessage(value)
			stamp, accepted := stampThroughReviews(t, webhooks, namespace, document)
			if !accepted {
				return // A 400: the labels are not a map, for example.
			}
			stamps = append(stamps, stamp)
		}
		if diff := cmp.Diff(stamps[0], stamps[1]); diff != "" {
			t.Errorf("the versions get different stamps:\n%s", diff)
		}
	})
}

func stampThroughReviews(t *testing.T, webhooks map[string]http.Handler, namespace string, document map[string]any) (stamp map[string]string, accepted bool) {
	t.Helper()
	object := marshal(t, document)
	answer := send(t, webhooks[StampPath], review(t, namespace, object))
	if answer == nil || !answer.Allowed {
		return nil, false
	}
	stamped := object
	if len(answer.Patch) > 0 {
		patch, err := jsonpatch.DecodePatch(answer.Patch)
		if err == nil {
			options := jsonpatch.NewApplyOptions()
			options.EscapeHTML = false
			stamped, err = patch.ApplyWithOptions(object, options)
		}
		if err != nil {
			t.Fatalf("%s on %s: %v", answer.Patch, object, err)
		}
	}
	if again := send(t, webhooks[StampPath], review(t, namespace, stamped)); again == nil || !again.Allowed || len(again.Patch) > 0 && string(again.Patch) != "[]" {
		t.Errorf("stamped again with %+v: %s", again, stamped)
	}
	if answer := send(t, webhooks[ClusterPath], review(t, namespace, stamped)); answer == nil || !answer.Allowed {
		t.Errorf("the stamped Cluster is refused: %+v: %s", answer, stamped)
	}
	stamp = stampOf(t, string(stamped))
	if diff := cmp.Diff(without(t, object, stamp), without(t, stamped, stamp)); diff != "" {
		t.Errorf("more than the stamp changed (-before +after):\n%s", diff)
	}
	return stamp, true
}

// without returns a document without the keys of a stamp, and without labels and annotations if these are empty
// then. It keeps numbers as written.
func without(t *testing.T, raw []byte, stamp map[string]string) map[string]any {
	t.Helper()
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		t.Fatal(err)
	}
	metadata := document["metadata"].(map[string]any)
	for _, key := range []string{"labels", "annotations"} {
		values, _ := metadata[key].(map[string]any)
		maps.DeleteFunc(values, func(key string, _ any) bool { _, ours := stamp[key]; return ours })
		if len(values) == 0 {
			delete(metadata, key)
		}
	}
	return document
}

func review(t *testing.T, namespace string, object []byte) []byte {
	t.Helper()
	return marshal(t, map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"request": map[string]any{"uid": "1", "operation": "CREATE", "namespace": namespace, "object": json.RawMessage(object)},
	})
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// post sends an AdmissionReview to a webhook and returns the answer.
func post(t *testing.T, webhook http.Handler, review string) *admissionv1.AdmissionReview {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(review))
	req.Header.Set("Content-Type", "application/json")
	return answerTo(t, webhook, req)
}

// answerTo returns a webhook's answer to a request.
func answerTo(t *testing.T, webhook http.Handler, req *http.Request) *admissionv1.AdmissionReview {
	t.Helper()
	recorder := httptest.NewRecorder()
	webhook.ServeHTTP(recorder, req)
	if recorder.Code != http.StatusOK {
		t.Fatalf("%d: %s", recorder.Code, recorder.Body)
	}
	answer := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(recorder.Body.Bytes(), answer); err != nil {
		t.Fatal(err)
	}
	if answer.Response == nil {
		t.Fatalf("no response in %s", recorder.Body)
	}
	return answer
}
