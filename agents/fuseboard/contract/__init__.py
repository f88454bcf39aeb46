"""The contract between the agent and the control plane.

This package is the only part of ``fuseboard`` that the control plane may import. It imports only the
standard library and msgspec. It belongs to the agent because pods are upgraded last: the side that is
hardest to upgrade owns the contract.

* ``words``: the enumerations, and what a name may look like.
* ``policy``: the configuration that a pod decides by.
* ``limit_fields``: the fields of a limit, each described once.
* ``sync``: heartbeat and poll, one request and its answer.
* ``tallies``: what a pod counted of its tenants in a minute.
* ``refusal_token``: what an answer to a refused request carries, and the control plane explains.
* ``shares``: reserved shares, which pods spend without Redis.
* ``keys``: every key and channel in Redis.
* ``breaker_state``: the text of a breaker's key, read by the agent and the dashboard.
* ``store_url``: the URL of Redis "limits".

Every document has golden files in ``tests/contract/golden/``. Old ones are never deleted, because a
control plane must understand the pods of the year before.
"""
