"""Experiments that show what the protection of a pod does, beside the same traffic without it."""
