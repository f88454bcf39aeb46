"""Totals in Redis -> rows in Postgres, each call once.

A worker locks one row, reads Redis, and writes what it read and how far it came in one transaction. So two
workers never copy at once, and what a killed worker read is read again. Counts are differences to the last
reading of the same hash: a hash that Redis lost and that began again has another ``@id``, and counts from 0.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import redis
import structlog
from django.db import DataError, connection, transaction
from django.utils import timezone
from redis.cluster import RedisCluster

from controlplane.fleet.models import Event, EventKind
from controlplane.policies.models import Environment
from controlplane.postgres import delete_rows
from controlplane.reconciliation.models import AllowedAlone, Copying
from controlplane.reconciliation.naming import Named, Names, capacity_of
from controlplane.redis.scripts import PATIENT_S, limits
from controlplane.validation import is_printable, printable
from fuseboard.contract.offline_fields import IDENTITY, read_part

log = structlog.get_logger(__name__)

#: Keys that Redis looks at for one answer, and fields of one hash that are read at once.
SCANNED, FIELDS = 1_000, 2_000
#: How long one run may take. The next one continues.
RUN_S = 10.0
#: Rows of one environment: about 300 bytes each.
MAX_ROWS = 500_000
#: After the last change of a mode, pods may still report for this time.
REPORTS_FOR = timedelta(minutes=3)
#: Single calls that missed their deadline change no mode.
EVERY = timedelta(hours=1)
#: Redis keeps totals for the same time.
KEPT = timedelta(days=40)
#: After this time without a heartbeat, the calls that a pod has not reported are lost.
_SILENT = timedelta(minutes=5)

_KEY = re.compile(r"fb1:(?P<environment>[^:{}]+):\{(?P<domain>[tdi]:[^{}]+)\}:offline")
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)

Counted = dict[str, Any]

_UPSERT = """
    INSERT INTO reconciliation_allowedalone AS known (
        environment, domain, field, counter, hash, value, amount, start, length_s, shadow,
        tenant, dependency, rule, measure, capacity, shorter, divided)
    SELECT environment, domain, field, counter, hash, value, value, to_timestamp(start), length_s, shadow,
           tenant, dependency, rule, measure, capacity, shorter, divided
    FROM json_to_recordset(%s::json) AS row(
        environment text, domain text, field text, counter text, hash text, value bigint, start float8,
        length_s integer, shadow boolean, tenant text, dependency text, rule text, measure text,
        capacity bigint, shorter boolean, divided boolean)
    ON CONFLICT (environment, domain, field) DO UPDATE
    SET value = EXCLUDED.value, hash = EXCLUDED.hash, copied_at = now(), amount = known.amount + CASE
        -- A replica that was promoted may be behind: what it lacks was counted.
        WHEN known.hash <> '' AND known.hash = EXCLUDED.hash THEN greatest(0, EXCLUDED.value - known.value)
        WHEN known.hash = '' AND EXCLUDED.value >= known.value THEN EXCLUDED.value - known.value
        ELSE EXCLUDED.value END
    WHERE known.value <> EXCLUDED.value OR known.hash <> EXCLUDED.hash
"""


# One row per process. It only grows, so two workers can write it at once. ``unreported`` counts for a pod
# that is gone, and is 0 again when the same process has reported.
_NOTE = """
    INSERT INTO reconciliation_lostcounts AS known
        (environment, server, boot, since, until, uncounted, expired, adopted, unreported)
    SELECT environment, name, boot, least(mode_since, last_seen_at), last_seen_at,
           coalesce((alone->>'uncounted')::bigint, 0), coalesce((alone->>'expired')::bigint, 0),
           coalesce((alone->>'adopted')::bigint, 0),
           CASE WHEN last_seen_at < %(silent)s OR state = 'gone'
                THEN coalesce((alone->>'unreported')::bigint, 0) ELSE 0 END
    FROM fleet_server
    WHERE alone <> '{}'::jsonb
      AND (alone ?| array['uncounted', 'expired', 'adopted']
           OR (alone ? 'unreported' AND (last_seen_at < %(silent)s OR state = 'gone')))
    ON CONFLICT (environment, server, boot) DO UPDATE
    SET until = CASE WHEN EXCLUDED.uncounted > known.uncounted OR EXCLUDED.expired > known.expired
                       OR EXCLUDED.adopted > known.adopted THEN EXCLUDED.until ELSE known.until END,
        uncounted = greatest(known.uncounted, EXCLUDED.uncounted),
        expired = greatest(known.expired, EXCLUDED.expired),
        adopted = greatest(known.adopted, EXCLUDED.adopted),
        unreported = EXCLUDED.unreported
    WHERE EXCLUDED.uncounted > known.uncounted OR EXCLUDED.expired > known.expired
       OR EXCLUDED.adopted > known.adopted OR EXCLUDED.unreported <> known.unreported
