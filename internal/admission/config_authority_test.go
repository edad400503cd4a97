package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/authority/authoritytest"
)

// authorities simulates the API server for ConfigMaps and Secrets; each value is a ca.crt.
type authorities struct {
	client.Reader
	data map[string]string // by "configmaps/namespace/name"
	err  error
	read int
}

func (a *authorities) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	a.read++
	if a.err != nil {
		return a.err
	}
	resource := "configmaps"
	if _, isSecret := object.(*corev1.Secret); isSecret {
		resource = "secrets"
	}
	text, found := a.data[resource+"/"+key.String()]
	if !found {
		return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, key.Name)
	}
	if text != "" {
		switch object := object.(type) {
		case *corev1.ConfigMap:
			object.Data = map[string]string{"ca.crt": text}
		case *corev1.Secret:
			object.Data = map[string][]byte{"ca.crt": []byte(text)}
		}
	}
	return nil
}

func TestConfigAuthorities(t *testing.T) {
	const (
		custom        = `config: {server: {custom: {apiServerCaConfigRef: {kind: ConfigMap, namespace: ns, name: ca}}}}`
		short         = `config: {server: {apiServerCaConfigRef: {namespace: ns, name: ca}}}`
		secret        = `config: {server: {custom: {apiServerCaConfigRef: {kind: Secret, namespace: ns, name: ca}}}}`
		other         = `config: {server: {custom: {apiServerCaConfigRef: {kind: ConfigMap, namespace: ns, name: other}}}}`
		repository    = `install: {version: 0.16.0, repositorySecretRef: {name: charts}}`
		elsewhere     = `install: {version: 0.16.0, repository: "https://charts.example.net", repositorySecretRef: {name: charts}}`
		repositoryRef = "spec.install.repositorySecretRef"
		customRef     = "spec.config.server.custom.apiServerCaConfigRef"
		shortRef      = "spec.config.server.apiServerCaConfigRef"
		mayNot        = `user "anna" may not get configmaps "ca" in namespace "ns"`
		unread        = "is not checked, because Muster may not read it"
	)
	ca := authoritytest.CA(t, time.Now().Add(time.Hour))
	good := map[string]string{"configmaps/ns/ca": ca, "secrets/ns/ca": ca}
	unreadable := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "ca", nil)
	for name, test := range map[string]struct {
		data      map[string]string
		err       error
		denied    bool // the authorizer denies the author access
		old, spec string
		refused   []string
		message   string // of the refusal
		warning   string
		asked     int
		unread    bool // the validator reads nothing
	}{
		"good":                                           {data: good, spec: custom, asked: 1},
		"the kind is ConfigMap":                          {spec: short, refused: []string{shortRef}, asked: 1},
		"gone":                                           {spec: custom, refused: []string{customRef}, message: "no such ConfigMap; create it first", asked: 1},
		"empty":                                          {data: map[string]string{"configmaps/ns/ca": ""}, spec: custom, refused: []string{customRef}, message: "the ConfigMap has no key ca.crt", asked: 1},
		"cannot be read":                                 {err: errors.New("broken"), spec: custom, warning: "cannot be read now, so it is not checked", asked: 1},
		"may not be read":                                {err: unreadable, spec: custom, warning: "ConfigMap ns/ca " + unread, asked: 1},
		"a Secret":                                       {data: good, spec: secret, asked: 1},
		"a Secret, gone":                                 {spec: secret, refused: []string{customRef}, message: "no such Secret", asked: 1},
		"a Secret, empty":                                {data: map[string]string{"secrets/ns/ca": ""}, spec: secret, refused: []string{customRef}, message: "the Secret has no key ca.crt", asked: 1},
		"a Secret that may not be read":                  {err: unreadable, spec: secret, warning: "Secret ns/ca " + unread, asked: 1},
		"a repository's Secret":                          {spec: repository, asked: 1, unread: true},
		"the author may not: a repository":               {denied: true, spec: repository, refused: []string{repositoryRef}, message: `may not get secrets "charts" in namespace "cattle-fleet-system", which this would send to the repository`, asked: 1, unread: true},
		"update: the same repository":                    {denied: true, old: repository, spec: repository, unread: true},
		"update: elsewhere, may not":                     {denied: true, old: repository, spec: elsewhere, refused: []string{repositoryRef}, message: "which this would send to the repository", asked: 1, unread: true},
		"update: elsewhere":                              {old: repository, spec: elsewhere, asked: 1, unread: true},
		"update: elsewhere, no Secret":                   {denied: true, old: `install: {version: 0.16.0}`, spec: `install: {version: 0.16.0, repository: "https://charts.example.net"}`, unread: true},
		"incomplete: one error only":                     {spec: `config: {server: {custom: {apiServerCaConfigRef: {namespace: ns}}}}`, refused: []string{customRef + ".name"}, unread: true},
		"the author may not":                             {data: good, denied: true, spec: custom, refused: []string{customRef}, message: mayNot, asked: 1, unread: true},
		"the author may not, shorthand":                  {denied: true, spec: short, refused: []string{shortRef}, message: mayNot, asked: 1, unread: true},
		"the author may not: a Secret":                   {data: good, denied: true, spec: secret, refused: []string{customRef}, message: `may not get secrets "ca"`, asked: 1, unread: true},
		"update: the object was gone before":             {old: custom, spec: custom, warning: "no such ConfigMap"},
		"update: the same reference, no check":           {data: good, denied: true, old: custom, spec: custom},
		"update: another one":                            {old: custom, spec: other, refused: []string{customRef}, message: "no such ConfigMap", asked: 1},
		"update: another one, may not":                   {denied: true, old: custom, spec: other, refused: []string{customRef}, message: "may not get configmaps", asked: 1, unread: true},
		"update: another kind, may not":                  {data: good, denied: true, old: custom, spec: secret, refused: []string{customRef}, message: "may not get secrets", asked: 1, unread: true},
		"update: moved":                                  {old: short, spec: custom, refused: []string{customRef}, asked: 1},
		"update: to a valid one":                         {data: good, old: other, spec: custom, asked: 1},
		"update: the default kind, spelt":                {data: good, denied: true, old: strings.Replace(custom, "kind: ConfigMap, ", "", 1), spec: custom},
		"update: the refused reference in another field": {data: good, old: custom, spec: strings.Replace(custom, "}}}}", "}}}}, cluster: {agentEnvVars: [{name: \"A=\"}]}", 1), refused: []string{"spec.cluster.agentEnvVars[0].name"}},
	} {
		t.Run(name, func(t *testing.T) {
			live, reviewer := &authorities{data: test.data, err: test.err}, newReviewer(!test.denied)
			validator, config := ConfigValidator{Reviewer: reviewer, Live: live}, configOf(t, "{"+test.spec+"}")
			var warned []string
			var err error
			if test.old == "" {
				warned, err = validator.ValidateCreate(asAnna(t.Context()), config)
			} else {
				warned, err = validator.ValidateUpdate(asAnna(t.Context()), configOf(t, test.old), config)
			}
			if diff := cmp.Diff(test.refused, refusedFields(t, err)); diff != "" {
				t.Errorf("refused fields (-want +got):\n%s", diff)
			}
			if test.message != "" && !strings.Contains(fmt.Sprint(err), test.message) {
				t.Errorf("%v does not say %q", err, test.message)
			}
			found := false
			for _, warning := range warned {
				found = found || strings.HasPrefix(warning, "spec.config.server") && strings.Contains(warning, test.warning)
			}
			if found != (test.warning != "") {
				t.Errorf("warnings %q, want %q", warned, test.warning)
			}
			if len(reviewer.asked) != test.asked || test.unread && live.read > 0 {
				t.Errorf("asked %v, read %d", reviewer.asked, live.read)
			}
		})
	}
}

