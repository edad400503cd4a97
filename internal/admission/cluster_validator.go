package admission

import (
	"context"
	"errors"
	"maps"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// ClusterValidator is the validating webhook for the names of Clusters in Fleet, and for warnings. It reads from
// caches only. If it cannot decide, it allows the request, and the syncer finds the conflicts that it misses.
type ClusterValidator struct {
	// Settings reads the settings in force.
	Settings *settings.Reader
	// Namespaces are the cached metadata of Namespaces.
	Namespaces client.Reader
	// Others is the inventory of existing objects.
	Others inventory
}

var _ admission.Handler = (*ClusterValidator)(nil)

// Handle answers one admission request. It refuses creates only: users must be able to change an existing Cluster,
// even if its name is taken by now.
func (v *ClusterValidator) Handle(ctx context.Context, req admission.Request) admission.Response {
	cluster, err := parseCluster(req.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	before, created := &clusterRequest{}, req.Operation == admissionv1.Create
	if req.Operation == admissionv1.Update {
		if before, err = parseCluster(req.OldObject.Raw); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
	}
	subject := cluster.subject(req.Namespace)
	newClass := created || subject.Class != before.class(req.Namespace)
	newLabels := newClass || !maps.Equal(subject.Labels, before.Metadata.Labels)
	response := admission.Allowed("")

	current, labels, undecided := settingsFor(ctx, v.Settings, v.Namespaces, req.Namespace)
	if undecided == nil {
		subject.NamespaceLabels = labels
		if created {
			var refusal string
			if refusal, undecided = nameTaken(ctx, v.Others, current, req.Namespace, subject); refusal != "" {
				response = admission.Denied(refusal)
			}
		}
		if newLabels {
			response.Warnings = appendText(response.Warnings, notImported(current, subject, stamp.PinOf(before.Metadata.Annotations)))
		}
		if asked := stamp.RegistrationAnnotation; created || subject.Annotations[asked] != before.Metadata.Annotations[asked] {
			response.Warnings = appendText(response.Warnings, unknownRegistration(current, subject))
		}
		response.Warnings = appendText(response.Warnings, tooMuchToCopy(current, before, subject))
	}
	response.Warnings = appendText(response.Warnings, holdsNothing(before.held(), cluster.held()))
	if newClass {
		missing, err := classMissing(ctx, v.Others, subject.Class)
		undecided = errors.Join(undecided, err)
		response.Warnings = appendText(response.Warnings, missing)
	}
	if undecided != nil {
		ctrl.LoggerFrom(ctx).Error(undecided, "Did not check all of a Cluster", "namespace", req.Namespace, "name", req.Name)
	}
	return response
}

func appendText(texts []string, text string) []string {
	if text == "" {
		return texts
	}
	return append(texts, text)
}
