package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

//go:embed values.go
var valuesSource string

// value is a field of the chart's values, as values.yaml, schema and README describe it.
type value struct {
	name     string
	doc      string
	fallback any
	schema   map[string]any
	required bool
	// fields are the fields of an object; nil for a value that is set as a whole.
	fields []value
}

// valuesOf describes Values with these defaults, and the switches of the components.
func valuesOf(fallback Values) ([]value, error) {
	docs, err := fieldDocs(valuesSource)
	if err != nil {
		return nil, err
	}
	fields, err := docs.fields(reflect.ValueOf(fallback))
	if err != nil {
		return nil, err
	}
	for _, c := range components {
		enabled := value{name: "enabled", doc: c.doc, fallback: c.byDefault, schema: map[string]any{"type": "boolean"}}
		// A component with a program has that program's values, too.
		if i := slices.IndexFunc(fields, func(field value) bool { return field.name == c.name }); i >= 0 {
			fields[i].fields = append([]value{enabled}, fields[i].fields...)
			continue
		}
		fields = append(fields, value{name: c.name, doc: "A component.", fields: []value{enabled}})
	}
	return fields, nil
}

// documentation has the comments of fields, by type and field.
type documentation map[string]map[string]string

// fieldDocs reads the comments above fields.
func fieldDocs(source string) (documentation, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "values.go", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	docs := documentation{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.TypeSpec)
		if !ok {
			return true
		}
		docs[spec.Name.Name] = map[string]string{}
		if structure, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range structure.Fields.List {
				docs[spec.Name.Name][field.Names[0].Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
			}
		}
		return false
	})
	return docs, nil
}

func (d documentation) fields(structure reflect.Value) ([]value, error) {
	var result []value
	for i := range structure.NumField() {
		field := structure.Type().Field(i)
		described := value{
			name: field.Tag.Get("json"), doc: d[structure.Type().Name()][field.Name],
			required: field.Tag.Get("required") == "true",
		}
		if described.doc == "" {
			return nil, fmt.Errorf("%s.%s has no comment", structure.Type().Name(), field.Name)
		}
		var err error
		if field.Type.Kind() == reflect.Struct {
			described.fields, err = d.fields(structure.Field(i))
		} else {
			described.fallback = structure.Field(i).Interface()
			described.schema, err = d.schema(field.Type, field.Tag)
		}
		if err != nil {
			return nil, err
		}
		result = append(result, described)
	}
	return result, nil
}

// schema returns the schema of a type whose field has this tag.
func (d documentation) schema(of reflect.Type, tag reflect.StructTag) (map[string]any, error) {
	switch of.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}, nil
	case reflect.Int:
		minimum, err := strconv.Atoi(tag.Get("minimum"))
		return map[string]any{"type": "integer", "minimum": minimum}, err
	case reflect.String:
		result := map[string]any{"type": "string"}
		if pattern := tag.Get("pattern"); pattern != "" {
			result["pattern"] = pattern
		}
		if allowed := tag.Get("enum"); allowed != "" {
			result["enum"] = strings.Split(allowed, ",")
		}
		return result, nil
	case reflect.Slice:
		items, err := d.schema(of.Elem(), tag)
		return map[string]any{"type": "array", "items": items}, err
	case reflect.Map:
		values, err := d.schema(of.Elem(), tag)
		return map[string]any{"type": "object", "additionalProperties": values}, err
	case reflect.Struct:
		fields, err := d.fields(reflect.Zero(of))
		return objectSchema(fields), err
	default:
		return nil, fmt.Errorf("a %s cannot be described", of)
	}
}

// objectSchema returns the schema of an object with these fields and no others.
func objectSchema(fields []value) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, field := range fields {
		property := field.schema
		if field.fields != nil {
			property = objectSchema(field.fields)
		}
		property["description"] = field.doc
		properties[field.name] = property
		if field.required {
			required = append(required, field.name)
		}
	}
	result := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		result["required"] = required
	}
	return result
}

// schemaFile returns values.schema.json.
func schemaFile(fields []value) (string, error) {
	schema := objectSchema(fields)
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	// Helm adds it if the chart is a part of another.
	schema["properties"].(map[string]any)["global"] = map[string]any{"type": "object"}
	content, err := json.MarshalIndent(schema, "", "  ")
	return string(content) + "\n", err
}

// valuesFile returns values.yaml.
func valuesFile(fields []value) string {
	var out strings.Builder
	out.WriteString("# Generated from hack/channels/values.go and manifests/. Do not edit.\n")
	writeValues(&out, fields, "")
	return out.String()
}

func writeValues(out *strings.Builder, fields []value, indent string) {
	for _, field := range fields {
		fmt.Fprintf(out, "%s# %s\n%s%s:", indent, field.doc, indent, field.name)
		if field.fields != nil {
			out.WriteString("\n")
			writeValues(out, field.fields, indent+"  ")
			continue
		}
		fmt.Fprintf(out, " %s\n", inline(field.fallback))
	}
}

// inline writes a default as YAML on one line: JSON is YAML.
func inline(fallback any) string {
	of := reflect.ValueOf(fallback)
	switch of.Kind() {
	case reflect.Slice:
		if of.Len() == 0 {
			return "[]"
		}
	case reflect.Map:
		if of.Len() == 0 {
			return "{}"
		}
	}
	content, err := json.Marshal(fallback)
	if err != nil {
		panic(err) // Values has only fields that encoding/json can write.
	}
	return string(content)
}

// valuesTable returns the table of values in the README.
func valuesTable(fields []value) string {
	var out strings.Builder
	out.WriteString("| Value | Default | |\n|---|---|---|\n")
	writeRows(&out, fields, "")
	return out.String()
}

func writeRows(out *strings.Builder, fields []value, prefix string) {
	for _, field := range fields {
		if field.fields != nil {
			writeRows(out, field.fields, prefix+field.name+".")
			continue
		}
		doc := field.doc
		if allowed, ok := field.schema["enum"].([]string); ok {
			doc += " One of " + strings.Join(quoted(allowed), ", ") + "."
		}
		fmt.Fprintf(out, "| `%s%s` | `%s` | %s |\n", prefix, field.name, inline(field.fallback), doc)
	}
}

func quoted(values []string) []string {
	var result []string
	for _, v := range values {
		result = append(result, fmt.Sprintf("`%q`", v))
	}
	return result
}
