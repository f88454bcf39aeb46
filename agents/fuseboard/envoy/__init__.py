"""The rate limit service of Envoy in front of an agent, and the configuration with which Envoy asks it."""
