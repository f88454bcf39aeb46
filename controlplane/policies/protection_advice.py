"""Values of a protection that are allowed, and are seldom what is meant."""

from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.policies.protection import CALL, completed, protection_in
from fuseboard.contract.protection_fields import TIERS

#: Connections of an httpx client unless it sets limits.
_HTTPX_CONNECTIONS = 100
#: More retries than these multiply the load on a dependency that fails.
MANY_PERCENT = 20


def protection_advice(fields: Mapping[str, Any]) -> list[str]:
    """Warnings about the protection of a dependency, from its fields as a revision stores them."""
    document = completed(protection_in(fields), CALL)
    timeout_ms = fields["timeout_ms"]
    found = []
    if document.get("sla_ms", 0) > timeout_ms:
        found.append(
            f"sla_ms is {_span(document['sla_ms'])}, above timeout_ms, {_span(timeout_ms)}: a call times out"
            " before it is late. Use a smaller sla_ms."
        )
    if "bulkhead" in document:
        found += _about_bulkhead(document["bulkhead"], timeout_ms)
    if "retry" in document:
        found += _about_retry(document["retry"], fields)
    return found


def _about_bulkhead(bulkhead: Mapping[str, Any], timeout_ms: int) -> Iterator[str]:
    wait_ms, most = bulkhead["queue_timeout_ms"], bulkhead["max_concurrent"]
    if wait_ms >= timeout_ms and "queue" in bulkhead["when_full"]:
        yield (
            f"queue_timeout_ms is {_span(wait_ms)}, not below timeout_ms, {_span(timeout_ms)}: a call can"
            " wait longer for a slot than it can last. Use at most half of the timeout, and less than your"
            " callers wait."
        )
    for tier, queue, when_full in zip(TIERS, bulkhead["queues"], bulkhead["when_full"], strict=True):
        if when_full == "queue" and queue == 0 and not bulkhead["adaptive"]:
            yield f"when_full is queue for {tier}, and its queue has no places: use abort, or more places."
    if most < len(TIERS):
        yield f"max_concurrent is {most}: with fewer than {len(TIERS)} slots, all tiers share them."
    if most > _HTTPX_CONNECTIONS:
        yield (
            f"max_concurrent is {most:,}: an httpx client opens {_HTTPX_CONNECTIONS} connections unless it"
            " sets limits, and calls above that wait for a connection while they have a slot."
        )


def _about_retry(retry: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[str]:
    if retry["idempotent"] and fields["kind"] != "llm":
        yield "idempotent is on: a call that may have arrived is repeated. Check that this does no harm."
    if retry["budget_percent"] > MANY_PERCENT:
        yield (
            f"budget_percent is {retry['budget_percent']} %: while the dependency fails, retries add this"
            f" much load. Use at most {MANY_PERCENT} %."
        )


def _span(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s" if milliseconds >= 1000 else f"{milliseconds} ms"
