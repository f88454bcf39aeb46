"""The configuration that a pod decides by: where it comes from, and which one applies.

* ``snapshot``: one configuration, with its lookups.
* ``checked_config``: a configuration from outside, checked whole before anything is changed.
* ``current_configuration``: the one that applies; accepts newer ones, never older ones.
* ``server_clock``: server time by this pod's monotonic clock.
* ``disk``: the last good one, for a restart with everything else down.
* ``redis_copy``: reads it from Redis.
* ``watch``: learns from Redis that there is a newer one.
* ``startup``: the order of the sources at start.
"""
