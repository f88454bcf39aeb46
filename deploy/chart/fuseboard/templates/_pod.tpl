{{- define "fuseboard.pod" -}}
automountServiceAccountToken: false
# A Service named fuseboard would set variables such as FUSEBOARD_PORT in every pod.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" }}
{{- with index $.root.Values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fuseboard.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ .root.Values.topologyKey }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "fuseboard.selector" . | nindent 8 }}
{{- end }}

{{- define "fuseboard.container" -}}
name: {{ .part }}
{{- with .root.Values.image }}
image: {{ if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ .pullPolicy }}
{{- end }}
command:
  {{- get (include "fuseboard.commands" . | fromYaml) .part | toYaml | nindent 2 }}
env:
  {{- include "fuseboard.environment" . | trim | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
  {{- get (get .root.Values .part) "resources" | toYaml | nindent 2 }}
volumeMounts:
  - {name: secrets, mountPath: /run/secrets/fuseboard, readOnly: true}
  {{- if .root.Values.secrets.caSecret }}
  - {name: ca, mountPath: /run/secrets/ca, readOnly: true}
  {{- end }}
  - {name: run, mountPath: /run/fuseboard}
  - {name: tmp, mountPath: /tmp}
  {{- if eq .part "gateway" }}
  - {name: oncall, mountPath: /var/lib/fuseboard}
  {{- end }}
{{- end }}

{{/* Probes of a process that answers at `port`; `ready` is the path of its readiness. */}}
{{- define "fuseboard.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: {{ .ready }}, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "fuseboard.volumes" -}}
{{- $secrets := .root.Values.secrets -}}
{{- $keys := include "fuseboard.secretKeys" . | fromYaml -}}
{{- $ofMetrics := "" -}}
{{- if $secrets.metricsName }}{{ $ofMetrics = get $keys "FUSEBOARD_METRICS_TOKEN" }}{{ $keys = omit $keys "FUSEBOARD_METRICS_TOKEN" }}{{ end -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ $secrets.name }}
          items:
            {{- /* Two variables may have one key. */}}
            {{- range values $keys | sortAlpha | uniq }}
            - {key: {{ . }}, path: {{ . }}}
            {{- end }}
      {{- with $ofMetrics }}
      - secret:
          name: {{ $secrets.metricsName }}
          items:
            - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- with .root.Values.secrets.caSecret }}
- name: ca
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 4Mi}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: {{ .tmpSize | default "16Mi" }}}
{{- end }}
