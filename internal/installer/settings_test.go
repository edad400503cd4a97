package installer

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Everything but the two keys stays, byte for byte.
func TestWithServer(t *testing.T) {
	in := &server{url: "https://[fd00::1]:6443", ca: "CA"}
	for name, test := range map[string]struct{ text, want, err string }{
		"empty object": {text: `{}`, want: `{"apiServerCA":"Q0E=","apiServerURL":"https://[fd00::1]:6443"}`},
		"beside others": {
			text: "{\n  \"unknown\": [1, 2.50, {\"apiServerURL\": \"inside\"}],\n  \"apiServerURL\" : \"https://old\",\n  \"big\": 12345678901234567890,\n  \"apiServerCA\": null\n}\n",
			want: "{\n  \"unknown\": [1, 2.50, {\"apiServerURL\": \"inside\"}],\n  \"apiServerURL\" : \"https://[fd00::1]:6443\",\n  \"big\": 12345678901234567890,\n  \"apiServerCA\": \"Q0E=\"\n}\n",
		},
		"one is set":        {text: `{"apiServerURL":"x","a":"\u003c"}`, want: `{"apiServerCA":"Q0E=","apiServerURL":"https://[fd00::1]:6443","a":"\u003c"}`},
		"other letters":     {text: `{"apiServerURL":"https:\/\/[fd00::1]:6443","apiServerCA":"Q0E="}`, want: `{"apiServerURL":"https:\/\/[fd00::1]:6443","apiServerCA":"Q0E="}`},
		"not an object":     {text: `[]`, err: "is not an object"},
		"broken":            {text: `{"a":`, err: "cannot be read as a JSON object"},
		"two with one name": {text: `{"apiServerURL":"a","apiServerURL":"b","apiServerCA":"Q0E="}`, want: `{"apiServerURL":"a","apiServerURL":"https://[fd00::1]:6443","apiServerCA":"Q0E="}`},
	} {
		got, err := withServer(settingsOf(test.text), in)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", name, err, test.err)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(test.want, got))
		}
		var read map[string]any
		if err := json.Unmarshal([]byte(got), &read); err != nil || read["apiServerURL"] != in.url || read["apiServerCA"] != "Q0E=" {
			t.Errorf("%s: Fleet reads %v: %v", name, read, err)
		}
	}
	if _, err := withServer(&corev1.ConfigMap{}, in); err == nil || !strings.Contains(err.Error(), "no key config") {
		t.Errorf("without a key: %v", err)
	}
}

func TestWithGates(t *testing.T) {
	on := &addonsv1.FeatureGates{ExperimentalHelmOps: ptr.To(true), ExperimentalOCIStorage: ptr.To(false)}
	today, old := semver.MustParse("0.16.0"), semver.MustParse("0.12.3")
	for name, test := range map[string]struct {
		text    string
		version *semver.Version
		want    string
		err     string
	}{
		"nothing yet": {version: today, want: "extraEnv:\n    - name: OCI_STORAGE\n      value: \"false\"\nhelmops:\n    enabled: true\n"},
		"in addition to a user's own": {version: today,
			text: "# mine\nextraEnv:\n    - name: FOO\n      value: bar # stays\n    - name: OCI_STORAGE\n      value: \"true\"\nhelmops:\n    replicas: 2\n",
			want: "# mine\nextraEnv:\n    - name: FOO\n      value: bar # stays\n    - name: OCI_STORAGE\n      value: \"false\"\nhelmops:\n    replicas: 2\n    enabled: true\n"},
		"an old Fleet": {version: old, text: "a: 1\n",
			want: "a: 1\nextraEnv:\n    - name: EXPERIMENTAL_HELM_OPS\n      value: \"true\"\n    - name: EXPERIMENTAL_OCI_STORAGE\n      value: \"false\"\n"},
		"written otherwise": {version: today, text: "extraEnv: [{value: 'false', name: OCI_STORAGE}]\nhelmops: {enabled: true}   # mine\n",
			want: "extraEnv: [{value: 'false', name: OCI_STORAGE}]\nhelmops: {enabled: true}   # mine\n"},
		"null":      {version: today, text: "extraEnv: null\nhelmops:\n", want: "extraEnv:\n    - name: OCI_STORAGE\n      value: \"false\"\nhelmops:\n    enabled: true\n"},
		"no YAML":   {version: today, text: "a: [", err: "is not YAML"},
		"no values": {version: today, text: "hello", err: "is not a map of chart values"},
		"odd":       {version: today, text: "extraEnv: {}\n", err: "has a type that the chart does not accept"},
	} {
		got, err := withGates(gatesOf(test.text), on, test.version)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", name, err, test.err)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(test.want, got))
		}
		if again, err := withGates(gatesOf(got), on, test.version); err != nil || again != got {
			t.Errorf("%s: a second time it is %q: %v", name, again, err)
		}
	}
}