"""


def copy_if_needed(now: datetime | None = None) -> int:
    """Copy what pods have reported, after an outage and once an hour; returns the number of hashes read."""
    now = now or timezone.now()
    last = Copying.objects.filter(pk=1).first()
    if last is not None and last.running_since is None and last.began_at is not None:
        changed = Event.objects.filter(kind=EventKind.MODE, at__gt=last.began_at - REPORTS_FOR).exists()
        if not changed and last.began_at > now - EVERY:
            return 0
    return copy(now)


def copy(now: datetime | None = None, *, run_s: float = RUN_S) -> int:
    """Read every primary from where the last run stopped; returns the number of hashes read.

    Raises ``redis.RedisError``; then nothing of the last step was copied.
    """
    until, read = monotonic() + run_s, 0
    Copying.objects.get_or_create(pk=1)
    names = _AllNames()
    while True:
        with transaction.atomic():
            # Another worker copies while it holds the row.
            state = Copying.objects.select_for_update(skip_locked=True).filter(pk=1).first()
            if state is None:
                return read
            primaries = dict(_primaries(limits(deadline_s=PATIENT_S)))
            if state.running_since is None:
                state.running_since, state.full = now or timezone.now(), []
                state.cursors = dict.fromkeys(primaries, 0)
            # A primary that is gone has given its keys to others, which are scanned anyway.
            left = [name for name in state.cursors if name in primaries]
            if left:
                read += _step(state, left[0], primaries[left[0]], names)
            if len(left) <= 1 and not any(name in primaries for name in state.cursors):
                state.began_at, state.running_since = state.running_since, None
                state.finished_at, state.cursors, state.problem = timezone.now(), {}, ""
            state.save()
        if state.running_since is None or monotonic() > until:
            return read


def note_problem(problem: str) -> None:
    """Note for the page why nothing is copied now."""
    Copying.objects.update_or_create(pk=1, defaults={"problem": problem[:500]})


def note_losses(now: datetime) -> int:
    """Keep what the rows of pods say, because rows change and go; returns the number of changed rows."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTE, {"silent": now - _SILENT})
        noted = int(cursor.rowcount)
        cursor.execute("DELETE FROM reconciliation_lostcounts WHERE until < %s", [now - KEPT])
    return noted


def forget(now: datetime | None = None) -> int:
    """Delete rows that Redis does not keep any more either; returns their number."""
    now = now or timezone.now()
    return delete_rows("reconciliation_allowedalone", "copied_at < %s", [now - KEPT])


def erase_tenant(environment: str, tenant: str) -> int:
    """Forget what a tenant was allowed; returns the number of rows.

    Rows stay without name and amount, so that what Redis still has is not copied again.
    """
    rows = AllowedAlone.objects.filter(environment=environment, tenant=tenant).exclude(tenant="")
    return rows.update(tenant="", amount=0)


class _AllNames:
    """The names of each environment, and how many more rows it may have."""

    def __init__(self) -> None:
        self._environments = set(Environment.objects.values_list("slug", flat=True))
        self._names: dict[str, Names] = {}
        self.room: dict[str, int] = {}

    def of(self, environment: str) -> Names | None:
        """``None`` for an environment that does not exist."""
        if environment not in self._environments:
            return None
        if environment not in self._names:
            self._names[environment] = Names(environment)
            rows = AllowedAlone.objects.filter(environment=environment).count()
            self.room[environment] = MAX_ROWS - rows
        return self._names[environment]


def _primaries(store: redis.Redis) -> Iterator[tuple[str, redis.Redis]]:
    """Every primary by a name, with a client that asks it alone."""
    if isinstance(store, RedisCluster):
        for node in store.get_primaries():
            client = store.get_redis_connection(node)
            if client is not None:
                yield str(node.name), client
    else:
        yield "redis", store


