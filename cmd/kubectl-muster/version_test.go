package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func deployed(name, image string) *appsv1.Deployment {
	result := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: name, Labels: map[string]string{"app.kubernetes.io/name": "muster"}}}
	result.Spec.Template.Spec.Containers = []corev1.Container{{Name: "manager", Image: image}}
	return result
}

// TestVersionSkew compares the versions with the rule in docs/support.md.
func TestVersionSkew(t *testing.T) {
	const digest = "@sha256:" + "aa"
	for name, test := range map[string]struct {
		own    string
		images []string
		want   string
	}{
		"the same":               {"v0.1.0", []string{"ghcr.io/a:v0.1.0", "localhost:5000/b:v0.1.0" + digest}, ""},
		"no tag":                 {"v0.1.0", []string{"localhost:5000/b" + digest}, ""},
		"a build":                {"devel", []string{"a:v0.1.0"}, ""},
		"one minor":              {"v0.2.0", []string{"a:v0.1.3", "b:v0.2.0"}, "the versions differ, from 0.1.3 to 0.2.0; one minor release apart is supported"},
		"two minors":             {"v0.3.0", []string{"a:v0.1.3", "b:v0.2.0"}, "the versions differ, from 0.1.3 to 0.3.0; more than one minor release apart is not supported: upgrade one minor release at a time"},
		"two minors without own": {"devel", []string{"a:v0.10.0", "b:v0.2.0"}, "the versions differ, from 0.2.0 to 0.10.0; more than one minor release apart is not supported: upgrade one minor release at a time"},
		"major":                  {"v1.0.0", []string{"a:v0.1.0"}, "the versions differ, from 0.1.0 to 1.0.0; more than one minor release apart is not supported: upgrade one minor release at a time"},
	} {
		var deployments []appsv1.Deployment
		for _, image := range test.images {
			deployments = append(deployments, *deployed("x", image))
		}
		if got := versionsOf(test.own, deployments).Skew; got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestVersion(t *testing.T) {
	other := deployed("other", "other:v1")
	other.Labels = nil
	for name, test := range map[string]struct {
		objects []client.Object
		args    string
		want    string
	}{
		"text": {[]client.Object{deployed("muster-webhook", "a/muster-webhook:v0.3.0"), deployed("muster-syncer", "a/muster-syncer:v0.1.0"), other}, "", "muster-system/muster-syncer    a/muster-syncer:v0.1.0\n" +
			"muster-system/muster-webhook   a/muster-webhook:v0.3.0\nskew: the versions differ, from "},
		"none":  {[]client.Object{other}, "", "no component of Muster runs here\n"},
		"names": {[]client.Object{deployed("muster-syncer", "a:v0.1.0")}, "-o name", "deployment.apps/muster-syncer\n"},
		"json":  {[]client.Object{deployed("muster-syncer", "a:v0.1.0")}, "-o jsonpath={.components[0].image}", "a:v0.1.0"},
	} {
		out, err := onServer(t.Context(), fake.NewClientBuilder().WithObjects(test.objects...).Build(), append([]string{"version"}, strings.Fields(test.args)...)...)
		if first, rest, found := strings.Cut(out, "\n"); found && strings.HasPrefix(first, "this command: ") {
			out = rest
		}
		if got := out[:min(len(out), len(test.want))]; err != nil || got != test.want {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, cmp.Diff(test.want, out))
		}
	}
}
