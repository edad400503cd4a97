{{- /* The components with a Deployment that are installed, in one line. */}}
{{- define "muster.components" -}}
webhook syncer
{{- range list "registrar" "installer" "helm" }}{{ if (index $.Values .).enabled }} {{ . }}{{ end }}{{ end }}
{{- end }}

{{- /* Labels of an object: its own, which nothing replaces, and the common ones; given the root and its own. */}}
{{- define "muster.labels" -}}
{{- with mergeOverwrite (deepCopy (((index . 0).Values.global).commonLabels | default dict)) (index . 1) }}
labels: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The image of a component, given the root and the component's name. */}}
{{- define "muster.image" -}}
{{- $root := index . 0 -}}
{{- $own := (index $root.Values (index . 1)).image | default dict -}}
{{- $whole := list $root.Values.image.registry $root.Values.image.repository (print "muster-" (index . 1)) | compact | join "/" -}}
{{- $name := $own.repository | default $whole -}}
{{- if $own.digest }}{{ printf "%s@%s" $name $own.digest | quote }}
{{- else }}{{ printf "%s:%s" $name ($own.tag | default $root.Values.image.tag | default $root.Chart.AppVersion) | quote }}
{{- end -}}
{{- end }}

{{- /* Nine tenths of a quantity of memory in bytes, as Go's runtime wants it. */}}
{{- define "muster.memory" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $units := dict "" 1 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf (trimSuffix $unit $text | float64) (get $units $unit) 0.9 | floor | int64 -}}
{{- end }}

{{- /* The environment variables of a container, of which extraEnv replaces those with the same name. */}}
{{- define "muster.env" -}}
{{- $limit := dig "resources" "limits" "memory" "" .values -}}
{{- if and (eq .name "helm") (not $limit) }}{{ fail "helm.resources.limits.memory is missing: helm reads charts in child processes, whose limits are parts of it. Set a quantity, such as 512Mi." }}{{ end -}}
{{- $names := list }}
{{- range .values.extraEnv }}{{ $names = append $names .name }}{{ end }}
{{- if has "POD_NAMESPACE" $names }}{{ fail (printf "%s.extraEnv sets POD_NAMESPACE, but the chart sets it, to the namespace of the pod. Remove it." .name) }}{{ end -}}
{{- $namespace := "- name: POD_NAMESPACE\n  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}" }}
{{- /* The order is that of manifests/. */}}
{{- if ne .name "webhook" }}
{{ $namespace }}
{{- end }}
{{- with get (dict "webhook" "40" "syncer" "50") .name }}{{ if not (has "GOGC" $names) }}
- {name: GOGC, value: {{ quote . }}}
{{- end }}{{ end }}
{{- if and $limit (not (has "GOMEMLIMIT" $names)) }}
- {name: GOMEMLIMIT, value: {{ include "muster.memory" $limit | quote }}}
{{- end }}
{{- if eq .name "webhook" }}
{{ $namespace }}
{{- end }}
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The template of a component's pods, given a dict of root, name, values and job. A Job runs the program once to end
       the holds of upgrades: without ports, probes and certificate, and with labels that no selector matches. */}}
{{- define "muster.pod" -}}
{{- $root := .root }}{{ $name := .name }}{{ $values := .values }}{{ $global := .root.Values.global | default dict }}
{{- $own := dict "app.kubernetes.io/name" "muster" "app.kubernetes.io/component" (.job | default .name) }}
{{- /* In an upgrade, Helm 3 keeps one of two mounts of a path without a word, and its error for two volumes of a name does
       not say which. */}}
{{- range $values.extraVolumes }}{{ if eq .name "tls" }}
{{- fail (printf "%s.extraVolumes has a volume tls, but the chart's own volume with the certificate has this name. Give yours another name." $name) }}
{{- end }}{{ end }}
{{- range $values.extraVolumeMounts }}{{ if eq (.mountPath | default "" | clean) (printf "/etc/muster/%s-tls" $name) }}
{{- fail (printf "%s.extraVolumeMounts mounts %s at %s, where the chart mounts the certificate. Choose another mountPath." $name .name .mountPath) }}
{{- end }}{{ end }}
metadata:
  {{- include "muster.labels" (list $root (mergeOverwrite (deepCopy ($values.podLabels | default dict)) $own)) | trim | nindent 2 }}
  {{- with mergeOverwrite (ternary dict (dict "kubectl.kubernetes.io/default-container" "manager") (hasKey . "job")) ($values.podAnnotations | default dict) }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $global.imagePullSecrets | default $root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector | default $root.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations | default $root.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName | default $global.priorityClassName | default (ternary "muster-webhook" "" (eq $name "webhook")) }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  serviceAccountName: muster-{{ $name }}
  securityContext:
    runAsNonRoot: true
    seccompProfile: {type: RuntimeDefault}
  {{- if .job }}
  restartPolicy: Never
  {{- else }}
  terminationGracePeriodSeconds: 15
  topologySpreadConstraints:
  {{- with $values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- toYaml $own | nindent 8 }}
  {{- end }}
  {{- end }}
  containers:
  - name: manager # as Cluster API's installers expect
    image: {{ include "muster.image" (list $root $name) }}
    {{- with ($values.image).pullPolicy | default $root.Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    args:
    {{- if .job }}
    - --{{ .job }}
    {{- else if not (has $name (list "webhook" "syncer")) }}
    - --leader-elect
    {{- end }}
    - {{ print "--log-level=" ($global.logLevel | default $root.Values.logLevel | default "info") | quote }}
    {{- with $global.logFormat }}
    - {{ print "--log-format=" . | quote }}
    {{- end }}
    {{- if not .job }}
    {{- if eq $name "webhook" }}
    - --webhook-port=9443
    - --webhook-cert-dir=/etc/muster/webhook-tls
    {{- else if eq $name "syncer" }}
    - --leader-elect
    {{- end }}
    - --health-addr=:9440
    - --diagnostics-address=:8443
    - --diagnostics-cert-dir=/etc/muster/{{ $name }}-tls
    {{- end }}
    {{- range $values.extraArgs }}
    - {{ . | quote }}
    {{- end }}
    env: {{- include "muster.env" . | trim | nindent 4 }}
    {{- if not .job }}
    ports:
    {{- if eq $name "webhook" }}
    - {name: webhook, containerPort: 9443}
    {{- end }}
    - {name: health, containerPort: 9440}
    - {name: metrics, containerPort: 8443}
    {{- if eq $name "webhook" }}
    # The Service still sends requests for a moment after a replica was told to stop.
    lifecycle:
      preStop: {sleep: {seconds: 5}}
    {{- end }}
    livenessProbe:
      httpGet: {path: /healthz, port: health}
    readinessProbe:
      httpGet: {path: /readyz, port: health}
      periodSeconds: 5
    {{- end }}
    {{- with $values.resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    {{- if or (not .job) $values.extraVolumeMounts }}
    volumeMounts:
    {{- if not .job }}
    - {name: tls, mountPath: /etc/muster/{{ $name }}-tls, readOnly: true}
    {{- end }}
    {{- with $values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- end }}
  {{- if or (not .job) $values.extraVolumes }}
  volumes:
  {{- if not .job }}
  # Only the webhook waits for its certificate: the others serve nothing but metrics with it.
  - name: tls
    secret: {secretName: muster-{{ $name }}-tls{{ if ne $name "webhook" }}, optional: true{{ end }}}
  {{- end }}
  {{- with $values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}
