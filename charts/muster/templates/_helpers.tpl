{{- /* The image of a Deployment, given the root and the Deployment's name. */}}
{{- define "muster.image" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.image -}}
{{- printf "%s:%s" (list .registry .repository (index $ 1) | compact | join "/") (.tag | default $root.Chart.AppVersion) | quote -}}
{{- end -}}
{{- end }}

{{- /* Nine tenths of a memory limit, as Go's runtime wants it. The schema knows Mi and Gi. */}}
{{- define "muster.memory" -}}
{{- $mebibytes := . | trimSuffix "Mi" | trimSuffix "Gi" | int -}}
{{- if hasSuffix "Gi" . }}{{ $mebibytes = mul $mebibytes 1024 }}{{ end -}}
{{- printf "%dMiB" (div (mul $mebibytes 9) 10) -}}
{{- end }}
