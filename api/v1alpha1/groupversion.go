// Package v1alpha1 is the API of Muster in group addons.cluster.x-k8s.io: the
// cluster-scoped singleton FleetAddonConfig, wire-compatible with the API of
// cluster-api-addon-provider-fleet (CAAPF), and HelmChartProxy and HelmReleaseProxy,
// those of cluster-api-addon-provider-helm (CAAPH): every object its users have is
// accepted and means what their documentation says.
//
// The package holds types only. What a missing field means is decided in
// internal/settings, and what a value must look like in the markers below and in
// internal/admission.
//
// +kubebuilder:object:generate=true
// +groupName=addons.cluster.x-k8s.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of the types in this package.
var GroupVersion = schema.GroupVersion{Group: "addons.cluster.x-k8s.io", Version: "v1alpha1"}

var schemeBuilder = runtime.NewSchemeBuilder(func(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &FleetAddonConfig{}, &FleetAddonConfigList{},
		&HelmChartProxy{}, &HelmChartProxyList{}, &HelmReleaseProxy{}, &HelmReleaseProxyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
})

// AddToScheme registers the types of this package. It returns an error only if
// another type is already registered under one of their names.
var AddToScheme = schemeBuilder.AddToScheme

// SchemaRevisionAnnotation on the CRDs of this package holds the revision of their schemas. Earlier CRDs have none.
const SchemaRevisionAnnotation = "fleet.addons.cluster.x-k8s.io/schema-revision"

// SchemaRevision is the current revision. Raise it, and the markers of the three kinds, with every change of a schema but
// of descriptions.
const SchemaRevision = 3