def _step(state: Copying, name: str, client: redis.Redis, names: _AllNames) -> int:
    cursor, found = client.scan(cursor=int(state.cursors[name]), match="fb1:*:offline", count=SCANNED)
    hashes, rows = 0, []
    for key in map(str, found):
        match = _KEY.fullmatch(key)
        # Postgres stores no NUL: such a key is no key of an agent.
        here = names.of(match["environment"]) if match and is_printable(key) else None
        if match is None or here is None:
            continue
        hashes += 1
        for identity, fields in _pages(client, key):
            rows += _rows(match["domain"], identity, fields)
            if len(rows) >= FIELDS:
                _store(state, names, here, match["environment"], rows)
                rows = []
        # The next key may be of another environment.
        _store(state, names, here, match["environment"], rows)
        rows = []
    if int(cursor):
        state.cursors[name] = int(cursor)
    else:
        del state.cursors[name]
    return hashes


def _pages(client: redis.Redis, key: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A hash in parts, each with its ``@id``. One of a dependency has fields of many tenants."""
    cursor = 0
    while True:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.hget(key, IDENTITY)
            pipeline.hscan(key, cursor=cursor, count=FIELDS)
            identity, (cursor, fields) = pipeline.execute()
        yield printable(str(identity or ""))[:64], fields
        if not int(cursor):
            return


class _Row(NamedTuple):
    domain: str
    #: The ``@id`` of the hash in Redis.
    hash: str
    field: str
    #: The field of the sum.
    counter: str
    value: int


def _rows(domain: str, identity: str, fields: dict[str, str]) -> list[_Row]:
    """The fields that can be read."""
    found = []
    for field, text in fields.items():
        part = read_part(field)
        known = part is not None or "@" not in field
        if known and _NUMBER.fullmatch(text) and len(field) <= 300 and is_printable(field):
            counter = part.limit if part is not None else field
            found.append(_Row(domain, identity, field, counter, int(text)))
    return found


def _store(state: Copying, names: _AllNames, here: Names, environment: str, rows: list[_Row]) -> None:
    kept = AllowedAlone.objects.filter(
        environment=environment,
        domain__in={row.domain for row in rows},
        field__in={row.field for row in rows},
    )
    old = set(kept.values_list("domain", "field"))
    new = [row for row in rows if (row.domain, row.field) not in old]
    if len(new) > names.room[environment]:
        if environment not in state.full:
            state.full.append(environment)
            log.warning("reconciliation.full", environment=environment, rows=MAX_ROWS)
        new = new[: max(0, names.room[environment])]
    names.room[environment] -= len(new)
    about: dict[tuple[str, str], Named | None] = {}
    documents: list[Counted] = []
    for row in (*(row for row in rows if (row.domain, row.field) in old), *new):
        counter = (row.domain, row.counter)
        if counter not in about:
            about[counter] = here.of(*counter)
        named = about[counter]
        if named is not None:
            documents.append({"environment": environment, **_document(row, named)})
    _upsert(documents)


def _upsert(documents: list[Counted]) -> None:
    """Write them; drop one that Postgres refuses, such as a sum that is out of range."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_UPSERT, [msgspec.json.encode(documents).decode()])
    except DataError as error:
        if len(documents) == 1:
            (one,) = documents
            kind = type(error.__cause__).__name__
            log.error(
                "reconciliation.refused", environment=one["environment"], domain=one["domain"], kind=kind
            )
            return
        half = len(documents) // 2
        _upsert(documents[:half])
        _upsert(documents[half:])


def _document(row: _Row, named: Named) -> Counted:
    part = read_part(row.field)
    length_s = part.length_s if part is not None else 0
    capacity, shorter = capacity_of(named.limit, length_s)
    return {
        **row._asdict(),
        "start": part.start_s if part is not None and length_s else None,
        "length_s": length_s,
        "shadow": part is not None and part.shadow,
        "tenant": named.tenant,
        "dependency": named.dependency,
        "rule": named.rule[:64],
        "measure": named.limit.measure if named.limit is not None else "",
        "capacity": capacity,
        "shorter": shorter,
        "divided": named.divided,
    }
