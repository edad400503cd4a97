package admission

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// checker checks manifests without a cluster. The manifests are the inventory: an object that is not among them
// does not exist.
type checker struct {
	rules      Rules
	configs    []manifest[*addonsv1.FleetAddonConfig]
	charts     []manifest[*addonsv1.HelmChartProxy]
	created    []manifest[*clusterRequest]
	classes    map[types.NamespacedName]bool
	labels     []manifest[map[string]string]    // of ClusterClasses
	existing   map[types.NamespacedName]*object // Fleet Clusters
	namespaces map[string]map[string]string
	policies   map[string][]fleetv1.Policy // of Fleet, by their namespace
	pins       []object                    // Clusters that were checked, with their pins
	findings   []Finding
}

var _ inventory = (*checker)(nil)

type manifest[T any] struct {
	// Finding specifies the file and the object.
	Finding
	object T
	// broken lists the CRD's rules that the object breaks.
	broken field.ErrorList
}

// Rules returns the CRD's rules that an object breaks. The webhooks leave these to the API server, so they do not
// link the code that evaluates them.
type Rules func(ctx context.Context, kind schema.GroupVersionKind, raw []byte) (field.ErrorList, error)

// Check returns what the API server and the webhooks would say if the objects were created in this order on an
// empty cluster. The requester is unknown, so Check does not check who may use a class of another namespace. It
// does not read a CA that a FleetAddonConfig refers to, and skips kinds that no policy covers.
func Check(ctx context.Context, rules Rules, objects []manifests.Object, problems []*manifests.Problem) ([]Finding, error) {
	c := &checker{
		rules:      rules,
		classes:    map[types.NamespacedName]bool{},
		existing:   map[types.NamespacedName]*object{},
		namespaces: map[string]map[string]string{},
		policies:   map[string][]fleetv1.Policy{},
	}
	for _, problem := range problems {
		c.find(Finding{File: problem.File, Line: problem.Line}, SeverityError, "", problem.Err.Error())
	}
	for i := range objects {
		if err := c.add(ctx, &objects[i]); err != nil {
			return nil, objects[i].Wrap(err)
		}
	}
	err := c.check(ctx)
	return c.findings, err
}

// add adds an object. An error means that the CRDs themselves are broken.
func (c *checker) add(ctx context.Context, from *manifests.Object) error {
	about := Finding{
		File: from.File, APIVersion: from.APIVersion, Kind: from.Kind, Namespace: cmp.Or(from.Namespace, metav1.NamespaceDefault), Name: cmp.Or(from.Name, from.GenerateName),
		object: from,
	}
	key := types.NamespacedName{Namespace: about.Namespace, Name: from.Name}
	if from.GroupVersionKind().Group == clusterKind.Group {
		broken, err := c.rules(ctx, from.GroupVersionKind(), from.Raw)
		if err != nil {
			return err
		}
		c.findBroken(about, nil, broken)
	}
	switch from.GroupVersionKind().GroupKind() {
	case addonsv1.GroupVersion.WithKind("FleetAddonConfig").GroupKind():
		about.Namespace = ""
		return c.addConfig(ctx, about, from)
	case addonsv1.GroupVersion.WithKind("HelmChartProxy").GroupKind():
		return c.checkChart(ctx, about, from)
	case clusterKind.GroupKind():
		cluster, err := parseCluster(from.Raw)
		if err != nil {
			c.find(about, SeverityError, "", err.Error())
			return nil
		}
		c.created = append(c.created, manifest[*clusterRequest]{Finding: about, object: cluster})
	case classKind.GroupKind():
		c.classes[key] = true
		c.labels = append(c.labels, manifest[map[string]string]{Finding: about, object: from.Labels})
	case fleetClusterKind.GroupKind():
		c.existing[key] = &from.PartialObjectMetadata
	case fleetv1.SchemeGroupVersion.WithKind("Policy").GroupKind():
		policy := fleetv1.Policy{}
		if err := json.UnmarshalCaseSensitivePreserveInts(from.Raw, &policy); err != nil {
			c.find(about, SeverityError, "", err.Error())
			return nil
		}
		c.policies[about.Namespace] = append(c.policies[about.Namespace], policy)
	case namespaceKind.GroupKind():
		labels := map[string]string{}
		maps.Copy(labels, from.Labels)
		labels[corev1.LabelMetadataName] = from.Name
		c.namespaces[from.Name] = labels
	default:
		if from.GroupVersionKind().GroupVersion() == addonsv1.GroupVersion {
			broken, err := c.rules(ctx, from.GroupVersionKind(), from.Raw)
			c.findBroken(about, nil, broken)
			return err
		}
	}
	return nil
}

// decode decodes an object of one of Muster's kinds, and returns the CRD's rules that it breaks. If it cannot
// decode the object, it adds a finding and returns false.
func (c *checker) decode(ctx context.Context, about Finding, from *manifests.Object, into any) (broken field.ErrorList, ok bool, err error) {
	if broken, err = c.rules(ctx, from.GroupVersionKind(), from.Raw); err != nil {
		return nil, false, err
	}
	unknown, err := json.UnmarshalStrict(from.Raw, into)
	switch {
	case err != nil && len(broken) > 0:
		c.findBroken(about, nil, broken)
		return nil, false, nil
	case err != nil:
		c.find(about, SeverityError, "", err.Error())
		return nil, false, nil
	}
	c.findUnknown(about, unknown)
	return broken, true, nil
}

