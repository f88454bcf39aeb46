"""Changes that wait in the name of one person: scheduled, requested, and password links for others.

An admin who deactivates the person, or lowers a role, cancels it, or lets it fail when it is due.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal

from django.db import transaction
from django.db.models import Q

from controlplane.accounts import single_use_links
from controlplane.accounts.permissions import may
from controlplane.approvals.authors import why_not_theirs
from controlplane.approvals.models import PENDING, ChangeRequest
from controlplane.audit.action_words import target_words
from controlplane.audit.actor import Actor
from controlplane.change_requests.decide import withdraw_for_another
from controlplane.errors import EditError
from controlplane.schedules.authors import authors_of, waiting_by, why_not_theirs_now
from controlplane.schedules.edits import cancel_schedule

#: The bound applies to each kind, for one person.
MAX_WAITING = 500

Kind = Literal["schedule", "change_request", "link"]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """One thing that takes effect later, if its author may do it then."""

    kind: Kind
    #: Its number; 0 for a link.
    number: int = 0
    #: Empty for a link.
    environment: str = ""
    title: str
    #: When it is due; the end of a change request or a link.
    at: datetime
    #: Why it fails with the present rights of the person; empty if it does not.
    lost: str = ""


def waiting_of(username: str) -> list[Waiting]:
    """In all environments, also those that are closed to the reader: see ``seen_by``."""
    return sorted((*_schedules(username), *_requests(username), *_links(username)), key=lambda one: one.at)


def seen_by(reader: Any, found: list[Waiting]) -> list[Waiting]:
    """Items that the reader may see. Links belong to people, and so to those who manage them."""
    return [one for one in found if not one.environment or may(reader, "view", one.environment)]


def cancel_lost(*, username: str, reader: Any, reason: str, actor: Actor) -> list[Waiting]:
    """Cancel what would fail with the present rights of the person. Return what was cancelled.

    Leaves what is in an environment where the reader may not edit, and what was decided meanwhile.
    """
    with transaction.atomic():
        return [
            one
            for one in waiting_of(username)
            if one.lost
            and (not one.environment or may(reader, "edit_quota", one.environment))
            and _cancel(one, username, reason, actor)
        ]


def _cancel(one: Waiting, username: str, reason: str, actor: Actor) -> bool:
    if one.kind == "link":
        return single_use_links.end_links_by(username, to=one.title, reason=reason, actor=actor) > 0
    given: dict[str, Any] = {"environment": one.environment, "reason": reason, "actor": actor}
    try:
        if one.kind == "schedule":
            cancel_schedule(schedule=one.number, **given)
        else:
            withdraw_for_another(request=one.number, **given)
    except EditError:
        # Another process applied or ended it since it was listed.
        return False
    return True


def _schedules(username: str) -> Iterator[Waiting]:
    rows = list(waiting_by(username).order_by("due_at").defer("document")[:MAX_WAITING])
    authors = authors_of(rows)
    approved = {row.schedule: row for row in ChangeRequest.objects.filter(schedule__in=authors)}
    lost = cache(why_not_theirs_now)
    for row in rows:
        yield Waiting(
            kind="schedule",
            number=row.pk,
            environment=row.environment,
            title=row.title,
            at=row.due_at,
            lost=lost(row.environment, authors[row.pk], approved.get(row.pk)),
        )


def _requests(username: str) -> Iterator[Waiting]:
    rows = ChangeRequest.objects.filter(state__in=PENDING)
    rows = rows.filter(Q(author=username) | Q(persons__contains=[username])).order_by("pk")
    for row in rows.defer("document")[:MAX_WAITING]:
        yield Waiting(
            kind="change_request",
            number=row.pk,
            environment=row.environment,
            title=target_words(str(row)),
            at=row.expires_at,
            lost=why_not_theirs(row),
        )


def _links(username: str) -> Iterator[Waiting]:
    for link in single_use_links.links_by(username):
        yield Waiting(kind="link", title=link.to, at=link.until, lost=link.lost)
