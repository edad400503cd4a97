// Package crd applies the rules of Muster's CRDs to manifests, with the API server's own code but
// without an API server. It has no rule of its own.
package crd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	schemaobjectmeta "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	clusterv1beta1 "sigs.k8s.io/cluster-api/api/core/v1beta1" //nolint:staticcheck // It is read for as long as Cluster API serves it.
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	shipped "github.com/muster-fleet/muster/manifests"
)

// rules validate one version of a kind.
type rules struct {
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	cel        *cel.Validator
}

var load = sync.OnceValues(func() (map[schema.GroupVersionKind]*rules, error) {
	files, err := fs.Glob(shipped.CRDs, "*/*.yaml")
	if err != nil {
		return nil, err
	}
	all := map[schema.GroupVersionKind]*rules{}
	for _, file := range files {
		content, err := shipped.CRDs.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(content, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for i := range crd.Spec.Versions {
			version := &crd.Spec.Versions[i]
			kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
			if all[kind], err = rulesOf(version.Schema.OpenAPIV3Schema); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return all, nil
})

func rulesOf(external *apiextensionsv1.JSONSchemaProps) (*rules, error) {
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(external, internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, err
	}
	return &rules{structural, validator, cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// typed are the kinds of Cluster API of which unknown fields are found. Examples often have a field of one version
// under the other.
var typed = map[schema.GroupVersionKind]func() any{
	clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind):           func() any { return &clusterv1.Cluster{} },
	clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind):      func() any { return &clusterv1.ClusterClass{} },
	clusterv1beta1.GroupVersion.WithKind(clusterv1.ClusterKind):      func() any { return &clusterv1beta1.Cluster{} },
	clusterv1beta1.GroupVersion.WithKind(clusterv1.ClusterClassKind): func() any { return &clusterv1beta1.ClusterClass{} },
}

// inSchema matches what is below the schema of a variable, where Cluster API's CRDs take any field: they are recursive
// there, which a CRD cannot describe.
var inSchema = regexp.MustCompile(`\.openAPIV3Schema\.(additionalProperties|allOf|anyOf|items|not|oneOf|properties)\b`)

// unknownFields returns the fields that a version of a kind does not have. Types and values are not checked.
func unknownFields(kind schema.GroupVersionKind, raw []byte) (problems field.ErrorList) {
	unknown, _ := json.UnmarshalStrict(raw, typed[kind]())
	for _, err := range unknown {
		if its := json.FieldError(nil); errors.As(err, &its) && !inSchema.MatchString(its.FieldPath()) {
			problems = append(problems, field.Forbidden(field.NewPath(its.FieldPath()), kind.GroupVersion().String()+" has no such field"))
		}
	}
	return problems
}

// unserved returns an error if other versions of a kind are known, but not this one, or if Muster's own version has no
// such kind. The other versions of Muster's group are Cluster API's.
func unserved(kind schema.GroupVersionKind, known []schema.GroupVersionKind) field.ErrorList {
	var served, kinds []string
	for _, its := range known {
		if its.GroupKind() == kind.GroupKind() {
			served = append(served, its.GroupVersion().String())
		}
		if its.GroupVersion() == kind.GroupVersion() {
			kinds = append(kinds, its.Kind)
		}
	}
	slices.Sort(served)
	slices.Sort(kinds)
	switch {
	case served != nil:
		return field.ErrorList{field.NotSupported(field.NewPath("apiVersion"), kind.GroupVersion().String(), served)}
	case kind.GroupVersion() == addonsv1.GroupVersion:
		return field.ErrorList{field.NotSupported(field.NewPath("kind"), kind.Kind, kinds)}
	}
	return nil
}

// Validate returns the errors with which the API server would refuse to create an object, before it calls
// webhooks. Of Clusters and ClusterClasses it returns the fields that do not exist, and a version that Cluster API does
// not serve; of other kinds than Muster's, nothing.
func Validate(ctx context.Context, kind schema.GroupVersionKind, raw []byte) (field.ErrorList, error) {
	all, err := load()
	if err != nil {
		return nil, err
	}
	r := all[kind]
	if typed[kind] != nil {
		return unknownFields(kind, raw), nil
	}
	if r == nil {
		return unserved(kind, slices.Concat(slices.Collect(maps.Keys(all)), slices.Collect(maps.Keys(typed)))), nil
	}
	object := map[string]any{}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &object); err != nil {
		return nil, err
	}
	delete(object, "status") // A client cannot set the status of an object that it creates.
	defaulting.Default(object, r.structural)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, r.structural)
	problems := validation.ValidateCustomResource(nil, object, r.schema)
	problems = append(problems, schemaobjectmeta.Validate(ctx, nil, object, r.structural, false)...)
	problems = append(problems, validateMetadata(object)...)
	problems = append(problems, listtype.ValidateListSetsAndMaps(nil, r.structural, object)...)
	if !slices.ContainsFunc(problems, blocksRules) {
		broken, _ := r.cel.Validate(ctx, nil, r.structural, object, nil, celconfig.RuntimeCELCostBudget)
		problems = append(problems, broken...)
	}
	return problems, nil
}

// blocksRules reports whether the API server skips the CEL rules because of an error.
func blocksRules(err *field.Error) bool {
	switch err.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

// validateMetadata returns the errors in an object's own metadata. A missing namespace is none: kubectl adds one.
func validateMetadata(object map[string]any) field.ErrorList {
	its, path := unstructured.Unstructured{Object: object}, field.NewPath("metadata")
	var problems field.ErrorList
	invalid := func(name, value string, messages []string) {
		for _, message := range messages {
			problems = append(problems, field.Invalid(path.Child(name), value, message))
		}
	}
	switch {
	case its.GetName() != "":
		invalid("name", its.GetName(), apivalidation.NameIsDNSSubdomain(its.GetName(), false))
	case its.GetGenerateName() != "":
		invalid("generateName", its.GetGenerateName(), apivalidation.NameIsDNSSubdomain(its.GetGenerateName(), true))
	default:
		problems = append(problems, field.Required(path.Child("name"), "name or generateName is required"))
	}
	if its.GetNamespace() != "" {
		invalid("namespace", its.GetNamespace(), apivalidation.ValidateNamespaceName(its.GetNamespace(), false))
	}
	return append(problems, metav1validation.ValidateLabels(its.GetLabels(), path.Child("labels"))...)
}
