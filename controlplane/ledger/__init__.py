"""The usage and the costs of language models, by hour and by day, as pods counted it.

Gateways add to its tables (``controlplane.gateway.postgres.usage_rows``), and only once per part of a pod.
"""
