package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// configMaps plays the API server, for ConfigMaps only; each value is a ca.crt.
type configMaps struct {
	client.Reader
	data map[string]string
	err  error
}

func (c *configMaps) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	text, found := c.data[key.String()]
	if c.err == nil && !found {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
	}
	if text != "" {
		object.(*corev1.ConfigMap).Data = map[string]string{"ca.crt": text}
	}
	return c.err
}

func caUntil(t *testing.T, until time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, NotBefore: until.Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestAuthorityProblem(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	good, old := caUntil(t, now.Add(time.Hour)), caUntil(t, now.Add(-time.Hour))
	for name, test := range map[string]struct{ text, want string }{
		"good":              {text: good},
		"two good":          {text: "# a comment\n" + good + good},
		"nothing":           {want: "has no key ca.crt"},
		"no PEM":            {text: "hello", want: "holds no certificate in PEM"},
		"a key":             {text: "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", want: "holds a PRIVATE KEY; put only certificates there"},
		"broken":            {text: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", want: "certificate 1 of ca.crt cannot be parsed"},
		"expired":           {text: old, want: "certificate 1 of ca.crt (CN=fleet) expired on 2029-12-31; replace it"},
		"the second is not": {text: good + old, want: "certificate 2 of ca.crt (CN=fleet) expired"},
	} {
		if got := authorityProblem(test.text, now); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestConfigAuthorities(t *testing.T) {
	const (
		custom    = `config: {server: {custom: {apiServerCaConfigRef: {kind: ConfigMap, namespace: ns, name: ca}}}}`
		short     = `config: {server: {apiServerCaConfigRef: {namespace: ns, name: ca}}}`
		secret    = `config: {server: {custom: {apiServerCaConfigRef: {kind: Secret, namespace: ns, name: ca}}}}`
		other     = `config: {server: {custom: {apiServerCaConfigRef: {kind: ConfigMap, namespace: ns, name: other}}}}`
		customRef = "spec.config.server.custom.apiServerCaConfigRef"
	)
	good := &configMaps{data: map[string]string{"ns/ca": caUntil(t, time.Now().Add(time.Hour))}}
	gone, broken := &configMaps{}, &configMaps{err: errors.New("broken")}
	for name, test := range map[string]struct {
		live      *configMaps
		old, spec string
		refused   []string
		warning   string
	}{
		"good":                        {live: good, spec: custom},
		"the kind is ConfigMap":       {live: gone, spec: short, refused: []string{"spec.config.server.apiServerCaConfigRef"}},
		"gone":                        {live: gone, spec: custom, refused: []string{customRef}},
		"empty":                       {live: &configMaps{data: map[string]string{"ns/ca": ""}}, spec: custom, refused: []string{customRef}},
		"cannot be read":              {live: broken, spec: custom, warning: "cannot be read now and is not checked"},
		"a Secret":                    {live: broken, spec: secret, warning: "Muster may not read Secrets"},
		"incomplete: said once":       {live: gone, spec: `config: {server: {custom: {apiServerCaConfigRef: {namespace: ns}}}}`, refused: []string{customRef + ".name"}},
		"update: gone before":         {live: gone, old: custom, spec: custom, warning: "no such ConfigMap"},
		"update: another one":         {live: gone, old: custom, spec: other, refused: []string{customRef}},
		"update: moved":               {live: gone, old: short, spec: custom, refused: []string{customRef}},
		"update: to one that is good": {live: good, old: other, spec: custom},
	} {
		t.Run(name, func(t *testing.T) {
			validator := ConfigValidator{Live: test.live}
			warned, err := validator.ValidateCreate(t.Context(), configOf(t, test.spec))
			if test.old != "" {
				warned, err = validator.ValidateUpdate(t.Context(), configOf(t, test.old), configOf(t, test.spec))
			}
			if diff := cmp.Diff(test.refused, refusedFields(t, err)); diff != "" {
				t.Errorf("refused fields (-want +got):\n%s", diff)
			}
			found := false
			for _, warning := range warned {
				found = found || strings.HasPrefix(warning, "spec.config.server") && strings.Contains(warning, test.warning)
			}
			if found != (test.warning != "") {
				t.Errorf("warnings %q, want %q", warned, test.warning)
			}
		})
	}
}

func TestConfigSurprises(t *testing.T) {
	const (
		keep = "spec.cluster.naming: the 1 Clusters that have a name in Fleet keep it; it concerns new ones only"
		none = "spec.cluster.selector: none of the 2 Clusters there are is selected now"
	)
	labeled := made("labeled", func(o *object) { o.Labels = map[string]string{"import": "true"} })
	two := &others{pinned: []object{pinnedCluster("prod", "prod"), labeled}}
	for name, test := range map[string]struct {
		others    *others
		old, spec string
		want      []string
	}{
		"nothing set":              {spec: `{}`},
		"everything selected":      {spec: `cluster: {selector: {}, namespaceSelector: {}}`},
		"one selected":             {spec: `cluster: {selector: {matchLabels: {import: "true"}}}`},
		"none selected":            {spec: `cluster: {selector: {matchLabels: {import: "no"}}}`, want: []string{none}},
		"none to select":           {others: &others{}, spec: `cluster: {selector: {matchLabels: {import: "no"}}}`, want: []string{strings.Replace(none, "2", "0", 1)}},
		"its Namespace is":         {spec: `cluster: {namespaceSelector: {matchLabels: {team: a}}}`},
		"its Namespace is not":     {spec: `cluster: {namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.namespaceSelector: none of the 2 Clusters there are is selected now"}},
		"both":                     {spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.selector and spec.cluster.namespaceSelector: none of the 2 Clusters there are is selected now"}},
		"import is off":            {spec: `cluster: {enabled: false, selector: {matchLabels: {import: "no"}}}`},
		"selectors do not parse":   {spec: `cluster: {selector: {matchExpressions: [{key: a, operator: Is}]}}`},
		"naming":                   {spec: `cluster: {naming: {prefix: p-}}`, want: []string{keep}},
		"naming as before":         {old: `cluster: {naming: {prefix: p-}}`, spec: `cluster: {naming: {prefix: p-}}`},
		"naming removed":           {old: `cluster: {naming: {prefix: p-}}`, spec: `{}`, want: []string{keep}},
		"naming, nothing pinned":   {others: &others{pinned: []object{labeled}}, spec: `cluster: {naming: {prefix: p-}}`},
		"Clusters are not served":  {others: &others{unknown: true}, spec: `cluster: {naming: {prefix: p-}, selector: {matchLabels: {import: "no"}}}`},
		"Clusters cannot be known": {others: &others{err: errors.New("broken")}, spec: `cluster: {naming: {prefix: p-}}`},
	} {
		t.Run(name, func(t *testing.T) {
			if test.others == nil {
				test.others = two
			}
			if test.old == "" {
				test.old = `{}`
			}
			validator := ConfigValidator{Others: test.others, Namespaces: configured(t, `{}`)}
			got := validator.surprises(t.Context(), configOf(t, test.old), configOf(t, test.spec))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}

	warned, err := ConfigValidator{Others: two}.ValidateDelete(t.Context(), configOf(t, `{}`))
	if err != nil || len(warned) != 1 || !strings.HasPrefix(warned[0], "1 Clusters stay imported into Fleet, and without a FleetAddonConfig the defaults hold") {
		t.Errorf("ValidateDelete = %v, %v", warned, err)
	}
}
