"""What a heartbeat is answered with: configuration, overrides, reserved shares, drills."""
