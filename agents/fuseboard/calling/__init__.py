"""What surrounds one outgoing call: how its outcome is judged."""
