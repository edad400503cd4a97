package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/settings"
)

// OlderCRDs says which of Muster's CRDs are older than the syncer, as the syncer reports it. Otherwise it is empty.
func OlderCRDs(config *addonsv1.FleetAddonConfig) string {
	if config != nil {
		if apis := meta.FindStatusCondition(config.Status.Conditions, addonsv1.APIsAvailableCondition); apis != nil && apis.Status == metav1.ConditionTrue {
			return apis.Message
		}
	}
	return ""
}

// SecretsLetIn says whose secret fields reach Fleet, and who has asked for that, if the FleetAddonConfig replaces the
// default of spec.cluster.templateValues.exclude by a list that lacks some of it. Otherwise it is empty.
func SecretsLetIn(config *addonsv1.FleetAddonConfig) string {
	if config == nil || config.Spec.Cluster == nil || config.Spec.Cluster.TemplateValues == nil || config.Spec.Cluster.TemplateValues.Exclude == nil {
		return ""
	}
	list := *config.Spec.Cluster.TemplateValues.Exclude
	isOut := func(pointer string) bool {
		return slices.ContainsFunc(list, func(entry string) bool { return pointer == entry || strings.HasPrefix(pointer, entry+"/") })
	}
	var letIn []string
	for _, kind := range settings.Kinds() {
		if slices.ContainsFunc(kind.Excluded(), func(pointer string) bool { return !isOut(pointer) }) {
			letIn = append(letIn, kind.Kind)
		}
	}
	if letIn == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s replaced the default of spec.cluster.templateValues.exclude, so that secret fields can reach Fleet, of %s",
		Config, cmp.Or(strings.Join(settersOfExclude(config), " and "), "someone"), strings.Join(letIn, ", "))
}

// settersOfExclude returns the field managers that have set the list.
func settersOfExclude(config *addonsv1.FleetAddonConfig) []string {
	var result []string
	for _, entry := range config.ManagedFields {
		var fields map[string]any
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, found, _ := unstructured.NestedFieldNoCopy(fields, "f:spec", "f:cluster", "f:templateValues", "f:exclude"); found {
			result = append(result, message.Text(entry.Manager))
		}
	}
	return result
}
