{{/* Each definition takes a dict: `root`, and `part`, which is the name of the process. */}}

{{- define "fuseboard.name" -}}
{{- /* A StatefulSet has room for 44 letters before "-gateway". Two long names that begin alike stay different. */ -}}
{{- if gt (len .Release.Name) 40 -}}
{{ .Release.Name | trunc 31 | trimSuffix "-" }}-{{ sha256sum .Release.Name | trunc 8 }}
{{- else -}}
{{ .Release.Name }}
{{- end }}
{{- end }}

{{/* Kubernetes never changes a selector, so none has a version. */}}
{{- define "fuseboard.selector" -}}
app.kubernetes.io/name: fuseboard
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "fuseboard.labels" -}}
{{ include "fuseboard.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "fuseboard.metadata" -}}
name: {{ include "fuseboard.name" .root }}-{{ .part }}
labels:
  {{- include "fuseboard.labels" . | nindent 2 }}
{{- end }}

{{- define "fuseboard.podMetadata" -}}
labels:
  {{- include "fuseboard.labels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
