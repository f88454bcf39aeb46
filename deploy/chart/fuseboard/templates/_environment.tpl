{{- define "fuseboard.origins" -}}
{{- range $number, $host := .Values.hosts }}{{ if $number }},{{ end }}https://{{ $host }}{{ end }}
{{- end }}

{{/* The processes that read a variable. Every process reads one that is not here. */}}
{{- define "fuseboard.readers" -}}
DATABASE_URL: [web, gateway, worker, migrate]
FUSEBOARD_AUDIT_EXPORT_FILE: [web, worker]
FUSEBOARD_AUDIT_EXPORT_SECRET: [web, worker]
FUSEBOARD_AUDIT_EXPORT_URL: [web, worker]
FUSEBOARD_BROKER_URL: [worker, beat]
FUSEBOARD_DATABASE_POOLED: [web, gateway, worker, migrate]
FUSEBOARD_DIRECT_DATABASE_URL: [web, gateway, worker, migrate]
FUSEBOARD_METRICS_TOKEN: [web, gateway, worker]
FUSEBOARD_OIDC_CLIENT_ID: [web]
FUSEBOARD_OIDC_CLIENT_SECRET: [web]
FUSEBOARD_OIDC_NAME: [web]
FUSEBOARD_OIDC_ROLES: [web]
FUSEBOARD_OIDC_URL: [web]
FUSEBOARD_REDIS_URL: [web, gateway, worker, migrate]
FUSEBOARD_SECRET_KEY: [web, gateway, worker, migrate]
FUSEBOARD_SECRET_KEY_FALLBACKS: [web, gateway, worker, migrate]
FUSEBOARD_WATCHDOG_URL: [web, gateway, worker]
{{- end }}

{{/* The variables of this process that are secrets, and their keys. */}}
{{- define "fuseboard.secretKeys" -}}
{{- $readers := include "fuseboard.readers" . | fromYaml -}}
{{- $found := dict -}}
{{- range $variable, $key := .root.Values.secrets.keys -}}
{{- if and $key (has $.part (get $readers $variable | default (list $.part))) }}{{ $_ := set $found $variable $key }}{{ end -}}
{{- end -}}
{{- toYaml $found -}}
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
{{- if eq .part "worker" }}{{ $_ := set $found "FUSEBOARD_WORKER_METRICS_PORT" (contains ":" $values.listen | ternary "[::]:9101" "0.0.0.0:9101") }}{{ end -}}
{{- if eq .part "beat" }}{{ $_ := set $found "FUSEBOARD_BEAT_FILE" "/run/fuseboard/beat" }}{{ end -}}
{{- if $values.secrets.caSecret }}{{ $_ := set $found "FUSEBOARD_CA_FILE" "/run/secrets/ca/ca.crt" }}{{ end -}}
{{- range $variable, $key := include "fuseboard.secretKeys" . | fromYaml }}
{{- $_ := set $found (printf "%s_FILE" $variable) (printf "/run/secrets/fuseboard/%s" $key) }}
{{- end }}
{{- $readers := include "fuseboard.readers" . | fromYaml -}}
{{- range $variable, $value := $values.env }}
{{- if get $values.secrets.keys $variable }}{{ fail (printf "%s is in env and in secrets.keys: remove one of them" $variable) }}{{ end }}
{{- /* Helm reads a number as a float, and would write 1000000 as 1e+06. */}}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value = int64 $value }}{{ end }}
{{- if has $.part (get $readers $variable | default (list $.part)) }}{{ $_ := set $found $variable $value }}{{ end }}
{{- end -}}
{{- range $variable, $value := $found }}
- name: {{ $variable }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
