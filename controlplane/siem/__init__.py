"""Where exported audit entries go: a signed webhook, or a file of JSON lines."""
