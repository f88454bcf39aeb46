"""The frame around one outgoing call: how its outcome is judged, and by when it must end."""
