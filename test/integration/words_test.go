package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	capiVersion  = "cluster.x-k8s.io/v1beta2"
	fleetVersion = "fleet.cattle.io/v1alpha1"
	workspace    = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"
	topologyYAML = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %s, name: %s}
spec: {topology: {classRef: {name: %s, namespace: %s}, version: v1.36.3}}
`
)

// Objects.

var counter atomic.Int64

// newNamespace creates a Namespace with a name of its own.
func newNamespace(t *testing.T, g Gomega, prefix string, labels map[string]string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, counter.Add(1)), Labels: labels}}
	create(g, namespace)
	return namespace.Name
}

func newClass(g Gomega, namespace, name string, labels map[string]string) *clusterv1.ClusterClass {
	class := fixture.Class(namespace, name, labels)
	create(g, class)
	return class
}

// plainCluster creates a Cluster without a topology.
func plainCluster(g Gomega, namespace, name string, annotations map[string]string) *clusterv1.Cluster {
	cluster := fixture.Cluster(namespace, name, "", "")
	cluster.Annotations = annotations
	create(g, cluster)
	return cluster
}

func newFleetCluster(g Gomega, namespace, name string, annotations map[string]string) *fleetv1.Cluster {
	cluster := named(&fleetv1.Cluster{}, namespace, name)
	cluster.Annotations = annotations
	create(g, cluster)
	return cluster
}

// initialize plays Cluster API: it creates the control plane and the infrastructure, makes the Cluster refer to them,
// and initializes the control plane.
func initialize(g Gomega, cluster *clusterv1.Cluster) {
	controlPlane, infrastructure := fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)
	create(g, controlPlane, infrastructure)
	before := cluster.DeepCopy()
	cluster.Spec.ControlPlaneRef = fixture.ReferenceTo(controlPlane)
	cluster.Spec.InfrastructureRef = fixture.ReferenceTo(infrastructure)
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
}

// scene is a class in one namespace, and another namespace for Clusters.
type scene struct {
	classNamespace, namespace string
	class                     *clusterv1.ClusterClass
}

func newScene(t *testing.T, g Gomega) scene {
	t.Helper()
	s := scene{classNamespace: newNamespace(t, g, "classes", nil), namespace: newNamespace(t, g, "team", nil)}
	s.class = newClass(g, s.classNamespace, "standard", nil)
	return s
}

// cluster returns a Cluster of the scene's class.
func (s scene) cluster(name string) *clusterv1.Cluster {
	return fixture.Cluster(s.namespace, name, s.class.Name, s.class.Namespace)
}

// yaml returns the same Cluster as a user writes it.
func (s scene) yaml(name string) string {
	return fmt.Sprintf(topologyYAML, s.namespace, name, s.class.Name, s.classNamespace)
}

// started creates a Cluster of the scene's class and initializes it.
func (s scene) started(g Gomega, name string, labels ...string) *clusterv1.Cluster {
	cluster := s.cluster(name)
	for _, key := range labels {
		metav1.SetMetaDataLabel(&cluster.ObjectMeta, key, "yes")
	}
	create(g, cluster)
	initialize(g, cluster)
	return cluster
}

// imported creates a Cluster of the scene's class and waits until it is in Fleet.
func (s scene) imported(g Gomega, name string, labels ...string) *clusterv1.Cluster {
	cluster := s.started(g, name, labels...)
	appears(g, s.fleet(name))
	return cluster
}

// The following methods return the objects that the syncer makes for the scene's Clusters.
func (s scene) fleet(name string) *fleetv1.Cluster {
	return named(&fleetv1.Cluster{}, s.namespace, name)
}

func (s scene) group() *fleetv1.ClusterGroup {
	return named(&fleetv1.ClusterGroup{}, s.namespace, "standard."+s.classNamespace)
}

func (s scene) mapping() *fleetv1.BundleNamespaceMapping {
	return named(&fleetv1.BundleNamespaceMapping{}, s.classNamespace, s.namespace)
}

// isRetired expects a mapping that exists and maps nothing.
func (s scene) isRetired(g Gomega) {
	mapping := s.mapping()
	exists(g, mapping)
	g.Expect([]*metav1.LabelSelector{mapping.BundleSelector, mapping.NamespaceSelector}).To(HaveEach(BeNil()))
}

// deployed plays Fleet, which deploys a bundle of the class's namespace to one of the scene's clusters.
func (s scene) deployed(t *testing.T, g Gomega, bundle, cluster string) *fleetv1.BundleDeployment {
	t.Helper()
	namespace := named(&corev1.Namespace{}, "", fmt.Sprintf("cluster-%d", counter.Add(1)))
	namespace.Annotations = map[string]string{fleetv1.ClusterAnnotation: cluster, fleetv1.ClusterNamespaceAnnotation: s.namespace}
	create(g, namespace)
	deployment := named(&fleetv1.BundleDeployment{}, namespace.Name, bundle)
	deployment.Labels = map[string]string{
		fleetv1.BundleLabel: bundle, fleetv1.BundleNamespaceLabel: s.classNamespace,
		fleetv1.ClusterLabel: cluster, fleetv1.ClusterNamespaceLabel: s.namespace,
	}
	create(g, deployment)
	return deployment
}

// named sets an object's namespace and name.
func named[T client.Object](object T, namespace, name string) T {
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// target refers to an object by its kind and key alone.
func target(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := named(&unstructured.Unstructured{}, namespace, name)
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	return object
}

func object(g Gomega, text string) *unstructured.Unstructured {
	result := &unstructured.Unstructured{}
	g.Expect(yaml.Unmarshal([]byte(text), &result.Object)).To(Succeed())
	return result
}

// Reading and writing as an administrator.

func create(g Gomega, objects ...client.Object) {
	for _, object := range objects {
		g.Expect(admin.Create(ctx, object)).To(Succeed())
	}
}

func mergePatch(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }

// patch changes an object by a merge patch.
func patch(g Gomega, object client.Object, body string) {
	g.Expect(admin.Patch(ctx, object, mergePatch(body))).To(Succeed())
}

func patchf(g Gomega, object client.Object, format string, args ...any) {
	patch(g, object, fmt.Sprintf(format, args...))
}

// entry is a merge patch of one label or annotation, whose value is JSON.
func entry(where, key, value string) string {
	return fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, where, key, value)
}

func pause(g Gomega, cluster *clusterv1.Cluster)   { patch(g, cluster, `{"spec":{"paused":true}}`) }
func unpause(g Gomega, cluster *clusterv1.Cluster) { patch(g, cluster, `{"spec":{"paused":null}}`) }

// apply applies YAML through kubectl, as a user does, and returns what it printed.
func apply(t *testing.T, text string, args ...string) (string, error) {
	t.Helper()
	return env.KubectlInput(ctx, text, append([]string{"apply", "-f", "-"}, args...)...)
}

// deleteByKubectl deletes the objects that a test has left, when it ends.
func deleteByKubectl(t *testing.T, args ...string) {
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, append([]string{"delete", "--ignore-not-found"}, args...)...); err != nil {
			t.Error(err)
		}
	})
}

func get[T client.Object](g Gomega, into T, namespace, name string) T {
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)).To(Succeed())
	return into
}

// current reads a Cluster again.
func current(g Gomega, cluster *clusterv1.Cluster) *clusterv1.Cluster {
	return get(g, &clusterv1.Cluster{}, cluster.Namespace, cluster.Name)
}

func fleetCluster(g Gomega, namespace, name string) *fleetv1.Cluster {
	return get(g, &fleetv1.Cluster{}, namespace, name)
}

// exists reads objects, which must exist.
func exists(g Gomega, objects ...client.Object) {
	for _, object := range objects {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed(), "%T should exist", object)
	}
}

func isGone(g Gomega, objects ...client.Object) {
	for _, object := range objects {
		key := client.ObjectKeyFromObject(object)
		g.Expect(admin.Get(ctx, key, object)).To(Satisfy(apierrors.IsNotFound), "%T %s should be gone", object, key)
	}
}

func appears(g Gomega, objects ...client.Object) {
	g.Eventually(func(g Gomega) { exists(g, objects...) }).Should(Succeed())
}

func vanishes(g Gomega, objects ...client.Object) {
	g.Eventually(func(g Gomega) { isGone(g, objects...) }).Should(Succeed())
}

func isRetained(g Gomega, objects ...client.Object) {
	g.Consistently(func(g Gomega) { exists(g, objects...) }).Should(Succeed())
}

func isAbsentThroughout(g Gomega, objects ...client.Object) {
	g.Consistently(func(g Gomega) { isGone(g, objects...) }).Should(Succeed())
}

// remove deletes objects, and does not wait.
func remove(g Gomega, objects ...client.Object) {
	for _, object := range objects {
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, object))).To(Succeed())
	}
}

// deleteNow deletes objects, which must go at once: Muster holds none of them.
func deleteNow(g Gomega, objects ...client.Object) {
	remove(g, objects...)
	g.Eventually(func(g Gomega) { isGone(g, objects...) }).WithTimeout(5 * time.Second).Should(Succeed())
}

// reports expects that FleetImported of a Cluster has this reason, or status and reason, and a
// message with these parts.
func reports(g Gomega, cluster *clusterv1.Cluster, state string, messages ...string) {
	its := conditions.Get(current(g, cluster), "FleetImported")
	g.Expect(its).NotTo(BeNil(), "no FleetImported")
	g.Expect([]string{its.Reason, fmt.Sprintf("%s %s", its.Status, its.Reason)}).To(ContainElement(state), its.Message)
	for _, part := range messages {
		g.Expect(its.Message).To(ContainSubstring(part))
	}
}

// willReport waits for that.
func willReport(g Gomega, cluster *clusterv1.Cluster, state string, messages ...string) {
	g.Eventually(func(g Gomega) { reports(g, cluster, state, messages...) }).Should(Succeed())
}

// haveKeys matches a map with all of these keys, haveNoKeys one with none of them.
func haveKeys(keys ...string) gomegatypes.GomegaMatcher {
	var all []gomegatypes.GomegaMatcher
	for _, key := range keys {
		all = append(all, HaveKey(key))
	}
	return And(all...)
}

func haveNoKeys(keys ...string) gomegatypes.GomegaMatcher {
	var all []gomegatypes.GomegaMatcher
	for _, key := range keys {
		all = append(all, Not(HaveKey(key)))
	}
	return And(all...)
}

func importedReason(g Gomega, cluster *clusterv1.Cluster) string {
	return conditions.GetReason(current(g, cluster), "FleetImported")
}

func isForbidden(g Gomega, err error, messages ...string) {
	g.Expect(err).To(Satisfy(apierrors.IsForbidden))
	for _, part := range messages {
		g.Expect(err).To(MatchError(ContainSubstring(part)))
	}
}

// Settings and processes.

// configYAML returns a FleetAddonConfig with this spec, in flow style.
func configYAML(spec string) string {
	return "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: " + spec + "}"
}

// configure makes the FleetAddonConfig hold this spec until the test ends.
func configure(t *testing.T, g Gomega, spec string) {
	t.Helper()
	noConfig(t)
	create(g, object(g, configYAML(spec)))
}

// configureCluster does so for spec.cluster.
func configureCluster(t *testing.T, g Gomega, cluster string) {
	t.Helper()
	configure(t, g, "{cluster: "+cluster+"}")
}

// noConfig deletes the FleetAddonConfig until the test ends. After that there is one with the defaults: without one,
// the settings would be unknown.
func noConfig(t *testing.T) {
	t.Helper()
	remove(NewWithT(t), fixture.Config())
	t.Cleanup(func() {
		g := NewWithT(t)
		remove(g, fixture.Config())
		g.Eventually(func() error { return admin.Create(ctx, fixture.Config()) }).Should(Succeed())
	})
}

func readConfig(g Gomega) *addonsv1.FleetAddonConfig {
	return get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName)
}

// configObserved waits until the syncer has read the FleetAddonConfig; before that, it selects Clusters by the
// settings of the previous test.
func configObserved(g Gomega) {
	g.Eventually(func(g Gomega) {
		config := readConfig(g)
		g.Expect(config.Status.ObservedGeneration).To(Equal(config.Generation), "the syncer has not read the FleetAddonConfig")
	}).Should(Succeed())
}

func stop(t *testing.T, g Gomega, process string) (restart func()) {
	t.Helper()
	g.Expect(env.Stop(ctx, process)).To(Succeed())
	restart = sync.OnceFunc(func() { g.Expect(env.Start(ctx, process)).To(Succeed()) })
	t.Cleanup(restart)
	return restart
}

// withoutWebhooks removes webhook configurations of Muster until the test ends.
func withoutWebhooks(t *testing.T, g Gomega, configurations ...client.Object) {
	t.Helper()
	for _, configuration := range configurations {
		exists(g, configuration)
		g.Expect(admin.Delete(ctx, configuration.DeepCopyObject().(client.Object))).To(Succeed())
		t.Cleanup(func() {
			configuration.SetResourceVersion("")
			configuration.SetUID("")
			create(NewWithT(t), configuration)
		})
	}
}

// Other users, and their rights.

// tenant is a client that impersonates a user with these groups.
func tenant(g Gomega, user string, groups ...string) client.Client {
	result, err := fixture.ClientAs(env, user, groups...)
	g.Expect(err).NotTo(HaveOccurred())
	return result
}

// thiefAgent is the user agent of the requests that a test makes with a token of Muster's.
const thiefAgent = "thief"

// accountClient is a client with a token of a ServiceAccount.
func accountClient(g Gomega, namespace, name string) client.Client {
	result, err := fixture.ClientOfAccount(ctx, env, admin, namespace, name, thiefAgent)
	g.Expect(err).NotTo(HaveOccurred())
	return result
}

// thief is a client with a token of the syncer's ServiceAccount.
func thief(g Gomega) client.Client { return accountClient(g, "muster-system", syncerProcess) }

func may(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// grant gives a user or group rights in a namespace, or in all if namespace is "", until the test ends. It returns
// when the authorizer knows them. A group begins with "group:".
func grant(t *testing.T, g Gomega, namespace, who string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	name := fmt.Sprintf("test-%d", counter.Add(1))
	subject := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: who}
	if group, ok := strings.CutPrefix(who, "group:"); ok {
		subject.Kind, subject.Name = rbacv1.GroupKind, group
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}
	var role, binding client.Object = &rbacv1.Role{Rules: rules}, &rbacv1.RoleBinding{RoleRef: ref, Subjects: []rbacv1.Subject{subject}}
	if namespace == "" {
		ref.Kind = "ClusterRole"
		role, binding = &rbacv1.ClusterRole{Rules: rules}, &rbacv1.ClusterRoleBinding{RoleRef: ref, Subjects: []rbacv1.Subject{subject}}
	}
	create(g, named(role, namespace, name), named(binding, namespace, name))
	t.Cleanup(func() { remove(NewWithT(t), role, binding) })
	knows(g, subject, namespace, rules...)
}

// knows waits until the authorizer grants a subject these rights.
func knows(g Gomega, subject rbacv1.Subject, namespace string, rules ...rbacv1.PolicyRule) {
	spec := authorizationv1.SubjectAccessReviewSpec{User: subject.Name}
	if subject.Kind == rbacv1.GroupKind {
		spec = authorizationv1.SubjectAccessReviewSpec{User: "anybody", Groups: []string{subject.Name}}
	}
	for _, rule := range rules {
		resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: rule.Verbs[len(rule.Verbs)-1],
			Group: rule.APIGroups[0], Resource: resource, Subresource: subresource, Name: strings.Join(rule.ResourceNames, "")}
		g.Eventually(func(g Gomega) {
			review := &authorizationv1.SubjectAccessReview{Spec: spec}
			create(g, review)
			g.Expect(review.Status.Allowed).To(BeTrue(), review.Status.Reason)
		}).Should(Succeed())
	}
}

// provoked holds the namespaces, and the plural names of kinds, for which a test made the API server refuse Muster.
var provoked sync.Map

// deny makes the API server refuse every update of a kind of Fleet's objects in the namespace of this one, until the
// test ends or allow is called.
func deny(t *testing.T, g Gomega, object client.Object, resource, message string) (allow func()) {
	t.Helper()
	name := "test-" + object.GetNamespace()
	provoked.Store(object.GetNamespace(), true)
	kind, err := admin.GroupVersionKindFor(object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, fixture.Deny(name, object.GetNamespace(), kind.Group, resource, message))).To(Succeed())
	allow = func() {
		_, err := env.Kubectl(ctx, "delete", "--ignore-not-found", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
		g.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(allow)
	g.Eventually(func() error {
		return admin.Patch(ctx, object.DeepCopyObject().(client.Object), mergePatch(`{"metadata":{"labels":{"probe":"x"}}}`), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(message)))
	return allow
}

// Muster's requests.

// asked holds the syncer's requests to the API server in use, as far as the log has been read.
var asked struct {
	sync.Mutex
	tails  map[*stack.Stack]*stack.AuditTail
	events map[*stack.Stack][]stack.AuditEvent
}

// follow starts reading a stack's log, so that a test does not read the whole log for every question.
func follow(s *stack.Stack) error {
	asked.Lock()
	defer asked.Unlock()
	if asked.tails[s] != nil {
		return nil
	}
	if asked.tails == nil {
		asked.tails, asked.events = map[*stack.Stack]*stack.AuditTail{}, map[*stack.Stack][]stack.AuditEvent{}
	}
	tail, err := s.AuditTail()
	asked.tails[s] = tail
	return err
}

// requests returns the syncer's requests to the API server, without those on its own account, such as those for leader
// election.
func requests(g Gomega, since time.Time, where ...func(stack.AuditEvent) bool) (selected []stack.AuditEvent) {
	asked.Lock()
	defer asked.Unlock()
	events, err := asked.tails[env].Read(stack.AuditFilter{User: stack.ServiceAccount("muster-system", syncerProcess), Where: func(e stack.AuditEvent) bool {
		own := e.Resource == "leases" || e.Namespace == "muster-system"
		return !own && e.UserAgent != thiefAgent
	}})
	g.Expect(err).NotTo(HaveOccurred())
	asked.events[env] = append(asked.events[env], events...)
	for _, event := range asked.events[env] {
		if !event.Received.Before(since) && !slices.ContainsFunc(where, func(holds func(stack.AuditEvent) bool) bool { return !holds(event) }) {
			selected = append(selected, event)
		}
	}
	return selected
}

// isNoStatus selects requests other than those for the status of the FleetAddonConfig, which has counts.
func isNoStatus(e stack.AuditEvent) bool { return e.Resource != "fleetaddonconfigs" }

func isWrite(e stack.AuditEvent) bool {
	return e.Verb != "get" && e.Verb != "list" && e.Verb != "watch"
}

// of selects requests for a resource by a verb.
func of(resource, verb string) func(stack.AuditEvent) bool {
	return func(e stack.AuditEvent) bool { return e.Resource == resource && e.Verb == verb }
}

// in selects requests in a namespace.
func in(namespace string) func(stack.AuditEvent) bool {
	return func(e stack.AuditEvent) bool { return e.Namespace == namespace }
}

// about selects requests whose address contains this name, such as the labels of a list.
func about(name string) func(stack.AuditEvent) bool {
	return func(e stack.AuditEvent) bool { return strings.Contains(e.URI, name) }
}

func isRefused(e stack.AuditEvent) bool { return e.Code == http.StatusForbidden }

// quiet waits until the syncer has sent no matching request for a while.
func quiet(g Gomega, where ...func(stack.AuditEvent) bool) {
	g.Eventually(func(g Gomega) {
		g.Expect(requests(g, time.Now().Add(-2*time.Second), where...)).To(BeEmpty())
	}).WithTimeout(time.Minute).Should(Succeed())
}

// caapf applies an object as CAAPF did: server-side, under one of its field managers.
func caapf(g Gomega, manager, text string) {
	g.Expect(admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(object(g, text)), client.FieldOwner(manager), client.ForceOwnership)).To(Succeed())
}

// unstamp removes what the webhook put on Clusters, as if they were older than the webhook.
func unstamp(t *testing.T, g Gomega, clusters ...*clusterv1.Cluster) {
	t.Helper()
	defer stop(t, g, webhookProcess)()
	strip(g, clusters...)
}

func strip(g Gomega, clusters ...*clusterv1.Cluster) {
	for _, cluster := range clusters {
		patchf(g, cluster, `{"metadata":{"labels":{%q:null,%q:null},"annotations":{%q:null,%q:null}}}`,
			stamp.ClassNameLabel, stamp.ClassNamespaceLabel, stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation)
		g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{}))
	}
}
