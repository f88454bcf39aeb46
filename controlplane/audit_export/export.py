"""Exports what is new, one process at a time. An edit never waits for it: it only reads what is committed.

A process claims a target for 60 s. After each batch that the target accepted, it moves the position. One that
dies in between leaves a claim that ends, and the batch is sent again: at least once, with the same ids.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from time import monotonic

import structlog
from django.db.models import F, Q
from django.db.models.functions import Now

from controlplane.audit.models import ChainHead, Entry
from controlplane.audit_export.models import Export
from controlplane.metric_catalogue import alerts as catalogue
from fuseboard.contract.portable import Portable

log = structlog.get_logger(__name__)

EXPORTED = catalogue.AUDIT_EXPORTED.make()

LEASE_S = 60
#: After failures in a row; the last one counts for all further ones. It never gives up.
PAUSES_S = (5, 30, 120, 300)

Positions = dict[str, list[int | str]]
#: Sends a batch, or raises ``NotExported``.
Write = Callable[[list[Entry]], None]


class NotExported(Portable, Exception):
    """The target did not accept the entries. The message has no secrets.

    ``refused``: the target works, but not with these entries. Entries of other environments do not wait.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0, refused: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = min(retry_after_s, 3_600.0)
        self.refused = refused


def export_to(target: str, write: Write, *, batch: int, for_s: float = 8.0) -> int:
    """Export for about ``for_s`` seconds. Returns the number of entries."""
    row = _claim(target)
    if row is None:
        return 0
    ends, number = monotonic() + for_s, 0
    refused: dict[str, NotExported] = {}
    for environment, entries in _new(row.positions, batch, ends, refused):
        try:
            write(entries)
        except NotExported as failed:
            if failed.refused:
                refused[environment] = failed
                _note_refusal(row, environment, entries[0], failed)
                continue
            _fail(row, failed)
            return number
        row.positions[environment] = [entries[-1].sequence or 0, entries[-1].hash or ""]
        row.refusals.pop(environment, None)
        if not _move(row):
            # This process was paused for longer than its lease.
            return number
        number += len(entries)
        EXPORTED.labels(target, "sent").inc(len(entries))
    if refused:
        _fail(row, next(iter(refused.values())))
        return number
    Export.objects.filter(pk=target, fence=row.fence).update(lease_until=None)
    return number


def _claim(target: str) -> Export | None:
    Export.objects.get_or_create(pk=target)
    free = Q(lease_until=None) | Q(lease_until__lte=Now())
    due = Q(not_before=None) | Q(not_before__lte=Now())
    mine = Export.objects.filter(free, due, pk=target).update(
        fence=F("fence") + 1, lease_until=Now() + timedelta(seconds=LEASE_S)
    )
    return Export.objects.get(pk=target) if mine else None


def _new(
    positions: Positions, batch: int, ends: float, refused: Collection[str]
) -> Iterator[tuple[str, list[Entry]]]:
    """New entries of each chain, in turns, until ``ends``. Both are read again after each batch."""
    chains = [head.environment for head in ChainHead.objects.order_by("environment")]
    while chains:
        for environment in list(chains):
            if monotonic() >= ends:
                return
            _forget_restored(positions, environment)
            after = positions.get(environment, [0])[0]
            rows = Entry.objects.filter(environment=environment, sequence__gt=after)
            entries = list(rows.order_by("sequence")[:batch])
            if entries:
                yield environment, entries
            if len(entries) < batch or environment in refused:
                chains.remove(environment)


def _forget_restored(positions: Positions, environment: str) -> None:
    """After Postgres was restored from a backup, other entries have the numbers of exported ones."""
    if environment not in positions:
        return
    sequence, hashed = positions[environment]
    if not Entry.objects.filter(environment=environment, sequence=sequence, hash=hashed).exists():
        log.error("audit_export.restored", environment=environment, sequence=sequence)
        # Where both histories part is not known. Entries that were sent before have their ids again.
        del positions[environment]


def _note_refusal(row: Export, environment: str, entry: Entry, failed: NotExported) -> None:
    """How often the target refused this entry. A batch is refused for its first entry: targets take one."""
    before, attempts, _ = row.refusals.get(environment, (None, 0, ""))
    again = attempts if before == entry.sequence else 0
    row.refusals[environment] = [entry.sequence or 0, again + 1, str(failed)[:500]]


def _move(row: Export) -> bool:
    return bool(
        Export.objects.filter(pk=row.pk, fence=row.fence).update(
            positions=row.positions,
            refusals=row.refusals,
            failures=0,
            not_before=None,
            problem="",
            lease_until=Now() + timedelta(seconds=LEASE_S),
        )
    )


def _fail(row: Export, failed: NotExported) -> None:
    pause_s = max(PAUSES_S[min(row.failures, len(PAUSES_S) - 1)], failed.retry_after_s)
    Export.objects.filter(pk=row.pk, fence=row.fence).update(
        # Other environments may have moved it meanwhile, which is no success of these entries.
        failures=row.failures + 1,
        refusals=row.refusals,
        not_before=Now() + timedelta(seconds=pause_s),
        lease_until=None,
        problem=str(failed)[:500],
    )
    EXPORTED.labels(row.pk, "failed").inc()
    log.warning("audit_export.failed", target=row.pk, problem=str(failed)[:200], again_in_s=pause_s)
