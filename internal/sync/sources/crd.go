package sources

import (
	"maps"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// CRD returns an empty CRD of which only metadata is read and cached.
func CRD() *metav1.PartialObjectMetadata {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return crd
}

// settling is how long after its creation a CRD's kind may not be served yet.
const settling = time.Minute

// ContractNews passes what can change whether and in which version a kind is read: a CRD that
// appears, goes or changes its labels, and what happens to a new one. What is found at
// startup is not news: nothing was read before.
var ContractNews = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
			e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
			time.Since(e.ObjectNew.GetCreationTimestamp().Time) < settling && e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion()
	},
}
