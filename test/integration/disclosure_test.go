package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

const (
	// confidential is a text that no account may read, and guess is another text like it.
	confidential, guess = "correct-horse-battery-staple", "incorrect-mule-fuse-paperclip"
	foreignNamespace    = "bank"
)

// sample is an object that holds a confidential text; pointer is the JSON Pointer to it.
type sample struct{ apiVersion, kind, resource, namespace, pointer string }

func (s sample) path() string {
	group := "/apis/" + s.apiVersion
	if s.apiVersion == "v1" {
		group = "/api/v1"
	}
	return fmt.Sprintf("%s/namespaces/%s/%s", group, s.namespace, s.resource)
}

func (s sample) object(name string, fields map[string]any) map[string]any {
	object := map[string]any{"apiVersion": s.apiVersion, "kind": s.kind, "metadata": map[string]any{"namespace": s.namespace, "name": name}}
	maps.Copy(object, fields)
	return object
}

// value returns the text in the form in which the object holds it.
func (s sample) value(text string) string {
	if s.kind == "Secret" {
		return base64.StdEncoding.EncodeToString([]byte(text))
	}
	return text
}

// fields returns the fields of an object that holds a text.
func (s sample) fields(text string) map[string]any {
	var value any = s.value(text)
	for _, step := range slices.Backward(strings.Split(s.pointer[1:], "/")) {
		switch step {
		case "0":
			value = []any{value}
		case "value": // The value of a variable.
			value = map[string]any{"name": "PASSWORD", "value": value}
		default:
			value = map[string]any{step: value}
		}
	}
	return value.(map[string]any)
}

func secretIn(namespace string) sample {
	return sample{"v1", "Secret", "secrets", namespace, "/data/password"}
}

func ofFleet(kind, pointer string) sample {
	return sample{fleetVersion, kind, strings.ToLower(kind) + "s", foreignNamespace, pointer}
}

// samples has one sample of every kind that may hold a confidential text, under its name in the table of rights.
var samples = map[string]sample{
	"Secrets":                                 secretIn(foreignNamespace),
	"Secrets of kube-system":                  secretIn("kube-system"),
	"Secrets of muster-system":                secretIn("muster-system"),
	"Secrets of cattle-fleet-system":          secretIn("cattle-fleet-system"),
	"Secrets of cattle-fleet-clusters-system": secretIn("cattle-fleet-clusters-system"),
	"ConfigMaps":                              {"v1", "ConfigMap", "configmaps", foreignNamespace, "/data/password"},
	"values of Bundles":                       ofFleet("Bundle", "/spec/helm/values/password"),
	"values of BundleDeployments":             ofFleet("BundleDeployment", "/spec/options/helm/values/password"),
	"ClusterRegistrations":                    ofFleet("ClusterRegistration", "/spec/clientRandom"),
	"environment of Fleet Clusters":           ofFleet("Cluster", "/spec/agentEnvVars/0/value"),
}

// rights lists what each account may see of others' objects, with the reason. docs/threat-model.md says the same.
// Nothing else may reach an account, in an answer or an error.
var rights = map[string]map[string]string{
	"muster-webhook": {
		"environment of Fleet Clusters": "it reads Fleet Clusters, for names that are taken",
	},
	"muster-syncer": {
		"environment of Fleet Clusters": "it writes Fleet Clusters",
		"values of Bundles":             "it annotates Bundles, and a patch is answered with the object",
		"values of BundleDeployments":   "it lists what is still deployed through a mapping",
	},
	"muster-registrar": {
		"Secrets of cattle-fleet-clusters-system": "Fleet leaves the credentials of agents there, and it keeps its own",
		"ClusterRegistrations":                    "it makes them",
		"values of Bundles":                       "it reads Fleet's Bundle of each agent",
		"environment of Fleet Clusters":           "it reads Fleet Clusters",
	},
	"muster-installer": {
		"Secrets of cattle-fleet-system": "Helm keeps releases there, in Secrets",
		"ConfigMaps":                     "certificate authorities that a FleetAddonConfig names",
	},
	"muster-helm": {
		"ConfigMaps":                    "values that HelmChartProxies name",
		"values of Bundles":             "it writes Bundles",
		"values of BundleDeployments":   "it reports how releases fare",
		"environment of Fleet Clusters": "it reads whose Fleet Cluster a target is",
	},
}

