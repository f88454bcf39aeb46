"""Values of a dependency that are allowed, and are seldom what is meant. In the words of the forms."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controlplane.policies.history import Changed
from controlplane.policies.protection_advice import protection_advice

#: Below this, the vendor has hardly recovered before the breaker probes again.
SHORT_OPEN_MS = 30_000


def advice_about(fields: Mapping[str, Any]) -> list[str]:
    """Warnings about a dependency, from its fields as a revision stores them."""
    return [*_breaker_advice(fields), *_missing_note(fields), *protection_advice(fields)]


def advice_about_new(fields: Mapping[str, Any]) -> list[str]:
    """Warnings about the values of a dependency that is being added: its presets have none.

    What callers do is not known before it is used.
    """
    return [*_breaker_advice(fields), *protection_advice(fields)]


def _breaker_advice(fields: Mapping[str, Any]) -> Iterator[str]:
    if fields["breaker.consecutive_failures"] == 1:
        yield "opens after 1 failure in a row: a single failed call opens the breaker. Use 3 to 5."
    if (open_ms := fields["breaker.open_ms"]) < SHORT_OPEN_MS:
        yield (
            f"open time is {open_ms:,} ms: the dependency has little time to recover."
            f" Use at least {SHORT_OPEN_MS:,} ms."
        )


def _missing_note(fields: Mapping[str, Any]) -> Iterator[str]:
    if not fields["fallback_note"]:
        retries = fields.get("protection.retry.attempts", 1) > 1
        when = (
            "while the breaker is open, and after the last retry" if retries else "while the breaker is open"
        )
        yield f"what callers do is not described: write what they do {when}."


def advice(changes: Iterable[Changed]) -> Iterator[str]:
    """Warnings about the dependencies that are created or changed."""
    for change in changes:
        if change.kind == "dependency" and change.after is not None:
            for text in advice_about(change.after):
                yield f"dependency {change.name}: {text}"
