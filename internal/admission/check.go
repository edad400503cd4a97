package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/json"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Severity reports whether the webhooks would refuse what was found, or only warn about it.
type Severity string

// The severities of findings.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Finding is what the webhooks would say about a manifest.
type Finding struct {
	File      string   `json:"file"`
	Kind      string   `json:"kind,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Severity  Severity `json:"severity"`
	// Path is the field; empty if the finding is about the whole object.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// String returns "file: Kind ns/name: path: message".
func (f Finding) String() string {
	name := f.Name
	if f.Namespace != "" {
		name = f.Namespace + "/" + f.Name
	}
	var parts []string
	for _, part := range []string{f.File, strings.TrimSpace(f.Kind + " " + name), f.Path, f.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	text := strings.Join(parts, ": ")
	if f.Severity == SeverityWarning {
		return "warning: " + text
	}
	return text
}

// checker checks manifests without a cluster. They are each other's inventory: what is not
// among them does not exist.
type checker struct {
	configs    []manifest[*addonsv1.FleetAddonConfig]
	created    []manifest[*clusterRequest]
	classes    map[types.NamespacedName]bool
	existing   map[types.NamespacedName]*object // Fleet Clusters
	namespaces map[string]map[string]string
	pins       []object // Clusters that were checked, pinned
	findings   []Finding
}

var _ inventory = (*checker)(nil)

type manifest[T any] struct {
	// Finding specifies where it is from.
	Finding
	object T
}

// Check returns what the webhooks would say if the objects were created in their order on a
// cluster without others. The requester is unknown, so the use of a class of another
// namespace is not checked, and a CA that a FleetAddonConfig refers to is not read. Kinds
// that no policy concerns are skipped.
func Check(ctx context.Context, objects []manifests.Object, problems []*manifests.Problem) ([]Finding, error) {
	c := &checker{
		classes:    map[types.NamespacedName]bool{},
		existing:   map[types.NamespacedName]*object{},
		namespaces: map[string]map[string]string{},
	}
	for _, problem := range problems {
		c.find(Finding{File: problem.File}, SeverityError, "", problem.Err.Error())
	}
	for i := range objects {
		c.add(&objects[i])
	}
	err := c.check(ctx)
	return c.findings, err
}

func (c *checker) add(from *manifests.Object) {
	about := Finding{File: from.File, Kind: from.Kind, Namespace: cmp.Or(from.Namespace, metav1.NamespaceDefault), Name: cmp.Or(from.Name, from.GenerateName)}
	key := types.NamespacedName{Namespace: about.Namespace, Name: from.Name}
	switch from.GroupVersionKind().GroupKind() {
	case addonsv1.GroupVersion.WithKind("FleetAddonConfig").GroupKind():
		about.Namespace = ""
		c.addConfig(about, from.Raw)
	case addonsv1.GroupVersion.WithKind("HelmChartProxy").GroupKind():
		c.checkChart(about, from.Raw)
	case clusterKind.GroupKind():
		cluster, err := parseCluster(from.Raw)
		if err != nil {
			c.find(about, SeverityError, "", err.Error())
			return
		}
		c.created = append(c.created, manifest[*clusterRequest]{about, cluster})
	case classKind.GroupKind():
		c.classes[key] = true
	case fleetClusterKind.GroupKind():
		c.existing[key] = &from.PartialObjectMetadata
	case corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind():
		labels := map[string]string{}
		maps.Copy(labels, from.Labels)
		labels[corev1.LabelMetadataName] = from.Name
		c.namespaces[from.Name] = labels
	}
}

func (c *checker) addConfig(about Finding, raw []byte) {
	config := &addonsv1.FleetAddonConfig{}
	unknown, err := json.UnmarshalStrict(raw, config)
	if err != nil {
		c.find(about, SeverityError, "", err.Error())
		return
	}
	c.findUnknown(about, unknown)
	if len(c.configs) > 0 {
		c.find(about, SeverityError, "", "is a second FleetAddonConfig, after the one in "+c.configs[0].File+"; there may be only one")
	}
	c.configs = append(c.configs, manifest[*addonsv1.FleetAddonConfig]{about, config})
}

// findUnknown finds the fields that the kind of an object does not have.
func (c *checker) findUnknown(about Finding, unknown []error) {
	for _, err := range unknown {
		path, message := "", err.Error()
		var field json.FieldError
		if errors.As(err, &field) {
			path, message = field.FieldPath(), "is a field that a "+about.Kind+" does not have; remove it, or correct its spelling"
		}
		c.find(about, SeverityError, path, message)
	}
}

func (c *checker) find(about Finding, severity Severity, path, message string) {
	if message == "" {
		return
	}
	about.Severity, about.Path, about.Message = severity, path, message
	c.findings = append(c.findings, about)
}

func (c *checker) check(ctx context.Context) error {
	for _, config := range c.configs {
		for _, err := range validateConfig(config.object) {
			c.find(config.Finding, SeverityError, err.Field, err.ErrorBody())
		}
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

	refusal, err := nameTaken(ctx, c, in, cluster.Namespace, subject)
	if err != nil {
		return err
	}
	c.find(cluster.Finding, SeverityError, "metadata.name", refusal)
	wanted := stamp.OnCreate(in, subject)
	if wanted.Shortened {
		c.find(cluster.Finding, SeverityWarning, "metadata.name", nameShortened(wanted))
	}
	if refusal == "" && wanted.Pin.IsComplete() {
		pinned := object{}
		pinned.Namespace, pinned.Name, pinned.Annotations = cluster.Namespace, subject.Name, wanted.AnnotationValues()
		c.pins = append(c.pins, pinned)
	}
	if subject.Class.Name != "" && !c.classes[subject.Class] {
		c.find(cluster.Finding, SeverityWarning, "spec.topology.classRef",
			fmt.Sprintf("ClusterClass %q of namespace %q is not among the manifests", subject.Class.Name, subject.Class.Namespace))
	}
	return nil
}

// namespaceLabels returns the labels of a Namespace; if it is not among the manifests,
// those that the API server sets on every Namespace.
func (c *checker) namespaceLabels(name string) (labels map[string]string, found bool) {
	if labels, found = c.namespaces[name]; !found {
		labels = map[string]string{corev1.LabelMetadataName: name}
	}
	return labels, found
}

// placed returns the Clusters as they will be once stamped.
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

func (c *checker) fleetCluster(_ context.Context, key types.NamespacedName) (*object, error) {
	return c.existing[key], nil
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
