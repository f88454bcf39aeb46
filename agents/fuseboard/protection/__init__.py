"""A pod protects itself: what it measures, and what it refuses because of that. Off where it is absent."""