func TestChartValues(t *testing.T) {
	user := map[string]any{
		"bootstrap": map[string]any{"enabled": true, "namespace": "mine"}, "debug": true,
		"extraEnv": []any{map[string]any{"name": "FOO", "value": "bar"}},
	}
	s := state{fleet: released("0.16.0", user), server: &server{url: "https://a", ca: "CA"}, FleetConfig: addonsv1.FleetConfig{FeatureGates: &addonsv1.FeatureGates{ExperimentalHelmOps: ptr.To(false)}}}
	want := map[string]any{
		"bootstrap": map[string]any{"enabled": true, "namespace": "mine"}, "debug": true, "apiServerURL": "https://a", "apiServerCA": "CA",
		"extraEnv": []any{map[string]any{"name": "FOO", "value": "bar"}, map[string]any{"name": "OCI_STORAGE", "value": "true"}},
		"helmops":  map[string]any{"enabled": false},
	}
	if diff := cmp.Diff(want, s.chartValues(semver.MustParse("0.16.0"))); diff != "" {
		t.Error(diff)
	}
	if len(user) != 3 || len(user["extraEnv"].([]any)) != 1 {
		t.Errorf("what was read has changed: %v", user)
	}
	s.BootstrapLocalCluster = ptr.To(false)
	if s.chartValues(semver.MustParse("0.12.0"))["bootstrap"].(map[string]any)["enabled"] != false {
		t.Error("bootstrapLocalCluster is not acted on")
	}
	if _, known := s.chartValues(semver.MustParse("0.12.0"))["helmops"]; known {
		t.Error("0.12 does not know helmops.enabled")
	}
}

