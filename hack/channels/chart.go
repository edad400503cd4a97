package main

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/muster-fleet/muster/hack/texts"
)

// chartDir is the folder of the generated chart. It also has handwritten files: helpers, the guard against
// a second release, notes and tests.
const chartDir = "charts/muster"

// chart returns the generated files of the chart by their path.
func chart(root string, all []*unstructured.Unstructured, from image) (map[string]string, error) {
	for _, c := range components {
		if c.byDefault {
			continue
		}
		more, err := kustomize(root, c.dir)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	fallback, err := defaultValues(all, from)
	if err != nil {
		return nil, err
	}
	fields, err := valuesOf(fallback)
	if err != nil {
		return nil, err
	}
	schema, err := schemaFile(fields)
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"Chart.yaml":         chartFile(from.tag),
		"values.yaml":        valuesFile(fields),
		"values.schema.json": schema,
		"README.md":          readme(valuesTable(fields)),
	}
	templates := map[string]string{}
	for _, dir := range parts {
		templates[dir] = ""
	}
	for _, c := range components {
		templates[c.dir] = fmt.Sprintf(".Values.%s.enabled", c.name)
	}
	for dir, condition := range templates {
		if files["templates/"+path.Base(dir)+".yaml"], err = template(root, dir, condition); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
	}
	if files["templates/uninstall.yaml"], err = uninstallTemplate(all); err != nil {
		return nil, err
	}
	result := map[string]string{}
	for name, content := range files {
		result[path.Join(chartDir, name)] = content
	}
	return result, nil
}

// defaultValues returns the values with which the chart installs exactly the objects of manifests/.
func defaultValues(objects []*unstructured.Unstructured, from image) (Values, error) {
	values := Values{
		Image:    ImageValues{Registry: from.registry, Repository: from.repository},
		LogLevel: "info", CRDs: CRDValues{Enabled: true, Keep: true},
		Certificates: CertificateValues{IssuerRef: IssuerValues{Kind: "Issuer", Group: "cert-manager.io"}},
	}
	of := map[string]*ProgramValues{"webhook": &values.Webhook, "syncer": &values.Syncer, "registrar": &values.Registrar, "installer": &values.Installer, "helm": &values.Helm}
	for _, p := range programs(objects) {
		container, err := p.container()
		if err != nil {
			return values, err
		}
		program, known := of[p.name]
		if !known {
			return values, fmt.Errorf("%s: Values has nothing for it", nameOf(p.deployment))
		}
		replicas, _, err := unstructured.NestedInt64(p.deployment.Object, "spec", "replicas")
		if err != nil {
			return values, err
		}
		text := func(fields ...string) string {
			found, _, _ := unstructured.NestedString(container, append([]string{"resources"}, fields...)...)
			return found
		}
		program.Replicas = int(replicas)
		program.Resources = ResourceValues{
			Requests: RequestValues{CPU: text("requests", "cpu"), Memory: text("requests", "memory")},
			Limits:   LimitValues{Memory: text("limits", "memory")},
		}
	}
	return values, nil
}

// template turns a kustomization into a template that is rendered under a condition.
func template(root, dir, condition string) (string, error) {
	objects, err := kustomize(root, dir)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("{{- /* Generated from " + dir + ". Do not edit. */}}\n")
	for _, object := range objects {
		document, err := templateOf(object)
		if err != nil {
			return "", fmt.Errorf("%s: %w", nameOf(object), err)
		}
		conditions := conditionOf(object)
		if condition != "" {
			conditions = append(conditions, condition)
		}
		switch len(conditions) {
		case 0:
			fmt.Fprintf(&out, "---\n%s", document)
		case 1:
			fmt.Fprintf(&out, "{{- if %s }}\n---\n%s{{- end }}\n", conditions[0], document)
		default:
			fmt.Fprintf(&out, "{{- if and (%s) }}\n---\n%s{{- end }}\n", strings.Join(conditions, ") ("), document)
		}
	}
	return out.String(), nil
}

// conditionOf returns the conditions under which its template renders an object.
func conditionOf(object *unstructured.Unstructured) []string {
	switch kind, name := object.GetKind(), object.GetName(); {
	case kind == "CustomResourceDefinition":
		return []string{".Values.crds.enabled"}
	case kind == "Issuer", kind == "Certificate" && name == "muster-ca":
		return []string{"not .Values.certificates.issuerRef.name"}
	case kind == "PodDisruptionBudget":
		// With one pod it would block draining the node.
		return []string{"gt (int .Values.webhook.replicas) 1"}
	default:
		return nil
	}
}

// holes are the places of a document that a release fills. Until the document is text, a word stands for
// each, because YAML has no templates.
type holes struct {
	fill []func(indent, key string) string
}

// line makes a hole that replaces its whole line.
func (h *holes) line(fill func(indent, key string) string) string {
	h.fill = append(h.fill, fill)
	return fmt.Sprintf("HOLE-%d-", len(h.fill)-1)
}

