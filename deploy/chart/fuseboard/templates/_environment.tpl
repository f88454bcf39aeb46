{{- define "fuseboard.origins" -}}
{{- range $number, $host := .Values.hosts }}{{ if $number }},{{ end }}https://{{ $host }}{{ end }}
{{- end }}

{{/* Variables of this process. `env` of the values wins, and a secret is the name of its file. */}}
{{- define "fuseboard.environment" -}}
{{- $values := .root.Values -}}
{{- $found := dict
      "FUSEBOARD_ACL_PROFILE" "standard"
      "FUSEBOARD_ALLOWED_HOSTS" (join "," $values.hosts)
      "FUSEBOARD_BEHIND_PROXY" "1"
      "FUSEBOARD_GATEWAY_URL" (printf "dns+http://%s-gateways:8001" (include "fuseboard.name" .root))
      "FUSEBOARD_MFA_ROLES" $values.mfaRoles
      "FUSEBOARD_ORIGINS" (include "fuseboard.origins" .root)
      "FUSEBOARD_PROXIES" $values.proxies -}}
{{- if eq .part "gateway" }}{{ $_ := set $found "FUSEBOARD_ONCALL_DIR" "/var/lib/fuseboard/oncall" }}{{ end -}}
{{- if eq .part "worker" }}{{ $_ := set $found "FUSEBOARD_WORKER_METRICS_PORT" "0.0.0.0:9101" }}{{ end -}}
{{- if eq .part "beat" }}{{ $_ := set $found "FUSEBOARD_BEAT_FILE" "/run/fuseboard/beat" }}{{ end -}}
{{- if $values.secrets.caSecret }}{{ $_ := set $found "FUSEBOARD_CA_FILE" "/run/secrets/ca/ca.crt" }}{{ end -}}
{{- range $variable, $key := $values.secrets.keys }}
{{- if $key }}{{ $_ := set $found (printf "%s_FILE" $variable) (printf "/run/secrets/fuseboard/%s" $key) }}{{ end }}
{{- end }}
{{- range $variable, $value := $values.env }}
{{- /* Helm reads a number as a float, and would write 1000000 as 1e+06. */}}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value = int64 $value }}{{ end }}
{{- $_ := set $found $variable $value }}
{{- end -}}
{{- range $variable, $value := $found }}
- name: {{ $variable }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