func TestInfer(t *testing.T) {
	slice := func(family discoveryv1.AddressType, address string, ports ...discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{AddressType: family, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}, Ports: ports}
	}
	port := func(name string, number int32) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: ptr.To(name), Port: ptr.To(number)}
	}
	unnamed := discoveryv1.EndpointPort{Port: ptr.To[int32](8443)}
	notReady := slice(discoveryv1.AddressTypeIPv4, "10.0.0.1", port("https", 6443))
	notReady.Endpoints[0].Conditions.Ready = ptr.To(false)
	info := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{"kubeconfig": text}}
	}
	good := "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster: {server: \"https://kube:6443\", certificate-authority-data: Q0E=}\n"
	for name, test := range map[string]struct {
		published
		url, ca, from string
		problem       bool
	}{
		"kubeadm":           {published: published{clusterInfo: info(good)}, url: "https://kube:6443", ca: "CA", from: "cluster-info"},
		"kubeadm, broken":   {published: published{clusterInfo: info("{"), slice: slice(discoveryv1.AddressTypeIPv4, "10.0.0.1", port("https", 6443)), rootCA: "R"}, url: "https://10.0.0.1:6443", ca: "R", from: "EndpointSlice default/kubernetes"},
		"IPv6":              {published: published{slice: slice(discoveryv1.AddressTypeIPv6, "fd00::1", port("https", 6443)), rootCA: "R"}, url: "https://[fd00::1]:6443", ca: "R", from: "EndpointSlice default/kubernetes"},
		"several ports":     {published: published{slice: slice(discoveryv1.AddressTypeIPv4, "10.0.0.1", port("metrics", 9090), port("https", 6443)), rootCA: "R"}, url: "https://10.0.0.1:6443", ca: "R"},
		"one without name":  {published: published{slice: slice(discoveryv1.AddressTypeIPv4, "10.0.0.1", unnamed), rootCA: "R"}, url: "https://10.0.0.1:8443", ca: "R"},
		"443 without name":  {published: published{slice: slice(discoveryv1.AddressTypeIPv4, "10.0.0.1", unnamed, discoveryv1.EndpointPort{Port: ptr.To[int32](443)}), rootCA: "R"}, url: "https://10.0.0.1:443", ca: "R"},
		"nothing":           {published: published{rootCA: "R"}, problem: true},
		"not ready":         {published: published{slice: notReady, rootCA: "R"}, problem: true},
		"two unknown ports": {published: published{slice: slice(discoveryv1.AddressTypeIPv4, "10.0.0.1", port("a", 1), port("b", 2)), rootCA: "R"}, problem: true},
		"no CA":             {published: published{slice: slice(discoveryv1.AddressTypeIPv4, "10.0.0.1", port("https", 6443))}, problem: true},
	} {
		if test.clusterInfo == nil {
			test.clusterInfo = &corev1.ConfigMap{}
		}
		if test.slice == nil {
			test.slice = &discoveryv1.EndpointSlice{}
		}
		got, problem := test.infer(server{}, &sighting{}, now)
		if (problem != nil) != test.problem {
			t.Errorf("%s: %v", name, problem)
		}
		if problem == nil && (got.url != test.url || got.ca != test.ca || !strings.Contains(got.from, test.from)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// While an API server restarts, its address is missing for a while. The address for agents changes
// only if it stays away.
func TestInferHolds(t *testing.T) {
	at := func(addresses ...string) *published {
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](6443)}}}
		for _, address := range addresses {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
		}
		return &published{clusterInfo: &corev1.ConfigMap{}, slice: slice, rootCA: "R"}
	}
	known := &published{rootCA: "R", clusterInfo: &corev1.ConfigMap{Data: map[string]string{"kubeconfig": "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster: {server: \"https://10.0.0.7:6443\", certificate-authority-data: Ug==}\n"}}}
	type reading struct {
		after time.Duration
		*published
		want string
	}
	for name, test := range map[string]struct {
		inForce  string
		ca       string
		readings []reading
	}{
		"one disappears and comes back": {readings: []reading{
			{0, at("10.0.0.1", "10.0.0.2"), "10.0.0.1"}, {time.Minute, at("10.0.0.2"), "10.0.0.1"}, {4 * time.Minute, at("10.0.0.1", "10.0.0.2"), "10.0.0.1"},
			{8 * time.Minute, at("10.0.0.2"), "10.0.0.1"},
		}},
		"one disappears for good": {readings: []reading{{0, at("10.0.0.1", "10.0.0.2"), "10.0.0.1"}, {5 * time.Minute, at("10.0.0.2"), "10.0.0.2"}, {6 * time.Minute, at("10.0.0.1", "10.0.0.2"), "10.0.0.2"}}},
		"a smaller one appears":   {readings: []reading{{0, at("10.0.0.2"), "10.0.0.2"}, {time.Minute, at("10.0.0.1", "10.0.0.2"), "10.0.0.2"}}},
		"none is ready":           {readings: []reading{{0, at("10.0.0.2"), "10.0.0.2"}, {time.Minute, at(), "10.0.0.2"}}},
		"the installer is new":    {inForce: "10.0.0.3", ca: "R", readings: []reading{{0, at("10.0.0.1"), "10.0.0.3"}, {time.Minute, at("10.0.0.1"), "10.0.0.3"}, {5 * time.Minute, at("10.0.0.1"), "10.0.0.1"}}},
		"another cluster's":       {inForce: "10.0.0.3", ca: "other", readings: []reading{{0, at("10.0.0.1"), "10.0.0.1"}}},
		"a source is removed":     {readings: []reading{{0, known, "10.0.0.7"}, {15 * time.Second, at("10.0.0.1"), "10.0.0.1"}}},
	} {
		inForce, last := server{}, &sighting{}
		if test.inForce != "" {
			inForce = server{url: "https://" + test.inForce + ":6443", ca: test.ca}
		}
		for i, reading := range test.readings {
			got, problem := reading.infer(inForce, last, now.Add(reading.after))
			if problem != nil || got.url != "https://"+reading.want+":6443" {
				t.Fatalf("%s, look %d: %+v, %v, want %s", name, i, got, problem, reading.want)
			}
			inForce = *got
		}
	}
}
