package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/go-openapi/jsonpointer"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Stamper is the mutating webhook for CAPI Clusters. It stamps them when they are created, and keeps the stamp
// complete when they are updated. It reads from caches only.
type Stamper struct {
	// Settings reads the settings in force.
	Settings *settings.Reader
	// Namespaces reads the cached metadata of Namespaces.
	Namespaces client.Reader
	// Others are the Fleet Clusters that exist.
	Others inventory
	// Syncer is the user name of the syncer. Only its updates may pin.
	Syncer string
}

var _ admission.Handler = (*Stamper)(nil)

// Handle answers one admission request with a patch of the stamp's keys. If it cannot decide,
// it leaves the pin as it is: the syncer pins later.
func (s *Stamper) Handle(ctx context.Context, req admission.Request) admission.Response {
	cluster, err := parseCluster(req.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	var wanted stamp.Stamp
	var warnings []string
	hook, isRestored := "", false
	switch req.Operation {
	case admissionv1.Create:
		wanted, warnings = s.onCreate(ctx, req, cluster.subject(req.Namespace))
		hook = hold.OnCreate(cluster.held(), time.Now())
	case admissionv1.Update:
		old, err := parseCluster(req.OldObject.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		bySyncer := s.Syncer != "" && req.UserInfo.Username == s.Syncer
		wanted = stamp.OnUpdate(cluster.subject(req.Namespace), stamp.PinOf(old.Metadata.Annotations), bySyncer)
		hook = hold.OnUpdate(old.held(), cluster.held(), bySyncer, time.Now())
		isRestored = hook != "" && hook == old.Metadata.Annotations[stamp.HookAnnotation]
	default:
		return admission.Allowed("")
	}

	response := admission.Patched("", patches(cluster, wanted, hook)...)
	if _, found := cluster.Metadata.Annotations[stamp.HookAnnotation]; isRestored && !found {
		response.Warnings = append(response.Warnings, fmt.Sprintf("annotation %s stays: the upgrade waits for its add-ons; to end that, set %s to 0", stamp.HookAnnotation, stamp.HoldAnnotation))
	}
	response.Warnings = append(response.Warnings, warnings...)
	return response
}

func (s *Stamper) onCreate(ctx context.Context, req admission.Request, subject stamp.Subject) (wanted stamp.Stamp, warnings []string) {
	current, labels, err := settingsFor(ctx, s.Settings, s.Namespaces, req.Namespace)
	var another string
	if err == nil {
		subject, another, err = withOwnPin(ctx, s.Others, req.Namespace, subject)
	}
	if err != nil {
		// Neither the class nor a pin that the Cluster already has depends on settings. The syncer pins the Cluster
		// as soon as it can.
		ctrl.LoggerFrom(ctx).Error(err, "Left the pin of a Cluster as it is", "namespace", req.Namespace, "name", req.Name)
		return stamp.OnUpdate(subject, stamp.PinOf(subject.Annotations), false), nil
	}
	subject.NamespaceLabels = labels
	wanted = stamp.OnCreate(current, subject)
	return wanted, pinWarnings(current, subject, wanted, another)
}

// patches returns the JSON patch that gives a Cluster its stamp and its hold: one operation for each key that differs,
// and none for other fields.
func patches(cluster *clusterRequest, wanted stamp.Stamp, hook string) []jsonpatch.Operation {
	annotations := wanted.AnnotationValues()
	annotations[stamp.HookAnnotation] = hook
	return slices.Concat(
		mapPatches("/metadata/labels", cluster.Metadata.Labels, wanted.LabelValues()),
		mapPatches("/metadata/annotations", cluster.Metadata.Annotations, annotations))
}

func mapPatches(path string, current, wanted map[string]string) []jsonpatch.Operation {
	changes := stamp.Changes(current, wanted)
	if len(changes) == 0 {
		return nil
	}
	var operations []jsonpatch.Operation
	if current == nil {
		operations = append(operations, jsonpatch.NewOperation("add", path, map[string]string{}))
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		target := path + "/" + jsonpointer.Escape(key)
		if value := changes[key]; value != nil {
			operations = append(operations, jsonpatch.NewOperation("add", target, *value))
		} else {
			operations = append(operations, jsonpatch.NewOperation("remove", target, nil))
		}
	}
	return operations
}

// settingsFor reads the settings in force, and the labels of a Namespace if a selector
// needs them.
func settingsFor(ctx context.Context, reader *settings.Reader, namespaces client.Reader, namespace string) (current settings.Settings, labels map[string]string, err error) {
	in, err := reader.Current(ctx)
	if err != nil {
		return current, nil, err
	}
	if in.Invalid == nil && !in.Cluster.NamespaceSelector.Empty() {
		labels, err = namespaceLabels(ctx, namespaces, namespace)
	}
	return in.Settings, labels, errors.Join(in.Invalid, err)
}

func namespaceLabels(ctx context.Context, reader client.Reader, name string) (map[string]string, error) {
	namespace := ofKind(namespaceKind)
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	return namespace.Labels, nil
}
