"""Circuit breakers: the fleet's, as this pod knows it, and the pod's own."""
