"""The parts of the answer to a heartbeat: configuration, overrides, reserved shares, drills."""
