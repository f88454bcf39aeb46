"""The sidecar: its HTTP, its decisions with a real agent and Redis, and its examples in other languages."""
