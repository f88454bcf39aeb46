"""What the agent and the control plane agree on.

This package is the only part of ``fuseboard`` the control plane may import, and it
imports nothing but the standard library and msgspec. It lives with the agent because a
pod is upgraded last: the side that is hardest to upgrade owns the agreement.

* ``words``: the enumerations, and what a name may look like.
* ``policy``: the configuration a pod decides by.
* ``sync``: heartbeat and poll, one request and its answer.
* ``keys``: every key and channel in Redis.
* ``breaker_state``: the text of a breaker's key, read by the agent and the dashboard.

Every document has golden files in ``tests/contract/golden/``. Old ones are never deleted:
a control plane must understand the pods of the year before.
"""