// attempt is one request; path and query are added to the path and query of the collection.
type attempt struct {
	what, method, path, contentType string
	query                           url.Values
	body                            any
}

const (
	jsonPatch = "application/json-patch+json"
	applied   = "application/apply-patch+yaml"
)

func try(method, path, contentType, query string, body any) attempt {
	values, err := url.ParseQuery(query)
	if err != nil {
		panic(err)
	}
	return attempt{fmt.Sprintf("%s %s %s %s %v", method, path, contentType, query, body), method, path, contentType, values, body}
}

// attempts returns every request that makes the API server answer with an object, or with a part of it.
func (s sample) attempts(name string) []attempt {
	one, guessed := "/"+name, s.object(name, s.fields(guess))
	other := maps.Clone(guessed)
	other["type"], other["immutable"] = "example.com/other", true
	all := []attempt{try(http.MethodGet, "", "", "", nil), try(http.MethodPut, one, "application/json", "", other),
		try(http.MethodGet, "", "", "watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", nil)}
	for _, to := range []string{"/type", "/kind", "/metadata/name", "/metadata/labels", "/metadata/labels/leak", "/metadata/generateName"} {
		all = append(all, try(http.MethodPatch, one, jsonPatch, "", []any{map[string]any{"op": "copy", "from": s.pointer, "path": to}}))
	}
	for _, path := range []string{one, one + "/status"} {
		all = append(all, try(http.MethodGet, path, "", "", nil), try(http.MethodPut, path, "application/json", "", guessed))
		for _, patch := range []string{"merge", "strategic-merge"} {
			all = append(all, try(http.MethodPatch, path, "application/"+patch+"-patch+json", "", map[string]any{}))
		}
		for _, query := range []string{"fieldManager=thief&force=true", "fieldManager=thief&force=false"} {
			all = append(all, try(http.MethodPatch, path, applied, query, s.object(name, nil)), try(http.MethodPatch, path, applied, query, guessed))
		}
	}
	for _, query := range []string{"", "propagationPolicy=Background", "propagationPolicy=Foreground", "propagationPolicy=Orphan"} {
		all = append(all, try(http.MethodDelete, one, "", query, nil), try(http.MethodDelete, "", "", query, nil))
	}
	for _, its := range all {
		if its.method != http.MethodGet {
			its.query, its.what = maps.Clone(its.query), its.what+", dry"
			its.query.Set("dryRun", "All")
			all = append(all, its)
		}
	}
	return all
}

// oracles returns pairs of requests, one with the right text and one with a guess: if the answers differ, they
// disclose the text.
func (s sample) oracles(name string) (pairs [][2]attempt) {
	test := func(text string) any {
		return []any{map[string]any{"op": "test", "path": s.pointer, "value": s.value(text)}}
	}
	write := func(text string) any { return s.object(name, s.fields(text)) }
	for _, how := range []struct {
		contentType, query string
		body               func(string) any
	}{{jsonPatch, "dryRun=All", test}, {applied, "fieldManager=thief&force=false&dryRun=All", write}} {
		pairs = append(pairs, [2]attempt{
			try(http.MethodPatch, "/"+name, how.contentType, how.query, how.body(confidential)), try(http.MethodPatch, "/"+name, how.contentType, how.query,
				how.body(guess)),
		})
	}
	return pairs
}

// account sends requests as one of our accounts.
type account struct {
	http *http.Client
	host string
}

func accountOf(g Gomega, name string) account {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	config.UserAgent = thiefAgent
	config.Impersonate = rest.ImpersonationConfig{
		UserName: stack.ServiceAccount("muster-system", name),
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:muster-system", "system:authenticated"},
	}
	its, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	return account{its, config.Host}
}

