package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func byAgents() *Chart { return &Chart{Source: "source", Version: "1.0.3", Agent: true} }

// What each field that says where the chart is leads to.
func TestHelmOp(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxySpec)
		target Target
		want   string
	}{
		"a repository, a range": {
			change: func(s *addonsv1.HelmChartProxySpec) { s.Version = "1.0.x" },
			target: Target{Fleet: "a"},
			want: `defaultNamespace: default
helm:
  chart: nginx
  disablePreProcess: true
  maxHistory: 10
  releaseName: nginx
  repo: https://charts.example.com
  values:
    global: {}
  version: 1.0.3
targets:
- clusterName: a
  helm:
    version: 1.0.3
  name: a
`,
		},
		"a registry, values of its own": {
			change: func(s *addonsv1.HelmChartProxySpec) { s.RepoURL = "oci://registry.example.com/charts/" },
			target: Target{Fleet: "a", Values: []byte("v: 1")},
			want: `defaultNamespace: default
helm:
  disablePreProcess: true
  maxHistory: 10
  releaseName: nginx
  repo: oci://registry.example.com/charts/nginx
  version: 1.0.3
targets:
- clusterName: a
  downstreamResources:
  - kind: ConfigMap
    name: hcp-nginx.for.a
  helm:
    valuesFrom:
    - configMapKeyRef:
        key: values.yaml
        name: hcp-nginx.for.a
    version: 1.0.3
  name: a
`,
		},
		"credentials, no verification, all the rest": {
			change: func(s *addonsv1.HelmChartProxySpec) {
				s.Credentials, s.TLSConfig = &addonsv1.Credentials{}, &addonsv1.TLSConfig{InsecureSkipTLSVerify: true}
				s.ReconcileStrategy, s.CorrectDrift = addonsv1.ReconcileStrategyInstallOnce, ptr.To(true)
				s.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(2))}
				s.ReleaseNamespace, s.Options.Atomic = "web", true
			},
			target: Target{Fleet: "a", Kept: true},
			want: `correctDrift:
  enabled: true
defaultNamespace: web
helm:
  atomic: true
  chart: nginx
  disablePreProcess: true
  maxHistory: 10
  releaseName: nginx
  repo: https://charts.example.com
  timeoutSeconds: 600
  version: 1.0.3
helmSecretName: hcp-nginx.for-agents-94217de5
insecureSkipTLSVerify: true
keepResources: true
rolloutStrategy:
  maxUnavailable: 2
targets:
- clusterName: a
  downstreamResources:
  - kind: ConfigMap
    name: hcp-nginx.for.a
  helm:
    valuesFrom:
    - configMapKeyRef:
        key: values.yaml
        name: hcp-nginx.for.a
    version: 1.0.3
  name: a
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			its := Make(Input{Proxy: proxy(test.change), Namespace: "team", Chart: byAgents(), Targets: []Target{test.target}}).Bundles
			if len(its) != 1 || !IsHelmOp(its[0]) {
				t.Fatalf("%d, of kind %s", len(its), its[0].Kind)
			}
			op := HelmOpOf(its[0])
			expect(t, "labels of the Bundle", op.Spec.Labels, op.Labels)
			expect(t, "kept from mappings", op.Spec.Labels[unmappedLabel], unmappedLabelValue)
			expect(t, "version", op.Annotations[VersionAnnotation], "1.0.3")
			op.Spec.Labels = nil
			expect(t, "spec", toYAML(t, op.Spec), test.want)
			back := BundleFor(op)
			back.Spec.HelmOpOptions = nil
			expect(t, "and back", toYAML(t, back.Spec), toYAML(t, op.Spec.BundleSpec))
		})
	}
	if none := Make(Input{Proxy: proxy(nil), Namespace: "team", Chart: byAgents(), Access: &Access{}}); len(none.Bundles)+len(none.Values) > 0 {
		t.Errorf("without targets, Fleet would take all clusters: %v", none)
	}
}

func TestAccess(t *testing.T) {
	in := Input{Proxy: proxy(func(s *addonsv1.HelmChartProxySpec) {
		s.Credentials = &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "x"}}
	}), Namespace: "team", Chart: byAgents(), Targets: []Target{{Fleet: "a"}}}
	for name, test := range map[string]struct {
		access *Access
		want   map[string]string
	}{
		"both":        {&Access{Username: "u", Password: "p", Authorities: []byte("c")}, map[string]string{"username": "u", "password": "p", "cacerts": "c"}},
		"a password":  {&Access{Password: "p"}, map[string]string{"username": "", "password": "p"}},
		"authorities": {&Access{Authorities: []byte("c")}, map[string]string{"cacerts": "c"}},
		"unknown":     {nil, nil},
	} {
		in.Access = test.access
		var got map[string]string
		for _, object := range Make(in).Values {
			secret := object.(*corev1.Secret)
			if secret.Type != AccessSecretType || secret.Name != AccessName(in.Proxy, "team") || !IsAccessName(Key{Namespace: "team", Name: "nginx"}, "team", secret.Name) {
				t.Errorf("%s: %s of type %s", name, secret.Name, secret.Type)
			}
			got = map[string]string{}
			for key, value := range secret.Data {
				got[key] = string(value)
			}
		}
		expect(t, name, got, test.want)
	}
	other := in.Proxy.DeepCopy()
	other.Spec.RepoURL = "https://evil.example.com"
	if AccessName(other, "team") == AccessName(in.Proxy, "team") {
		t.Error("another repository gets what is for the first")
	}
}

// Whether Fleet has taken a HelmOp over.
func TestFollows(t *testing.T) {
	accepted := func(status corev1.ConditionStatus, message string) func(*fleetv1.HelmOp, *fleetv1.Bundle) {
		return func(op *fleetv1.HelmOp, _ *fleetv1.Bundle) {
			op.Status.Conditions = []genericcondition.GenericCondition{{Type: fleetv1.HelmOpAcceptedCondition, Status: status, Message: message}}
		}
	}
	for name, test := range map[string]struct {
		change  func(op *fleetv1.HelmOp, bundle *fleetv1.Bundle)
		follows bool
		trouble string
	}{
		"as Fleet makes it":       {change: accepted(corev1.ConditionTrue, ""), follows: true},
		"version not known there": {change: func(_ *fleetv1.HelmOp, b *fleetv1.Bundle) { b.Spec.Helm.Version = "" }, follows: true},
		"certificates of Rancher": {change: func(_ *fleetv1.HelmOp, b *fleetv1.Bundle) { b.Spec.HelmOpOptions.CABundle = []byte("c") }, follows: true},
		"defaults of a Policy": {change: func(_ *fleetv1.HelmOp, b *fleetv1.Bundle) {
			b.Spec.ServiceAccount, b.Spec.HelmOpOptions.SecretName = "deployer", "access"
		}, follows: true},
		"refused":         {change: accepted(corev1.ConditionFalse, "no such chart"), follows: true, trouble: "HelmOp %s: no such chart"},
		"another version": {change: func(op *fleetv1.HelmOp, _ *fleetv1.Bundle) { op.Spec.Targets[0].Helm.Version = "2" }},
		"another target":  {change: func(_ *fleetv1.HelmOp, b *fleetv1.Bundle) { b.Spec.Targets = nil }},
		"another account": {change: func(op *fleetv1.HelmOp, b *fleetv1.Bundle) {
			op.Spec.ServiceAccount, b.Spec.ServiceAccount = "one", "two"
		}},
		"somebody's":         {change: func(_ *fleetv1.HelmOp, b *fleetv1.Bundle) { b.Labels = nil }},
		"with a chart in it": {change: func(_ *fleetv1.HelmOp, b *fleetv1.Bundle) { b.Spec.HelmOpOptions = nil }},
		"about to be gone":   {change: func(_ *fleetv1.HelmOp, b *fleetv1.Bundle) { b.DeletionTimestamp = ptr.To(metav1.Now()) }},
		"none, and no repository": {change: func(op *fleetv1.HelmOp, b *fleetv1.Bundle) {
			accepted(corev1.ConditionFalse, "no index")(op, b)
			b.Labels = nil
		}, trouble: "HelmOp %s: no index"},
	} {
		t.Run(name, func(t *testing.T) {
			op := HelmOpOf(Make(Input{Proxy: proxy(nil), Namespace: "team", Chart: byAgents(), Targets: []Target{{Fleet: "a"}}}).Bundles[0])
			op = op.DeepCopy()
			made := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{fleetv1.HelmOpLabel: op.Name}}, Spec: *MadeOf(op)}
			test.change(op, made)
			follows, trouble := Follows(op, made)
			if follows != test.follows {
				t.Errorf("follows: %v", follows)
			}
			want := test.trouble
			if want != "" {
				want = fmt.Sprintf(want, op.Name)
			}
			expect(t, "trouble", trouble, want)
		})
	}
	op := &fleetv1.HelmOp{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: fleetv1.HelmOpSpec{BundleSpec: fleetv1.BundleSpec{BundleDeploymentOptions: fleetv1.BundleDeploymentOptions{Helm: &fleetv1.HelmOptions{}}}}}
	if follows, _ := Follows(op, nil); follows {
		t.Error("there is no Bundle")
	}
}

// Fleet repeats in each target where the chart is.
func TestHelmOpShards(t *testing.T) {
	var targets []Target
	for i := range 1000 {
		targets = append(targets, Target{Fleet: fmt.Sprintf("cluster-%04d", i), Values: []byte("a: 1")})
	}
	its := Make(Input{Proxy: proxy(func(s *addonsv1.HelmChartProxySpec) { s.RepoURL += "/" + strings.Repeat("x", 500) }), Namespace: "team", Chart: byAgents(), Targets: targets})
	if len(its.Bundles) < 2 {
		t.Errorf("%d HelmOps", len(its.Bundles))
	}
	for _, bundle := range its.Bundles {
		data, err := yaml.YAMLToJSON([]byte(toYAML(t, MadeOf(HelmOpOf(bundle)))))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > maxBundle {
			t.Errorf("%s becomes a Bundle of %d bytes", bundle.Name, len(data))
		}
	}
}

func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
