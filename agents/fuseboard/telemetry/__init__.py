"""OpenTelemetry, for pods with ``FUSEBOARD_OTEL=on``. Nothing else of the agent imports it."""