// lines makes a hole for several lines, which it indents.
func (h *holes) lines(text string) string {
	return h.line(func(indent, _ string) string {
		return indent + strings.ReplaceAll(text, "\n", "\n"+indent) + "\n"
	})
}

// scalar makes a hole for the value of a field, or of an item of a list.
func (h *holes) scalar(expression string) string {
	return h.line(func(indent, key string) string { return indent + key + "{{ " + expression + " }}\n" })
}

var hole = regexp.MustCompile(`(?m)^( *)((?:- )?(?:[^ \n]+: )?)HOLE-(\d+)-\n`)

func (h *holes) filled(document string) string {
	return hole.ReplaceAllStringFunc(document, func(line string) string {
		match := hole.FindStringSubmatch(line)
		var index int
		_, _ = fmt.Sscan(match[3], &index)
		return h.fill[index](match[1], match[2])
	})
}

const releaseNamespace = "RELEASE-NAMESPACE"

// templateOf turns an object into a template.
func templateOf(object *unstructured.Unstructured) (string, error) {
	object = object.DeepCopy()
	var h holes
	switch object.GetKind() {
	case "CustomResourceDefinition":
		annotations := object.GetAnnotations()
		annotations["helm.sh/resource-policy"] = h.lines("{{- if .Values.crds.keep }}\nhelm.sh/resource-policy: keep\n{{- end }}")
		object.SetAnnotations(annotations)
	case "Certificate":
		if object.GetName() != "muster-ca" {
			reference := h.lines("issuerRef:\n  group: {{ .Values.certificates.issuerRef.group | quote }}\n" +
				"  kind: {{ .Values.certificates.issuerRef.kind | quote }}\n  name: {{ .Values.certificates.issuerRef.name | default \"muster-ca\" | quote }}")
			if err := unstructured.SetNestedField(object.Object, reference, "spec", "issuerRef"); err != nil {
				return "", err
			}
		}
	case "Deployment":
		if err := templateProgram(programs([]*unstructured.Unstructured{object})[0], &h); err != nil {
			return "", err
		}
	case "Job":
		if err := templateProgram(program{"syncer", object}, &h); err != nil {
			return "", err
		}
	}
	texts.Each(object.Object, func(text string) string {
		if text == namespace {
			return h.scalar(".Release.Namespace | quote")
		}
		return strings.ReplaceAll(text, namespace, releaseNamespace)
	})
	text, err := encode([]*unstructured.Unstructured{object})
	if err != nil {
		return "", err
	}
	text = strings.ReplaceAll(text, "{{", `{{ "{{" }}`)
	text = strings.ReplaceAll(text, releaseNamespace, "{{ .Release.Namespace }}")
	return h.filled(text), nil
}

// templateProgram makes holes in a Deployment, or in a Job that runs the same program.
func templateProgram(p program, h *holes) error {
	container, err := p.container()
	if err != nil {
		return err
	}
	values := ".Values." + p.name
	container["image"] = h.lines(fmt.Sprintf("image: {{ include \"muster.image\" (list . %q) }}\n"+
		"{{- with .Values.image.pullPolicy }}\nimagePullPolicy: {{ . }}\n{{- end }}", "muster-"+p.name))
	container["resources"] = h.line(func(indent, _ string) string {
		return fmt.Sprintf("%sresources: {{- toYaml %s.resources | nindent %d }}\n", indent, values, len(indent)+2)
	})
	args, _, err := unstructured.NestedStringSlice(container, "args")
	if err != nil {
		return err
	}
	var templated []any
	for _, arg := range args {
		if strings.HasPrefix(arg, logLevelArg) {
			arg = h.scalar("print \"" + logLevelArg + "\" .Values.logLevel | quote")
		}
		templated = append(templated, arg)
	}
	container["args"] = append(templated, h.lines("{{- range "+values+".extraArgs }}\n- {{ . | quote }}\n{{- end }}"))
	for _, variable := range container["env"].([]any) {
		if fields := variable.(map[string]any); fields["name"] == "GOMEMLIMIT" {
			fields["value"] = h.scalar("include \"muster.memory\" " + values + ".resources.limits.memory")
		}
	}
	if err := p.setContainer(container); err != nil {
		return err
	}
	spec := p.deployment.Object["spec"].(map[string]any)
	if p.deployment.GetKind() == "Deployment" {
		spec["replicas"] = h.scalar(values + ".replicas")
	}
	pod := spec["template"].(map[string]any)["spec"].(map[string]any)
	for _, field := range []string{"imagePullSecrets", "nodeSelector", "tolerations"} {
		pod[field] = h.line(func(indent, _ string) string {
			return fmt.Sprintf("%[1]s{{- with .Values.%[2]s }}\n%[1]s%[2]s: {{- toYaml . | nindent %[3]d }}\n%[1]s{{- end }}\n", indent, field, len(indent)+2)
		})
	}
	return nil
}
