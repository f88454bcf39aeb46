"""Connections to Redis `limits` and the scripts that the control plane runs there."""
