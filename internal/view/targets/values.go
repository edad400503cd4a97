package targets

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/data"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/helm/values"
)

const (
	// A value that consists of labelPrefix and a label's key stands for the label's value.
	labelPrefix = "global.fleet.clusterLabels."
	// deepest limits the nesting of values, and patience the time to render them: the templates of a Bundle are
	// someone else's program, which runs on the reader's machine.
	deepest  = 50
	patience = 5 * time.Second
)

// errTooLong means that rendering the values did not end in time.
var errTooLong = errors.New("rendering its values takes too long")

// IsUnknown reports whether an error of Render is one of our bounds, which Fleet does not have.
func IsUnknown(err error) bool {
	return errors.Is(err, errTooLong) || errors.Is(err, values.ErrTooDeep)
}

// WithValues returns a Bundle with the values that Fleet keeps in a Secret of the Bundle's name.
func WithValues(bundle *fleetv1.Bundle, secret map[string][]byte) (*fleetv1.Bundle, error) {
	bundle = bundle.DeepCopy()
	put := func(helm **fleetv1.HelmOptions, key string) error {
		if len(secret[key]) == 0 {
			return nil
		}
		values := &fleetv1.GenericMap{}
		if err := values.UnmarshalJSON(secret[key]); err != nil {
			return fmt.Errorf("key %s: %w", key, err)
		}
		if *helm == nil {
			*helm = &fleetv1.HelmOptions{}
		}
		(*helm).Values = values
		return nil
	}
	if err := put(&bundle.Spec.Helm, "values.yaml"); err != nil {
		return nil, err
	}
	for i := range bundle.Spec.Targets {
		if err := put(&bundle.Spec.Targets[i].Helm, bundle.Spec.Targets[i].Name); err != nil {
			return nil, err
		}
	}
	return bundle, nil
}

// Render renders the values of a Bundle for one of its Clusters. If that fails for one Cluster, Fleet
// updates the Bundle on none.
func Render(bundle *fleetv1.Bundle, match *Match, cluster *fleetv1.Cluster) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				done <- fmt.Errorf("its template panics: %v", cause)
			}
		}()
		done <- render(optionsOf(bundle, match), cluster)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return errTooLong
	}
}

// optionsOf returns the Helm options for a Cluster: the Bundle's, overridden by its target's and
// customizations'.
func optionsOf(bundle *fleetv1.Bundle, match *Match) *fleetv1.HelmOptions {
	target := match.Target.Helm
	if bundle.Spec.TargetCustomizationMode == fleetv1.TargetCustomizationModeAllMatches {
		for _, customization := range match.Customizations {
			target = merged(target, customization.Helm)
		}
	} else if len(match.Customizations) > 0 {
		target = match.Customizations[0].Helm // The customization replaces the target.
	}
	return merged(bundle.Spec.Helm, target)
}

func merged(base, custom *fleetv1.HelmOptions) *fleetv1.HelmOptions {
	base, custom = base.DeepCopy(), custom.DeepCopy()
	switch {
	case custom == nil:
		return base
	case base == nil:
		base = &fleetv1.HelmOptions{}
	}
	switch {
	case base.Values == nil:
		base.Values = custom.Values
	case custom.Values != nil:
		base.Values.Data = data.MergeMaps(base.Values.Data, custom.Values.Data)
	}
	if base.TemplateValues == nil {
		base.TemplateValues = custom.TemplateValues
	} else {
		maps.Copy(base.TemplateValues, custom.TemplateValues)
	}
	base.DisablePreProcess = base.DisablePreProcess || custom.DisablePreProcess
	return base
}

func render(options *fleetv1.HelmOptions, cluster *fleetv1.Cluster) error {
	labels := exported(cluster.Labels)
	for key, value := range cluster.Labels {
		if strings.HasPrefix(key, "fleet.cattle.io/") || strings.HasPrefix(key, "management.cattle.io/") {
			labels[key] = value
		}
	}
	if len(labels) == 0 || options == nil {
		return nil
	}
	values := map[string]any{}
	if options.Values != nil && options.Values.Data != nil {
		values = options.Values.Data
	}
	if options.TemplateValues == nil && len(values) == 0 {
		return nil
	}
	if err := replaceLabels(values, labels, 0); err != nil {
		return err
	}
	if options.DisablePreProcess {
		return nil
	}
	clusterValues := map[string]any{}
	if cluster.Spec.TemplateValues != nil && cluster.Spec.TemplateValues.Data != nil {
		clusterValues = cluster.Spec.TemplateValues.Data
	}
	in := map[string]any{
		"ClusterNamespace":   cluster.Namespace,
		"ClusterName":        cluster.Name,
		"ClusterLabels":      anyMap(labels),
		"ClusterAnnotations": anyMap(exported(cluster.Annotations)),
		"ClusterValues":      clusterValues,
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		return fmt.Errorf("helm.values: %w", err)
	}
	if err := execute("helm.values", string(text), in, &map[string]any{}); err != nil {
		return err
	}
	for key, text := range options.TemplateValues {
		var value any
		if err := execute("helm.templateValues."+key, text, in, &value); err != nil {
			return err
		}
	}
	return nil
}

// replaceLabels replaces values that name a label by the label's value.
func replaceLabels(values map[string]any, labels map[string]string, depth int) error {
	if depth > deepest {
		return fmt.Errorf("helm.values are nested deeper than %d levels", deepest)
	}
	for key, value := range values {
		if text, isText := value.(string); isText {
			if label, found := strings.CutPrefix(text, labelPrefix); found {
				values[key] = labels[label]
			}
			continue
		}
		for _, below := range mapsIn(value) {
			if err := replaceLabels(below, labels, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// mapsIn returns a value if it is a map, or the maps in a list.
func mapsIn(value any) (result []map[string]any) {
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	for _, item := range list {
		if item, isMap := item.(map[string]any); isMap {
			result = append(result, item)
		}
	}
	return result
}

func execute(name, text string, in map[string]any, into any) error {
	parsed, err := values.ParseBounded(template.New(name).Funcs(functions()).Option("missingkey=error"), "${", "}", text)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, in); err != nil {
		return err
	}
	if err := yaml.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("%s is not YAML once it is rendered: %w", name, err)
	}
	return nil
}

// functions are the functions that Fleet's templates may call. getHostByName resolves nothing, because someone
// else wrote the template.
func functions() template.FuncMap {
	known := sprig.TxtFuncMap()
	for _, name := range []string{"env", "expandenv", "include", "tpl"} {
		delete(known, name)
	}
	known["getHostByName"] = func(string) string { return "" }
	return known
}

// exported drops the keys that Fleet hides from templates.
func exported(pairs map[string]string) map[string]string {
	result := make(map[string]string, len(pairs))
	for key, value := range pairs {
		if !strings.HasPrefix(key, "kubectl.kubernetes.io/") && !strings.Contains(key, "cattle.io/") {
			result[key] = value
		}
	}
	return result
}

func anyMap(pairs map[string]string) map[string]any {
	result := make(map[string]any, len(pairs))
	for key, value := range pairs {
		result[key] = value
	}
	return result
}
