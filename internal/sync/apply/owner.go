package apply

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// IsOurs reports whether an object is Muster's to change and delete: it made it,
// CAAPF did, or its owner handed it over with the adopt annotation.
func IsOurs(object client.Object) bool {
	return object.GetLabels()[desired.ManagedByLabel] == desired.ManagedBy ||
		object.GetAnnotations()[stamp.AdoptAnnotation] == "true" ||
		IsManager(object)
}

// IsManager reports whether Muster or CAAPF wrote fields of the object. CAAPF used
// managers named "<something>-addon-provider-fleet" beside the one we share.
func IsManager(object client.Object) bool {
	for _, entry := range object.GetManagedFields() {
		if entry.Manager == desired.FieldManager || isLegacyManager(entry.Manager) {
			return true
		}
	}
	return false
}
