"""What surrounds one outgoing call: how its outcome is judged, and by when it must end."""
