"""The figures of a pod: for OpenTelemetry with ``FUSEBOARD_OTEL=on``, and as text for Prometheus.

Nothing else of the agent imports OpenTelemetry, and ``prometheus_text`` does not.
"""
