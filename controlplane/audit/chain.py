"""Verifies that no audit entry was changed or removed. Every entry contains the hash of the previous one.

Postgres computes the hashes (``audit_hash`` in the migrations). This module checks them in another
language and from the rows alone, so changing the function in Postgres does not help an attacker.
A superuser of Postgres can write a whole new chain, but cannot change a head that was copied
elsewhere (``Head``), for example to the logs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from django.db import connection, transaction
from django.db.models import Min, TextField
from django.db.models.functions import Cast

from controlplane.audit.models import ChainHead, Entry
from fuseboard.contract.portable import Portable

FIRST = "0" * 64
#: Numbers of one statement. A statement of all rows would meet the time limit of the session.
_AT_ONCE = 2_000

#: Environment and number of an entry -> its hashes as noted elsewhere. There should be one.
Kept = dict[tuple[str, int], set[str]]


@dataclass(frozen=True)
class Head:
    """An entry known from elsewhere: ``environment:sequence:hash``."""

    environment: str
    sequence: int
    hash: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ``ValueError``."""
        environment, sequence, hashed = text.rsplit(":", 2)
        if len(hashed) != 64:
            raise ValueError("must be environment:sequence:hash")
        return cls(environment, int(sequence), hashed)

    def __str__(self) -> str:
        return f"{self.environment}:{self.sequence}:{self.hash}"


@dataclass(frozen=True)
class Broken:
    """The first entry of a chain that differs from what was written."""

    environment: str
    sequence: int
    #: The id of the entry, or ``None`` if it is missing.
    entry: int | None
    why: str

    def __str__(self) -> str:
        name = f"entry {self.entry}" if self.entry else "an entry"
        where = f"environment {self.environment}" if self.environment else "no environment"
        return f"{name} (number {self.sequence} of {where}): {self.why}"


def verify(anchors: Iterable[Head] = ()) -> tuple[list[Head], list[Broken]]:
    """Return the last entry of every intact chain, and the first broken entry of every other one.

    Reads all rows as of one moment, because entries are added meanwhile. So it must not run inside
    a transaction.
    """
    kept: dict[tuple[str, int], set[str]] = {}
    for head in anchors:
        kept.setdefault((head.environment, head.sequence), set()).add(head.hash)
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return _verify(kept)


def _verify(kept: Kept) -> tuple[list[Head], list[Broken]]:
    heads = {row.environment: row for row in ChainHead.objects.all()}
    chains = set(_environments())
    good, broken = [], []
    for environment in sorted(chains | heads.keys() | {name for name, _ in kept}):
        try:
            last = _follow(environment, kept)
            _check_end(last, heads.get(environment), kept)
        except _BrokenError as error:
            broken.append(error.broken)
        else:
            good.append(last)
    return good, broken


def _environments() -> Iterator[str]:
    """Every environment of an entry. Each statement reads one row of an index."""
    names = Entry.objects.order_by("environment").values_list("environment", flat=True)
    name = names.first()
    while name is not None:
        yield name
        name = names.filter(environment__gt=name).first()


def _rows(environment: str) -> Iterator[Entry]:
    """In their order. The first one without a number comes last."""
    rows = Entry.objects.filter(environment=environment)
    every = rows.order_by("sequence", "id")
    every = every.annotate(before_text=Cast("before", TextField()), after_text=Cast("after", TextField()))
    first = rows.aggregate(first=Min("sequence"))["first"]
    while first is not None:
        after = first + _AT_ONCE
        # A range needs no good plan: after a restore, Postgres has no statistics.
        page = list(every.filter(sequence__gte=first, sequence__lt=after))
        yield from page
        later = rows.filter(sequence__gte=after)
        first = after if page else later.aggregate(first=Min("sequence"))["first"]
    yield from every.filter(sequence=None)[:1]


def _follow(environment: str, kept: Kept) -> Head:
    last = Head(environment, 0, FIRST)
    for row in _rows(environment):
        number = last.sequence + 1
        if row.sequence is None:
            raise _BrokenError(environment, number, row.pk, "was written without the chain")
        if row.sequence != number:
            raise _BrokenError(environment, number, None, "is missing")
        hashed = _hash(last.hash, row)
        if hashed != row.hash:
            raise _BrokenError(environment, number, row.pk, "was changed, or an earlier one was")
        if kept.get((environment, number), {hashed}) != {hashed}:
            raise _BrokenError(environment, number, row.pk, "differs from the copy noted elsewhere")
        last = Head(environment, number, hashed)
    return last


def _check_end(last: Head, head: ChainHead | None, kept: Kept) -> None:
    noted = max((number for name, number in kept if name == last.environment), default=0)
    if (head.sequence if head else 0) > last.sequence or noted > last.sequence:
        raise _BrokenError(last.environment, last.sequence + 1, None, "and all later ones are missing")
    if head is None or (head.sequence, head.hash) != (last.sequence, last.hash):
        raise _BrokenError(last.environment, last.sequence, None, "differs from the head of the chain")


class _BrokenError(Portable, Exception):
    def __init__(self, environment: str, sequence: int, entry: int | None, why: str) -> None:
        super().__init__(why)
        self.broken = Broken(environment, sequence, entry, why)


def _hash(previous: str, row: Entry) -> str:
    parts: tuple[str | None, ...] = (
        previous,
        str(row.sequence),
        str(row.pk),
        row.at.strftime("%Y-%m-%dT%H:%M:%S.%f"),
        row.actor,
        row.role,
        row.origin,
        row.address,
        row.action,
        row.target_kind,
        row.target_name,
        row.before_text,  # type: ignore[attr-defined] # annotated
        row.after_text,  # type: ignore[attr-defined] # annotated
        row.reason,
        row.environment,
        None if row.epoch is None else str(row.epoch),
        None if row.revision is None else str(row.revision),
    )
    # Entries without these values have the hash that they had before the columns existed. The number of
    # parts differs, so a value cannot move from one pair to the other.
    if row.request_id or row.trace_id:
        parts += (row.token, row.owner, row.request_id, row.trace_id)
    elif row.token or row.owner:
        parts += (row.token, row.owner)
    return sha256(b"".join(_part(part) for part in parts)).hexdigest()


def _part(value: str | None) -> bytes:
    if value is None:
        return b"-,"
    text = value.encode()
    return b"%d:%b," % (len(text), text)
