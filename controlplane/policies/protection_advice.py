"""Values of a protection that are allowed, and are seldom what is meant."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controlplane.policies.document import environment_of
from controlplane.policies.history import Changed
from controlplane.policies.models import Dependency
from controlplane.policies.protection import CALL, POD, completed, protection_in
from controlplane.policies.sizing import bulkhead_words
from fuseboard.contract.protection_fields import TIERS

#: Connections of an httpx client unless it sets limits.
_HTTPX_CONNECTIONS = 100
#: More retries than these multiply the load on a dependency that fails.
MANY_PERCENT = 20


def protection_advice(fields: Mapping[str, Any]) -> list[str]:
    """Warnings about the protection of a dependency, from its fields as a revision stores them."""
    document = completed(protection_in(fields), CALL)
    timeouts = [each or fields["timeout_ms"] for each in document.get("timeouts_ms", (0,))]
    timeout_ms = max(timeouts)
    found = []
    if (sla_ms := document.get("sla_ms", 0)) > timeout_ms:
        found.append(
            f"SLA is {sla_ms:,} ms, above the timeout of a call, {timeout_ms:,} ms: a call times out"
            " before it is late. Use a smaller SLA."
        )
    if "bulkhead" in document:
        found += _about_bulkhead(document["bulkhead"], min(timeouts))
    if "retry" in document:
        found += _about_retry(document["retry"], fields)
    return found


def queue_max_advice(pods: Mapping[str, Any], bulkheads: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Warnings about shedding that begins after every queue is full. ``bulkheads``: by dependency."""
    most = completed(pods, POD).get("shedding", {}).get("queue_max")
    every = [completed({"bulkhead": each}, CALL)["bulkhead"] for each in bulkheads.values()]
    if most is None or not every or any(each["adaptive"] for each in every):
        return []
    places = sum(_places(each) for each in every)
    if most < places:
        return []
    return [
        f"pods shed when calls waiting exceed {most:,}, and the queues of the bulkheads have {places:,}"
        " places: a full bulkhead refuses calls of all tenants before the pod sheds the lowest tiers. Use a"
        " smaller number."
    ]


def queue_max_after(environment: str, changes: Iterable[Changed]) -> list[str]:
    """Return ``queue_max_advice`` about the environment after these changes; empty if they do not matter."""
    row = environment_of(environment)
    rows = Dependency.objects.filter(environment=row, protection__has_key="bulkhead")
    pods, matters = row.protection, False
    bulkheads = {each.name: each.protection["bulkhead"] for each in rows}
    for change in changes:
        before, after = (protection_in(fields or {}) for fields in (change.before, change.after))
        if change.kind == "environment":
            pods, matters = after, True
        elif change.kind == "dependency":
            matters = matters or before.get("bulkhead") != after.get("bulkhead")
            bulkheads.pop(change.name, None)
            if "bulkhead" in after:
                bulkheads[change.name] = after["bulkhead"]
    return queue_max_advice(pods, bulkheads) if matters else []


def bulkheads_after(changes: Iterable[Changed]) -> Iterator[str]:
    """Yield how many calls each new or changed bulkhead admits at once."""
    for change in changes:
        if change.kind != "dependency" or change.after is None:
            continue
        after = protection_in(change.after)
        if "bulkhead" in after and after["bulkhead"] != protection_in(change.before or {}).get("bulkhead"):
            full = completed(after, CALL)
            yield f"dependency {change.name}: {bulkhead_words(full['bulkhead'], full['tier'])}."


def _places(bulkhead: Mapping[str, Any]) -> int:
    """The most calls of one tier that wait: most services use one."""
    pairs = zip(bulkhead["queues"], bulkhead["when_full"], strict=True)
    return max((places for places, when_full in pairs if when_full == "queue"), default=0)


def _about_bulkhead(bulkhead: Mapping[str, Any], timeout_ms: int) -> Iterator[str]:
    wait_ms, most = bulkhead["queue_timeout_ms"], bulkhead["max_concurrent"]
    if wait_ms >= timeout_ms and "queue" in bulkhead["when_full"]:
        yield (
            f"queue timeout is {wait_ms:,} ms, not below the timeout of a call, {timeout_ms:,} ms: a call can"
            " wait longer for a slot than it can last. Use at most half of the timeout, and less than your"
            " callers wait."
        )
    for tier, queue, when_full in zip(TIERS, bulkhead["queues"], bulkhead["when_full"], strict=True):
        if when_full == "queue" and queue == 0 and not bulkhead["adaptive"]:
            yield (
                f"without a free slot, {tier} calls queue, and their queue has no places: use abort, or more"
                " places."
            )
    if most < len(TIERS):
        yield f"calls at once is {most}: with fewer than {len(TIERS)} slots, all tiers share them."
    if most > _HTTPX_CONNECTIONS:
        yield (
            f"calls at once is {most:,}: an httpx client opens {_HTTPX_CONNECTIONS} connections unless it"
            " sets limits, and calls above that wait for a connection while they have a slot."
        )


def _about_retry(retry: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[str]:
    if retry["idempotent"] and fields["kind"] != "llm":
        yield "idempotent is on: a call that may have arrived is repeated. Check that this does no harm."
    if retry["budget_percent"] > MANY_PERCENT:
        yield (
            f"retry budget is {retry['budget_percent']} %: while the dependency fails, retries add this"
            f" much load. Use at most {MANY_PERCENT} %."
        )
