"""Recent grants of access to an account: the giver and the person, as the audit recorded them.

An admin who invites a person, creates a password link, removes a second factor, raises a role or
reactivates an account can log in as that person, or decides what that person may do. So for 30 days
the two do not count as two people where two people have to agree. What was done on the server
(``manage.py``) or by the identity provider counts for no person.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Any

from django.utils import timezone

from controlplane.accounts.models import ApiToken, Role
from controlplane.audit.models import Entry

COUNTS_FOR = timedelta(days=30)

_ROLE_CHANGED = "user.role_changed"
#: Action -> what the giver did to the other person.
_GIVES = {
    "user.invited": "invited",
    "user.link_made": "created a password link for",
    "user.second_factor_removed": "removed the second factor of",
    "user.switched_on": "reactivated",
    _ROLE_CHANGED: "raised a role of",
}
_RANK = {Role.VIEWER.value: 1, Role.OPERATOR.value: 2, Role.ADMIN.value: 3}


@dataclass(frozen=True)
class Access:
    """``giver`` gave ``to`` access to an account."""

    giver: str
    to: str
    action: str
    at: datetime
    #: When this and what came before it no longer counts.
    until: datetime

    def __str__(self) -> str:
        return f"{self.giver} {_GIVES[self.action]} {self.to} on {self.at:%Y-%m-%d}"


def between(person: str, others: Iterable[str]) -> Access | None:
    """Why ``person`` and one of the others count as one person; ``None`` if each is another person.

    Either may have given access to the other, directly or through more people.
    """
    names = [name for name in others if name and name != person]
    mine = _givers(person)
    for name in names:
        found = mine.get(name) or _givers(name).get(person)
        if found is not None:
            return found
    return None


def different_people(usernames: Iterable[str]) -> list[str]:
    """The most of them, found greedily, of whom no two count as one person."""
    givers = {name: _givers(name) for name in usernames}
    left = {
        name: {other for other in givers if name in givers[other] or other in givers[name]} for name in givers
    }
    chosen: list[str] = []
    while left:
        # Pick the person linked to the fewest others first. An admin who invited all others comes last.
        name = min(left, key=lambda name: len(left[name]))
        chosen.append(name)
        same = left.pop(name)
        left = {other: those - same for other, those in left.items() if other not in same}
    return chosen


def _givers(person: str) -> dict[str, Access]:
    """Name -> how that person, or a program, gave ``person`` access in the last 30 days."""
    since = timezone.now() - COUNTS_FOR
    found: dict[str, Access] = {}
    #: The latest access first: a giver counts only for what others gave it before. Later access is no way to
    #: the first account.
    waiting: list[tuple[float, int, Access]] = []
    number = count()
    name, before = person, timezone.now()
    while True:
        for access in _given_to(name, since, before):
            if access.giver not in found and access.giver != person:
                heappush(waiting, (-access.at.timestamp(), next(number), access))
        while waiting and waiting[0][2].giver in found:
            heappop(waiting)
        if not waiting:
            return found
        access = heappop(waiting)[2]
        found[access.giver] = access
        name, before = access.giver, access.at


def _given_to(person: str, since: datetime, before: datetime) -> Iterator[Access]:
    entries = Entry.objects.filter(
        target_kind="user",
        target_name=person,
        action__in=_GIVES,
        origin__in=("form", "api"),
        at__range=(since, before),
    ).order_by("-id")
    for entry in entries:
        if entry.action == _ROLE_CHANGED and not _raised(entry.before or {}, entry.after or {}):
            continue
        for giver in _persons_of(entry):
            if giver != person:
                yield Access(giver, person, entry.action, entry.at, entry.at + COUNTS_FOR)


def _persons_of(entry: Entry) -> set[str]:
    """The person who did it, or the program as the audit names it if no person owns its token."""
    if entry.owner:
        return {entry.owner}
    if entry.actor.startswith("token ") and not entry.token:
        # Entries of before the audit named owners: all owners of tokens with this name.
        named = ApiToken.objects.filter(name=entry.actor.removeprefix("token ")).exclude(owner="")
        return {entry.actor, *named.values_list("owner", flat=True)}
    return {entry.actor}


def _raised(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a role is higher afterwards, in general or in one environment."""

    def rank(fields: Mapping[str, Any], key: str) -> int:
        return _RANK.get(str(fields.get(key, fields.get("role"))), 0)

    keys = {"role", *(key for key in (*before, *after) if key.startswith("role in "))}
    return any(rank(after, key) > rank(before, key) for key in keys)
