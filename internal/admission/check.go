package admission

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Severity says whether a finding is refused or only warned of.
type Severity string

// The severities of findings.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Finding is what the webhooks would say of a manifest.
type Finding struct {
	File      string   `json:"file"`
	Kind      string   `json:"kind,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Severity  Severity `json:"severity"`
	// Path is the field; empty if it is about the whole object.
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

// Manifests are objects to check without a cluster. They are each other's inventory:
// what is not among them does not exist.
type Manifests struct {
	configs    []manifest[*addonsv1.FleetAddonConfig]
	created    []manifest[*clusterRequest]
	classes    map[types.NamespacedName]bool
	existing   map[types.NamespacedName]*object // Fleet Clusters
	namespaces map[string]map[string]string
	pins       []object // Clusters that were looked at, pinned
	findings   []Finding
}

var _ inventory = (*Manifests)(nil)

type manifest[T any] struct {
	// Finding says where it is from.
	Finding
	object T
}

// Read adds the objects of a stream of YAML or JSON documents. Kinds that no policy
// concerns are passed over. What cannot be read is a finding, as the rest may be.
func (m *Manifests) Read(file string, from io.Reader) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(from))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			m.find(Finding{File: file}, SeverityError, "", fmt.Sprintf("document %d: %v", number, err))
			return
		}
		raw, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			m.find(Finding{File: file}, SeverityError, "", fmt.Sprintf("document %d: %v", number, err))
			continue
		}
		m.add(file, raw)
	}
}

func (m *Manifests) add(file string, raw []byte) {
	var header struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Items             []jsonObject `json:"items"`
	}
	if string(raw) == "null" {
		return
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &header); err != nil {
		m.find(Finding{File: file}, SeverityError, "", err.Error())
		return
	}
	if header.Kind == "List" && header.APIVersion == "v1" {
		for _, item := range header.Items {
			m.add(file, item)
		}
		return
	}
	kind := schema.FromAPIVersionAndKind(header.APIVersion, header.Kind).GroupKind()
	about := Finding{File: file, Kind: header.Kind, Namespace: cmp.Or(header.Namespace, metav1.NamespaceDefault), Name: cmp.Or(header.Name, header.GenerateName)}
	key := types.NamespacedName{Namespace: about.Namespace, Name: header.Name}
	switch kind {
	case addonsv1.GroupVersion.WithKind("FleetAddonConfig").GroupKind():
		about.Namespace = ""
		m.addConfig(about, raw)
	case clusterKind.GroupKind():
		cluster, err := parseCluster(raw)
		if err != nil {
			m.find(about, SeverityError, "", err.Error())
			return
		}
		m.created = append(m.created, manifest[*clusterRequest]{about, cluster})
	case classKind.GroupKind():
		put(&m.classes, key, true)
	case fleetClusterKind.GroupKind():
		put(&m.existing, key, &object{TypeMeta: header.TypeMeta, ObjectMeta: header.ObjectMeta})
	case corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind():
		labels := map[string]string{}
		for name, value := range header.Labels {
			labels[name] = value
		}
		labels[corev1.LabelMetadataName] = header.Name
		put(&m.namespaces, header.Name, labels)
	}
}

// jsonObject is JSON that is read later.
type jsonObject []byte

// UnmarshalJSON keeps the text.
func (o *jsonObject) UnmarshalJSON(raw []byte) error {
	*o = append((*o)[:0], raw...)
	return nil
}

func put[K comparable, V any](into *map[K]V, key K, value V) {
	if *into == nil {
		*into = map[K]V{}
	}
	(*into)[key] = value
}

// fieldName finds the field that a strict decoder complains about.
var fieldName = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

func (m *Manifests) addConfig(about Finding, raw []byte) {
	config := &addonsv1.FleetAddonConfig{}
	strict, err := json.UnmarshalStrict(raw, config)
	if err != nil {
		m.find(about, SeverityError, "", err.Error())
		return
	}
	for _, err := range strict {
		path, message := "", err.Error()
		if match := fieldName.FindStringSubmatch(message); match != nil {
			path, message = match[2], "is a field that a FleetAddonConfig does not have; remove it, or correct its spelling"
			if match[1] == "duplicate" {
				message = "is given twice; remove one"
			}
		}
		m.find(about, SeverityError, path, message)
	}
	if len(m.configs) > 0 {
		m.find(about, SeverityError, "", "is the second FleetAddonConfig, after that of "+m.configs[0].File+"; there is one")
	}
	m.configs = append(m.configs, manifest[*addonsv1.FleetAddonConfig]{about, config})
}

func (m *Manifests) find(about Finding, severity Severity, path, message string) {
	if message == "" {
		return
	}
	about.Severity, about.Path, about.Message = severity, path, message
	m.findings = append(m.findings, about)
}

// Check returns what the webhooks would say if the manifests were created in their order
// on a cluster without others: no requester is known, so nobody is asked who may use a
// class of another namespace, and a CA that a FleetAddonConfig refers to is not read.
func (m *Manifests) Check(ctx context.Context) ([]Finding, error) {
	for _, config := range m.configs {
		for _, err := range validateConfig(config.object) {
			m.find(config.Finding, SeverityError, err.Field, err.ErrorBody())
		}
		for _, warning := range warnings(config.object) {
			m.find(config.Finding, SeverityWarning, "", warning)
		}
	}
	current := settings.Default()
	if len(m.configs) > 0 {
		var err error
		if current, err = settings.From(m.configs[0].object); err != nil {
			return m.findings, nil // Said above; nobody can tell what it means for Clusters.
		}
	}
	if len(m.configs) > 0 {
		m.find(m.configs[0].Finding, SeverityWarning, "", matchedByOne(m.configs[0].object, current, m.placed()))
	}
	for _, cluster := range m.created {
		if err := m.checkCluster(ctx, current, cluster); err != nil {
			return nil, err
		}
	}
	return m.findings, nil
}

func (m *Manifests) checkCluster(ctx context.Context, in settings.Settings, cluster manifest[*clusterRequest]) error {
	subject := cluster.object.subject(cluster.Namespace)
	var found bool
	subject.NamespaceLabels, found = m.namespaceLabels(cluster.Namespace)
	unselected := notImported(in, subject, stamp.Pin{})
	if unselected != "" && !found && !in.Cluster.NamespaceSelector.Empty() {
		unselected += "; its Namespace is not among the manifests"
	}
	m.find(cluster.Finding, SeverityWarning, "metadata.labels", unselected)

	refusal, err := nameTaken(ctx, m, in, cluster.Namespace, subject)
	if err != nil {
		return err
	}
	m.find(cluster.Finding, SeverityError, "metadata.name", refusal)
	wanted := stamp.OnCreate(in, subject)
	if wanted.Shortened {
		m.find(cluster.Finding, SeverityWarning, "metadata.name", nameShortened(wanted))
	}
	if refusal == "" && wanted.Pin.IsComplete() {
		pinned := object{}
		pinned.Namespace, pinned.Name, pinned.Annotations = cluster.Namespace, subject.Name, wanted.AnnotationValues()
		m.pins = append(m.pins, pinned)
	}
	if subject.Class.Name != "" && !m.classes[subject.Class] {
		m.find(cluster.Finding, SeverityWarning, "spec.topology.classRef",
			fmt.Sprintf("ClusterClass %q of namespace %q is not among the manifests", subject.Class.Name, subject.Class.Namespace))
	}
	return nil
}

// namespaceLabels returns those of a Namespace; of one that is not among the manifests,
// those that the API server gives it.
func (m *Manifests) namespaceLabels(name string) (labels map[string]string, found bool) {
	if labels, found = m.namespaces[name]; !found {
		labels = map[string]string{corev1.LabelMetadataName: name}
	}
	return labels, found
}

// placed returns the Clusters as they will be once stamped.
func (m *Manifests) placed() []placed {
	var all []placed
	for _, cluster := range m.created {
		namespace, _ := m.namespaceLabels(cluster.Namespace)
		subject := cluster.object.subject(cluster.Namespace)
		all = append(all, placed{
			NamespacedName:  types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name},
			labels:          stamp.WithClassLabels(subject.Labels, subject.Class),
			namespaceLabels: namespace,
		})
	}
	return all
}

func (m *Manifests) fleetCluster(_ context.Context, key types.NamespacedName) (*object, error) {
	return m.existing[key], nil
}

func (m *Manifests) pinnedTo(_ context.Context, namespace, fleetCluster string) ([]object, error) {
	var result []object
	for _, cluster := range m.pins {
		if cluster.Namespace == namespace && stamp.PinOf(cluster.Annotations).ClusterName == fleetCluster {
			result = append(result, cluster)
		}
	}
	return result, nil
}

func (m *Manifests) hasCluster(_ context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
	return slices.ContainsFunc(m.created, func(cluster manifest[*clusterRequest]) bool {
		return cluster.Namespace == key.Namespace && cluster.object.Metadata.Name == key.Name && uid == ""
	}), nil
}

func (m *Manifests) hasClass(_ context.Context, key types.NamespacedName) (found, known bool, err error) {
	return m.classes[key], true, nil
}

func (m *Manifests) clusters(context.Context) (all []object, known bool, err error) {
	return m.pins, true, nil
}
