"""``fuseboard sidecar``: the decisions of one agent over HTTP, for applications that are not in Python."""
