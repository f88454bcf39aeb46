"""The configuration a pod decides by: where it comes from, and what is in force.

* ``snapshot``: one configuration, with its lookups.
* ``offer``: a configuration from outside, checked whole before anything is changed.
* ``holder``: the one in force; takes newer, never older.
* ``clock``: the servers' time on this pod's monotonic clock.
* ``disk``: the last good one, for a restart with everything else down.
* ``stored``: reading it from Redis.
* ``watch``: told by Redis that there is a newer one.
* ``boot``: the order of the sources at start.
"""