func (a account) send(g Gomega, s sample, its attempt) (code int, answer string) {
	var body io.Reader
	if its.body != nil {
		content, err := json.Marshal(its.body)
		g.Expect(err).NotTo(HaveOccurred())
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequestWithContext(ctx, its.method, a.host+s.path()+its.path+"?"+its.query.Encode(), body)
	g.Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Content-Type", its.contentType)
	request.Header.Set("User-Agent", thiefAgent)
	response, err := a.http.Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return response.StatusCode, string(content)
}

func discloses(answer string) bool {
	return strings.Contains(answer, confidential) || strings.Contains(answer, base64.StdEncoding.EncodeToString([]byte(confidential)))
}

// Each sample has two objects: the first can go at once, a finalizer holds the second.
var sampleNames = []string{"plain", "held"}

// put restores both objects.
func (s sample) put(g Gomega) {
	for _, name := range sampleNames {
		want := &unstructured.Unstructured{Object: s.object(name, s.fields(confidential))}
		have := want.DeepCopy()
		if err := admin.Get(ctx, client.ObjectKeyFromObject(have), have); err == nil {
			is, _ := json.Marshal(have.Object)
			if have.GetDeletionTimestamp() == nil && discloses(string(is)) && !strings.Contains(string(is), guess) && len(have.GetLabels()) == 0 {
				continue
			}
			g.Expect(client.IgnoreNotFound(admin.Patch(ctx, have.DeepCopy(), mergePatch(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
			g.Expect(client.IgnoreNotFound(admin.Delete(ctx, have.DeepCopy()))).To(Succeed())
		}
		if name == "held" {
			want.SetFinalizers([]string{"example.com/held"})
		}
		g.Eventually(func() error { return admin.Create(ctx, want.DeepCopy()) }).Should(Succeed())
	}
}

// disclosed sends every request as one account about one sample, and returns the requests that disclosed something.
func disclosed(g Gomega, a account, s sample) (which []string) {
	for _, name := range sampleNames {
		for _, its := range s.attempts(name) {
			s.put(g)
			if _, answer := a.send(g, s, its); discloses(answer) {
				which = append(which, its.what)
			}
		}
		s.put(g)
		for _, pair := range s.oracles(name) {
			right, _ := a.send(g, s, pair[0])
			if wrong, _ := a.send(g, s, pair[1]); right != wrong {
				which = append(which, pair[0].what)
			}
		}
	}
	return which
}

// The token of one of our accounts reads nothing confidential outside the table. RBAC alone limits what an answer or
// an error discloses, because the API server patches, validates and quotes before it evaluates a policy.
func TestNoAccountDisclosesSecrets(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	for _, namespace := range []string{foreignNamespace, "cattle-fleet-system", "cattle-fleet-clusters-system"} {
		create(g, named(&corev1.Namespace{}, "", namespace))
	}
	applyAllComponents(g)
	// The installer makes the same binding.
	_, err := env.Kubectl(ctx, "create", "rolebinding", "muster-installer", "--namespace=cattle-fleet-system",
		"--clusterrole=muster-installer-fleet-namespace", "--serviceaccount=muster-system:muster-installer")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed()) // A running syncer would restore what this test changes.

	// The accounts try each kind's samples one after another.
	tryAll := func(t *testing.T, kinds func(kind string) bool) {
		for kind, s := range samples {
			if !kinds(kind) {
				continue
			}
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				for name, allowed := range rights {
					g := NewWithT(t)
					which := disclosed(g, accountOf(g, name), s)
					if reason := allowed[kind]; reason != "" {
						g.Expect(which).NotTo(BeEmpty(), "the table says that %s may: %s", name, reason)
					} else {
						g.Expect(which).To(BeEmpty(), name)
					}
				}
			})
		}
	}
	every := func(string) bool { return true }
	t.Run("as shipped", func(t *testing.T) { tryAll(t, every) })

	// A policy takes effect about a second after it is applied, and a user may remove one.
	_, err = env.Kubectl(ctx, "delete", "validatingadmissionpolicybindings", "--all")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		s := secretIn(foreignNamespace)
		code, answer := accountOf(g, "muster-helm").send(g, s, try(http.MethodPost, "", "application/json", "dryRun=All", s.object("new", s.fields(guess))))
		g.Expect(code).To(Equal(http.StatusCreated), answer)
	}).Should(Succeed())
	t.Run("without policies", func(t *testing.T) {
		tryAll(t, func(kind string) bool { return slices.Contains(strings.Fields(kind), "Secrets") })
	})
}
