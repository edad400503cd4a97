package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

const (
	// confidential is what nobody is to read, and guess is another text like it.
	confidential, guess = "correct-horse-battery-staple", "incorrect-mule-fuse-paperclip"
	foreignNamespace    = "bank"
)

// sample is an object that holds something confidential.
type sample struct {
	apiVersion, kind, resource, namespace string
	// pointer is where it is, as JSON Patch names it, and fields make an object that holds a text there.
	pointer string
	fields  func(text string) map[string]any
}

func (s sample) path() string {
	group := "/apis/" + s.apiVersion
	if s.apiVersion == "v1" {
		group = "/api/v1"
	}
	return fmt.Sprintf("%s/namespaces/%s/%s", group, s.namespace, s.resource)
}

func (s sample) object(name string, fields map[string]any) map[string]any {
	object := map[string]any{"apiVersion": s.apiVersion, "kind": s.kind, "metadata": map[string]any{"namespace": s.namespace, "name": name}}
	for key, value := range fields {
		object[key] = value
	}
	return object
}

func secretIn(namespace string) sample {
	return sample{"v1", "Secret", "secrets", namespace, "/data/password", func(text string) map[string]any {
		return map[string]any{"type": "Opaque", "data": map[string]any{"password": base64.StdEncoding.EncodeToString([]byte(text))}}
	}}
}

func valuesOf(kind, resource string, path ...string) sample {
	return sample{fleetVersion, kind, resource, foreignNamespace, "/" + strings.Join(path, "/"), func(text string) map[string]any {
		var value any = text
		for i := range path {
			value = map[string]any{path[len(path)-1-i]: value}
		}
		return value.(map[string]any)
	}}
}

// samples are of every kind that may hold something confidential, by what the table of rights calls them.
var samples = map[string]sample{
	"Secrets":                                 secretIn(foreignNamespace),
	"Secrets of kube-system":                  secretIn("kube-system"),
	"Secrets of muster-system":                secretIn("muster-system"),
	"Secrets of cattle-fleet-system":          secretIn("cattle-fleet-system"),
	"Secrets of cattle-fleet-clusters-system": secretIn("cattle-fleet-clusters-system"),
	"ConfigMaps": {"v1", "ConfigMap", "configmaps", foreignNamespace, "/data/password", func(text string) map[string]any {
		return map[string]any{"data": map[string]any{"password": text}}
	}},
	"values of Bundles":           valuesOf("Bundle", "bundles", "spec", "helm", "values", "password"),
	"values of HelmOps":           valuesOf("HelmOp", "helmops", "spec", "helm", "values", "password"),
	"values of BundleDeployments": valuesOf("BundleDeployment", "bundledeployments", "spec", "options", "helm", "values", "password"),
	"ClusterRegistrations":        valuesOf("ClusterRegistration", "clusterregistrations", "spec", "clientRandom"),
	"environment of Fleet Clusters": {fleetVersion, "Cluster", "clusters", foreignNamespace, "/spec/agentEnvVars/0/value", func(text string) map[string]any {
		return map[string]any{"spec": map[string]any{"agentEnvVars": []any{map[string]any{"name": "PASSWORD", "value": text}}}}
	}},
}

// rights is what each account may see of others' objects, with the reason. docs/threat-model.md says the
// same. Nothing else may reach it, in an answer or an error.
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
	"muster-charts": {
		"ConfigMaps":                    "values that HelmChartProxies name",
		"values of Bundles":             "it writes Bundles",
		"values of HelmOps":             "it writes HelmOps",
		"values of BundleDeployments":   "it reports how releases fare",
		"environment of Fleet Clusters": "it reads whose Fleet Cluster a target is",
	},
}

// attempt is one request; path and query are added to those of the collection.
type attempt struct {
	what, method, path, contentType string
	query                           url.Values
	body                            any
}