func (c *checker) addConfig(ctx context.Context, about Finding, from *manifests.Object) error {
	config := &addonsv1.FleetAddonConfig{}
	broken, ok, err := c.decode(ctx, about, from, config)
	if !ok {
		return err
	}
	if len(c.configs) > 0 {
		c.find(about, SeverityError, "", "is a second FleetAddonConfig, after the one in "+c.configs[0].File+"; there may be only one")
	}
	c.configs = append(c.configs, manifest[*addonsv1.FleetAddonConfig]{about, config, broken})
	return nil
}

func (c *checker) check(ctx context.Context) error {
	c.checkReleases()
	c.checkPolicies()
	for _, config := range c.configs {
		c.findBroken(config.Finding, validateConfig(config.object), config.broken)
		for _, warning := range warnings(config.object) {
			c.find(config.Finding, SeverityWarning, "", warning)
		}
	}
	current := settings.Default()
	if len(c.configs) > 0 {
		first := c.configs[0]
		var err error
		if current, err = settings.From(first.object); err != nil {
			return nil //nolint:nilerr // validateConfig said it; what it means for Clusters is unknown.
		}
		c.find(first.Finding, SeverityWarning, "", matchedByOne(first.object, current, c.placed()))
	}
	for _, class := range c.labels {
		c.find(class.Finding, SeverityWarning, "metadata.labels", desired.NearlyTooMuch(current, class.object, nil))
	}
	for _, cluster := range c.created {
		if err := c.checkCluster(ctx, current, cluster); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) checkCluster(ctx context.Context, in settings.Settings, cluster manifest[*clusterRequest]) error {
	subject := cluster.object.subject(cluster.Namespace)
	var found bool
	subject.NamespaceLabels, found = c.namespaceLabels(cluster.Namespace)
	unselected := notImported(in, subject, stamp.Pin{})
	if unselected != "" && !found && !in.Cluster.NamespaceSelector.Empty() {
		unselected += "; its Namespace is not among the manifests"
	}
	c.find(cluster.Finding, SeverityWarning, "metadata.labels", unselected)

	subject, another, err := withOwnPin(ctx, c, cluster.Namespace, subject)
	if err != nil {
		return err
	}
	refusal, err := nameTaken(ctx, c, in, cluster.Namespace, subject)
	if err != nil {
		return err
	}
	c.find(cluster.Finding, SeverityError, "metadata.name", refusal)
	c.find(cluster.Finding, SeverityWarning, "metadata", tooMuchToCopy(in, &clusterRequest{}, subject))
	wanted := stamp.OnCreate(in, subject)
	for _, warning := range pinWarnings(in, subject, wanted, another) {
		c.find(cluster.Finding, SeverityWarning, "metadata", warning)
	}
	if refusal == "" && wanted.Pin.IsComplete() {
		pinned := object{}
		pinned.Namespace, pinned.Name, pinned.Annotations = cluster.Namespace, subject.Name, wanted.AnnotationValues()
		c.pins = append(c.pins, pinned)
	}
	if subject.Class.Name != "" && !c.classes[subject.Class] {
		c.find(cluster.Finding, SeverityWarning, cluster.object.classField(),
			fmt.Sprintf("ClusterClass %q of namespace %q is not among the manifests", subject.Class.Name, subject.Class.Namespace))
	}
	return nil
}

// namespaceLabels returns the labels of a Namespace. If it is not among the manifests, these are the labels that
// the API server sets on every Namespace.
func (c *checker) namespaceLabels(name string) (labels map[string]string, found bool) {
	if labels, found = c.namespaces[name]; !found {
		labels = map[string]string{corev1.LabelMetadataName: name}
	}
	return labels, found
}

// placed returns the Clusters as they will be after they are stamped.
func (c *checker) placed() []placed {
	var all []placed
	for _, cluster := range c.created {
		namespace, _ := c.namespaceLabels(cluster.Namespace)
		subject := cluster.object.subject(cluster.Namespace)
		all = append(all, placed{
			NamespacedName:  types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name},
			labels:          stamp.WithClassLabels(subject.Labels, subject.Class),
			namespaceLabels: namespace,
		})
	}
	return all
}

func (c *checker) fleetCluster(_ context.Context, key types.NamespacedName) (found *object, known bool, err error) {
	return c.existing[key], true, nil
}

func (c *checker) pinnedTo(_ context.Context, namespace, fleetCluster string) ([]object, error) {
	var result []object
	for _, cluster := range c.pins {
		if cluster.Namespace == namespace && stamp.PinOf(cluster.Annotations).ClusterName == fleetCluster {
			result = append(result, cluster)
		}
	}
	return result, nil
}

func (c *checker) claims(_ context.Context, fleetNamespace string) (all []stamp.FleetClaim, _ map[string]string, _ error) {
	for _, fleetCluster := range c.existing {
		all = append(all, fleetClaim(fleetCluster))
	}
	for i := range c.pins {
		all = append(all, pinClaim(&c.pins[i]))
	}
	return slices.DeleteFunc(all, func(claim stamp.FleetClaim) bool {
		return stamp.FleetNamespace(claim.Namespace, claim.Name) != fleetNamespace
	}), nil, nil
}

func (c *checker) hasCluster(_ context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
	return slices.ContainsFunc(c.created, func(cluster manifest[*clusterRequest]) bool {
		return cluster.Namespace == key.Namespace && cluster.object.Metadata.Name == key.Name && uid == ""
	}), nil
}

func (c *checker) hasClass(_ context.Context, key types.NamespacedName) (found, known bool, err error) {
	return c.classes[key], true, nil
}

func (c *checker) clusters(context.Context) (all []object, known bool, err error) {
	return c.pins, true, nil
}
