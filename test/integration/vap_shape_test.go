package integration

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A mapping hands out the bundles of a namespace. Who has the syncer's token makes none
// but of the shape that Muster's have, and no group but those of a class.
func TestShapesOfTheSyncer(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	syncer := thief(g)
	stop(t, g, syncerProcess) // It would put back what is edited here.
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: BundleNamespaceMapping
metadata: {namespace: %[1]s, name: edited, labels: {app.kubernetes.io/managed-by: muster}}
bundleSelector: {matchLabels: {by: somebody}}
namespaceSelector: {matchLabels: {by: somebody}}
`, s.classNamespace))).To(Succeed())

	const ownBundles = `{"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"DoesNotExist"}]}`
	namespaceOf := func(name string) string {
		return fmt.Sprintf(`{"matchLabels":{"kubernetes.io/metadata.name":%q}}`, name)
	}
	mapping := func(bundles, namespaces string) *unstructured.Unstructured {
		text := fmt.Sprintf(`{"apiVersion":%q,"kind":"BundleNamespaceMapping","metadata":{"namespace":%q,"name":"victim","labels":{"app.kubernetes.io/managed-by":"muster"}}`,
			fleetVersion, s.classNamespace)
		for field, value := range map[string]string{"bundleSelector": bundles, "namespaceSelector": namespaces} {
			if value != "" {
				text += fmt.Sprintf(`,%q:%s`, field, value)
			}
		}
		return object(g, text+"}")
	}
	group := func(spec string) *unstructured.Unstructured {
		return object(g, fmt.Sprintf(`{"apiVersion":%q,"kind":"ClusterGroup","metadata":{"namespace":%q,"name":"new","labels":{"app.kubernetes.io/managed-by":"muster"}},"spec":%s}`,
			fleetVersion, s.namespace, spec))
	}
	ofClass := `{"clusterclass-name.fleet.addons.cluster.x-k8s.io":"a","clusterclass-namespace.fleet.addons.cluster.x-k8s.io":"b"}`
	create := func(object client.Object) func() error {
		return func() error { return syncer.Create(ctx, object, client.DryRunAll) }
	}
	patch := func(object client.Object, body string) func() error {
		return func() error { return syncer.Patch(ctx, object, mergePatch(body), client.DryRunAll) }
	}
	ours := func() client.Object {
		return target(fleetVersion, "BundleNamespaceMapping", s.classNamespace, s.namespace)
	}
	oursGroup := func() client.Object { return target(fleetVersion, "ClusterGroup", s.namespace, s.group().Name) }
	edited := func() client.Object {
		return target(fleetVersion, "BundleNamespaceMapping", s.classNamespace, "edited")
	}

	for name, try := range map[string]func() error{
		"make a mapping of all bundles":                    create(mapping(`{}`, namespaceOf("victim"))),
		"make a mapping to all namespaces":                 create(mapping(ownBundles, `{}`)),
		"make a mapping to another namespace":              create(mapping(ownBundles, namespaceOf("other"))),
		"make a mapping to its namespace and more":         create(mapping(ownBundles, `{"matchLabels":{"kubernetes.io/metadata.name":"victim"},"matchExpressions":[]}`)),
		"make a mapping of agent bundles":                  create(mapping(`{"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"Exists"}]}`, namespaceOf("victim"))),
		"make a mapping of chosen bundles":                 create(mapping(strings.Replace(ownBundles, "{", `{"matchLabels":{"a":"b"},`, 1), namespaceOf("victim"))),
		"let a mapping map all bundles":                    patch(ours(), `{"bundleSelector":{"matchExpressions":null}}`),
		"let a mapping map to all namespaces":              patch(ours(), `{"namespaceSelector":{"matchLabels":null}}`),
		"let a mapping map to another namespace":           patch(ours(), `{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"other"}}}`),
		"set one selector beside what somebody made of it": patch(edited(), `{"bundleSelector":{"matchLabels":null,"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"DoesNotExist"}]}}`),
	} {
		t.Run("may not "+name, func(t *testing.T) {
			g := NewWithT(t)
			err := try()
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
			g.Expect(err).To(MatchError(ContainSubstring("muster-syncer may only make BundleNamespaceMappings")))
		})
	}
	for name, try := range map[string]func() error{
		"make a group of all clusters":          create(group(`{"selector":{}}`)),
		"make a group of chosen clusters":       create(group(`{"selector":{"matchLabels":{"a":"b"}}}`)),
		"make a group of half a class":          create(group(`{"selector":{"matchLabels":{"clusterclass-name.fleet.addons.cluster.x-k8s.io":"a"}}}`)),
		"make a group of a class and others":    create(group(`{"selector":{"matchLabels":` + strings.Replace(ofClass, "{", `{"a":"b",`, 1) + `}}`)),
		"make a group by expressions":           create(group(`{"selector":{"matchLabels":` + ofClass + `,"matchExpressions":[{"key":"a","operator":"Exists"}]}}`)),
		"let a group hold all clusters":         patch(oursGroup(), `{"spec":{"selector":{"matchLabels":null}}}`),
		"let a group hold clusters of no class": patch(oursGroup(), `{"spec":{"selector":null}}`),
	} {
		t.Run("may not "+name, func(t *testing.T) {
			g := NewWithT(t)
			err := try()
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
			g.Expect(err).To(MatchError(ContainSubstring("muster-syncer may only make ClusterGroups")))
		})
	}
	for name, try := range map[string]func() error{
		"make a mapping":                                create(mapping(ownBundles, namespaceOf("victim"))),
		"make a mapping that maps nothing":              create(mapping("", "")),
		"make a group":                                  create(group(`{"selector":{"matchLabels":` + ofClass + `}}`)),
		"retire a mapping":                              patch(ours(), `{"bundleSelector":null,"namespaceSelector":null}`),
		"retire a mapping that somebody edited":         patch(edited(), `{"bundleSelector":null,"namespaceSelector":null}`),
		"half retire a mapping that is half somebody's": patch(edited(), `{"namespaceSelector":null}`),
		"label a mapping that somebody edited":          patch(edited(), `{"metadata":{"labels":{"a":"b"}}}`),
		"put back what somebody edited":                 patch(edited(), `{"bundleSelector":{"matchLabels":null,"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"DoesNotExist"}]},"namespaceSelector":{"matchLabels":{"by":null,"kubernetes.io/metadata.name":"edited"}}}`),
	} {
		t.Run("may "+name, func(t *testing.T) { NewWithT(t).Expect(try()).To(Succeed()) })
	}

	// RBAC cannot tell a name at creation; the fence can.
	t.Run("may hold no Lease but its own", func(t *testing.T) {
		g := NewWithT(t)
		lease := func(name string) *unstructured.Unstructured {
			return target("coordination.k8s.io/v1", "Lease", "muster-system", name)
		}
		g.Expect(syncer.Create(ctx, lease("other"), client.DryRunAll)).To(MatchError(ContainSubstring("muster-syncer has no business to create leases")))
		g.Expect(admin.Create(ctx, lease("other"))).To(Succeed())
		err := syncer.Get(ctx, client.ObjectKey{Namespace: "muster-system", Name: "other"}, lease("other"))
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(admin.Delete(ctx, lease("other"))).To(Succeed())
		own := lease("muster-syncer")
		g.Expect(syncer.Get(ctx, client.ObjectKeyFromObject(own), own)).To(Succeed())
		g.Expect(syncer.Update(ctx, own, client.DryRunAll)).To(Succeed())
	})
}
