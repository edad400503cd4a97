package installer

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// An object that the user names may be missing, unreadable or unusable. Each case is not an error, but a condition
// that says what to do.
func TestNamedObjects(t *testing.T) {
	repository := version("0.17.0")
	repository.Install.RepositorySecretRef = &addonsv1.RepositorySecretReference{Name: "charts"}
	server := func(kind string) addonsv1.FleetAddonConfigSpec {
		spec := custom()
		spec.Config.Server.Custom.APIServerCAConfigRef = &corev1.ObjectReference{Kind: kind, Namespace: "team", Name: "ca"}
		return spec
	}
	at := metav1.ObjectMeta{Namespace: "team", Name: "ca"}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-system", Name: "rancher-config"}, Data: map[string]string{gatesKey: ""}}
	for name, test := range map[string]struct {
		spec      addonsv1.FleetAddonConfigSpec
		objects   []client.Object
		forbidden string
		kind      string
		want      string
	}{
		"the repository's Secret is missing": {spec: repository, kind: addonsv1.FleetInstalledCondition, want: "False SecretUnusable: spec.install.repositorySecretRef: Secret cattle-fleet-system/charts does not exist"},
		"it may not be read":                 {spec: repository, forbidden: "get secrets", kind: addonsv1.FleetInstalledCondition, want: "False SecretUnusable: spec.install.repositorySecretRef: Secret cattle-fleet-system/charts: the installer may not read it"},
		"no CA":                              {spec: server(""), kind: addonsv1.FleetConfiguredCondition, want: "False CAUnusable: ConfigMap team/ca does not exist"},
		"the CA may not be read":             {spec: server("Secret"), forbidden: "get secrets", kind: addonsv1.FleetConfiguredCondition, want: "False CAUnusable: Secret team/ca: the installer may not read it"},
		"an invalid CA":                      {spec: server("Secret"), objects: []client.Object{&corev1.Secret{ObjectMeta: at, Data: map[string][]byte{"ca.crt": []byte("x")}}}, kind: addonsv1.FleetConfiguredCondition, want: "False CAUnusable: Secret team/ca: "},
		"no key with a CA":                   {spec: server("ConfigMap"), objects: []client.Object{&corev1.ConfigMap{ObjectMeta: at}}, kind: addonsv1.FleetConfiguredCondition, want: "False CAUnusable: ConfigMap team/ca: "},
		"the ConfigMap for gates is missing": {spec: gated("rancher-config"), kind: addonsv1.FleetConfiguredCondition, want: "False FeatureGatesUnwritable: ConfigMap cattle-system/rancher-config does not exist"},
		"gates may not be written":           {spec: gated("rancher-config"), objects: []client.Object{config}, forbidden: "patch configmaps", kind: addonsv1.FleetConfiguredCondition, want: "False FeatureGatesUnwritable: ConfigMap cattle-system/rancher-config: the installer may not change it"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, test.spec, append(test.objects, fleetSettings())...)
			p.releases[FleetChart] = released("0.16.0", nil)
			p.releases[CRDChart] = released("0.16.0", nil)
			p.forbidden = test.forbidden
			reported := p.after(0, test.kind)
			if got := summary(&reported); !strings.HasPrefix(got, test.want) {
				t.Errorf("told %q, want %q", got, test.want)
			}
		})
	}
}
