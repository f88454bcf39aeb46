{{/* The commands of docker-compose.yml, and of no other place: a test compares them. */}}
{{- define "fuseboard.commands" -}}
web: [python, manage.py, web, --host, "{{ .root.Values.listen }}", --port, "8000", --exactly]
gateway: [python, manage.py, gateway, --host, "{{ .root.Values.listen }}", --port, "8001", --exactly]
worker: [celery, -A, controlplane, worker, --pool, threads, --concurrency, "2", --without-mingle]
beat: [celery, -A, controlplane, beat]
migrate: [sh, -c, "python manage.py migrate --noinput && python manage.py create_environment"]
{{- end }}

{{/* Beat touches the file at least every 10 s. */}}
{{- define "fuseboard.beatHealth" -}}
[sh, -c, "test -n \"$(find /run/fuseboard/beat -newermt '-60 seconds')\""]
{{- end }}