// attempts are all the ways to have the API server answer with an object, or with a part of it.
func (s sample) attempts(name string) []attempt {
	var all []attempt
	add := func(what, method, path, contentType string, body any, query string) {
		for _, dryRun := range []string{"", "All"} {
			values, err := url.ParseQuery(query)
			if err != nil {
				panic(err)
			}
			if dryRun != "" && method != http.MethodGet {
				values.Set("dryRun", dryRun)
			}
			all = append(all, attempt{fmt.Sprintf("%s %s (%s)", what, name, values.Encode()), method, path, contentType, values, body})
		}
	}
	one := "/" + name
	add("get", http.MethodGet, one, "", nil, "")
	add("list", http.MethodGet, "", "", nil, "")
	add("watch", http.MethodGet, "", "", nil, "watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	const jsonPatch, apply = "application/json-patch+json", "application/apply-patch+yaml"
	operation := func(op, key, value string) []any {
		return []any{map[string]any{"op": op, key: s.pointer, "path": value}}
	}
	for _, to := range []string{"/type", "/kind", "/metadata/name", "/metadata/labels", "/metadata/labels/leak", "/metadata/generateName"} {
		add("copy into "+to, http.MethodPatch, one, jsonPatch, operation("copy", "from", to), "")
	}
	for _, subresource := range []string{"", "/status"} {
		add("merge {} into "+subresource, http.MethodPatch, one+subresource, "application/merge-patch+json", map[string]any{}, "")
		add("strategic {} into "+subresource, http.MethodPatch, one+subresource, "application/strategic-merge-patch+json", map[string]any{}, "")
		for _, force := range []string{"true", "false"} {
			query := "fieldManager=thief&force=" + force
			add("apply nothing to "+subresource, http.MethodPatch, one+subresource, apply, s.object(name, nil), query)
			add("apply a guess to "+subresource, http.MethodPatch, one+subresource, apply, s.object(name, s.fields(guess)), query)
		}
		add("update "+subresource, http.MethodPut, one+subresource, "application/json", s.object(name, s.fields(guess)), "")
		add("get "+subresource, http.MethodGet, one+subresource, "", nil, "")
	}
	other := s.object(name, s.fields(guess))
	other["type"], other["immutable"] = "example.com/other", true
	add("update with another type", http.MethodPut, one, "application/json", other, "")
	for _, policy := range []string{"", "Background", "Foreground", "Orphan"} {
		query := "propagationPolicy=" + policy
		if policy == "" {
			query = ""
		}
		add("delete", http.MethodDelete, one, "", nil, query)
		add("deletecollection", http.MethodDelete, "", "", nil, query)
	}
	return all
}

// oracles are pairs of requests, one with the right text and one with a guess: an answer that differs tells.
func (s sample) oracles(name string) map[string][2]attempt {
	pair := func(contentType, query string, body func(text string) any) [2]attempt {
		values, err := url.ParseQuery(query + "&dryRun=All")
		if err != nil {
			panic(err)
		}
		of := func(text string) attempt {
			return attempt{method: http.MethodPatch, path: "/" + name, contentType: contentType, query: values, body: body(text)}
		}
		return [2]attempt{of(confidential), of(guess)}
	}
	encoded := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return map[string][2]attempt{
		"a JSON patch's test": pair("application/json-patch+json", "", func(text string) any {
			return []any{map[string]any{"op": "test", "path": s.pointer, "value": encoded(text)}}
		}),
		"apply without force": pair("application/apply-patch+yaml", "fieldManager=thief&force=false", func(text string) any {
			return s.object(name, s.fields(text))
		}),
	}
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

func tells(answer string) bool {
	return strings.Contains(answer, confidential) || strings.Contains(answer, base64.StdEncoding.EncodeToString([]byte(confidential)))
}

// The two objects of each sample: nothing keeps the first one, and a finalizer the second.
var sampleNames = []string{"plain", "held"}

// put makes both objects be there, as they were.
func (s sample) put(g Gomega) {
	for _, name := range sampleNames {
		want := &unstructured.Unstructured{Object: s.object(name, s.fields(confidential))}
		have := want.DeepCopy()
		if err := admin.Get(ctx, client.ObjectKeyFromObject(have), have); err == nil {
			is, _ := json.Marshal(have.Object)
			if have.GetDeletionTimestamp() == nil && tells(string(is)) && !strings.Contains(string(is), guess) && len(have.GetLabels()) == 0 {
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

// told tries everything with one account on one sample, and returns the requests that told something.
func told(g Gomega, a account, s sample) (which []string) {
	for _, name := range sampleNames {
		for _, its := range s.attempts(name) {
			s.put(g)
			if _, answer := a.send(g, s, its); tells(answer) {
				which = append(which, its.what)
			}
		}
		s.put(g)
		for what, pair := range s.oracles(name) {
			right, _ := a.send(g, s, pair[0])
			if wrong, _ := a.send(g, s, pair[1]); right != wrong {
				which = append(which, what+" of "+name)
			}
		}
	}
	return which
}

// Whoever has the token of one of our accounts reads nothing confidential that is not in the table: what
// an answer or an error tells is bounded by RBAC alone, because the API server patches, validates and quotes
// before it asks a policy.
func TestNoAccountDisclosesSecrets(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	for _, namespace := range []string{foreignNamespace, "cattle-fleet-system", "cattle-fleet-clusters-system"} {
		g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace))).To(Succeed())
	}
	for _, component := range []string{"helm", "registrar", "installer", "mapping-authors", "class-labels"} {
		_, err := env.Kubectl(ctx, "apply", "--server-side", "-k", "../../manifests/"+component)
		g.Expect(err).NotTo(HaveOccurred())
	}
	// As the installer does.
	_, err := env.Kubectl(ctx, "create", "rolebinding", "muster-installer", "--namespace=cattle-fleet-system",
		"--clusterrole=muster-installer-fleet-namespace", "--serviceaccount=muster-system:muster-installer")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed()) // It would restore what this test changes.

	tryAll := func(t *testing.T, kinds func(kind string) bool) {
		for name, allowed := range rights {
			a := accountOf(NewWithT(t), name)
			for kind, s := range samples {
				if !kinds(kind) {
					continue
				}
				t.Run(name+"/"+kind, func(t *testing.T) {
					g := NewWithT(t)
					which := told(g, a, s)
					if reason := allowed[kind]; reason != "" {
						g.Expect(which).NotTo(BeEmpty(), "the table says that it may: %s", reason)
						return
					}
					g.Expect(which).To(BeEmpty())
				})
			}
		}
	}
	every := func(string) bool { return true }
	t.Run("as shipped", func(t *testing.T) { tryAll(t, every) })

	// A policy is in force about a second after it is applied, and somebody may remove one.
	_, err = env.Kubectl(ctx, "delete", "validatingadmissionpolicybindings", "--all")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		s := secretIn(foreignNamespace)
		code, answer := accountOf(g, "muster-charts").send(g, s, attempt{
			method: http.MethodPost, contentType: "application/json", query: url.Values{"dryRun": {"All"}}, body: s.object("new", s.fields(guess)),
		})
		g.Expect(code).To(Equal(http.StatusCreated), answer)
	}).Should(Succeed())
	t.Run("without policies", func(t *testing.T) {
		tryAll(t, func(kind string) bool { return slices.Contains(strings.Fields(kind), "Secrets") })
	})
}