func newReviewer(allow bool) *reviewer { return &reviewer{allow: allow} }

// asAnna puts a request by anna into a context.
func asAnna(ctx context.Context) context.Context {
	req := admission.Request{}
	req.UserInfo = authenticationv1.UserInfo{
		Username: "anna", UID: "42", Groups: []string{"devs"}, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a"}},
	}
	return admission.NewContextWithRequest(ctx, req)
}

// The question names the author with all attributes that the API server knows. If the authorizer does not answer,
// the webhook cannot decide.
func TestConfigAuthorityAsksAboutTheWholeIdentity(t *testing.T) {
	config := configOf(t, `config: {server: {apiServerCaConfigRef: {kind: Secret, namespace: ns, name: ca}}}`)
	asked := newReviewer(true)
	if _, err := (ConfigValidator{Reviewer: asked}).ValidateCreate(asAnna(t.Context()), config); err != nil {
		t.Fatal(err)
	}
	want := []authorizationv1.SubjectAccessReviewSpec{{
		User: "anna", UID: "42", Groups: []string{"devs"}, Extra: map[string]authorizationv1.ExtraValue{"scopes": {"a"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "secrets", Namespace: "ns", Name: "ca"},
	}}
	if diff := cmp.Diff(want, asked.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}

	for name, ctx := range map[string]context.Context{"nobody answers": asAnna(t.Context()), "no request": t.Context()} {
		_, err := ConfigValidator{Reviewer: &reviewer{allow: true, err: errors.New("broken")}}.ValidateCreate(ctx, config)
		if !apierrors.IsInternalError(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
