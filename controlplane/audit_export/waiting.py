"""Entries that a target of the export lacks, for metrics and the alert about an export that is stuck."""

from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings

from controlplane.audit.models import ChainHead, Entry
from controlplane.audit_export.models import Export

FILE, WEBHOOK = "file", "webhook"


@dataclass(frozen=True, kw_only=True)
class WaitingExport:
    """A target that is configured, and lacks entries."""

    target: str
    #: Entries that it does not have.
    entries: int
    #: The oldest of them: its environment, its number in the chain, and when it was written, in unix seconds.
    environment: str
    sequence: int
    at: float
    #: Failures since the last success, and what the last attempt said.
    failures: int = 0
    problem: str = ""


def not_exported() -> dict[str, int]:
    """Target that is configured -> how many entries it does not have yet."""
    missing = _missing()
    return {target: sum(last - after for _, after, last in chains) for target, chains in missing.items()}


def waiting_exports() -> Iterator[WaitingExport]:
    """A few small queries for each target that lacks entries."""
    for target, chains in _missing().items():
        rows = [
            Entry.objects.filter(environment=environment, sequence__gt=after)
            .order_by("sequence")
            .values_list("at", "environment", "sequence")
            .first()
            for environment, after, _ in chains
        ]
        oldest = min((row for row in rows if row is not None), default=None)
        if oldest is None:
            continue
        at, environment, sequence = oldest
        export = Export.objects.filter(pk=target).first() or Export()
        yield WaitingExport(
            target=target,
            entries=sum(last - after for _, after, last in chains),
            environment=environment,
            sequence=sequence or 0,
            at=at.timestamp(),
            failures=export.failures,
            problem=export.problem,
        )


def _missing() -> dict[str, list[tuple[str, int, int]]]:
    """Target that is configured -> environments where it lacks some: name, last number it has, last one."""
    targets = [name for name, used in _configured() if used]
    if not targets:
        return {}
    heads = dict(ChainHead.objects.values_list("environment", "sequence"))
    known = dict(Export.objects.values_list("target", "positions"))
    found: dict[str, list[tuple[str, int, int]]] = {}
    for target in targets:
        positions = known.get(target, {})
        after = {name: int(positions.get(name, [0])[0]) for name in heads}
        found[target] = [(name, after[name], last) for name, last in heads.items() if last > after[name]]
    return found


def _configured() -> tuple[tuple[str, str], ...]:
    return (FILE, settings.AUDIT_EXPORT_FILE), (WEBHOOK, settings.AUDIT_EXPORT_URL)
