"""Links to the report of an incident for people without an account: signed, and valid for some days.

Nothing stores a link. Ending the links of an incident raises a number that each link contains. A link also
names its maker, signed and not encrypted.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core import signing
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.accounts.authors import lost_rights
from controlplane.accounts.permissions import may
from controlplane.alerts.incidents.edits import locked_incident, record_incident
from controlplane.alerts.incidents.reading import title_of
from controlplane.alerts.incidents.report import Report
from controlplane.alerts.incidents.timeline import Line
from controlplane.alerts.models import Incident
from controlplane.alerts.rules.every import RULES
from controlplane.audit.actor import Actor
from controlplane.validation import Problems

PATH = "/incidents/shared/"
MAX_DAYS = 7
_SALT = "fuseboard.incident.report"
_OPEN_TEXTS = frozenset(rule.key for rule in RULES if rule.shareable)
#: Lines that name no customer, pod or receiver. Edits can, so they are left out. Who did it is left out too.
_SHARED = ("alert", "breaker", "override", "marker", "step", "note")


def make_link(*, environment: str, number: int, days: int, actor: Actor) -> str:
    """The path of a new link. Raises ``InvalidEdit``, ``NotFound``."""
    problems = Problems()
    problems.whole("days", days, 1, MAX_DAYS)
    problems.settle()
    until = timezone.now() + timedelta(days=days)
    with transaction.atomic():
        row = locked_incident(environment, number)
        record_incident(row, "incident.shared", actor, reason="", after={"expires_at": until.isoformat()})
    maker = {"name": actor.name, "origin": actor.origin, "person": actor.person, "token": actor.token}
    token = signing.dumps([row.pk, row.share_version, int(until.timestamp()), maker], salt=_SALT)
    return f"{PATH}{token}"


def end_links(*, environment: str, number: int, actor: Actor) -> None:
    """No link that was made before opens the report any more. Raises ``NotFound``."""
    with transaction.atomic():
        row = locked_incident(environment, number)
        Incident.objects.filter(pk=row.pk).update(share_version=F("share_version") + 1)
        record_incident(row, "incident.unshared", actor, reason="")


def shared_incident(token: str) -> tuple[Incident, datetime] | None:
    """The incident of a link, and the end of the link; ``None`` if it is not valid.

    It ends when its maker may not share reports of the environment any more. An earlier version named none.
    """
    try:
        number, version, until, *makers = signing.loads(token, salt=_SALT)
    except signing.BadSignature:
        return None
    ends = datetime.fromtimestamp(until, UTC)
    row = Incident.objects.filter(pk=number, share_version=version).first()
    if row is None or timezone.now() >= ends or any(_lost(maker, row.environment) for maker in makers):
        return None
    return row, ends


def _lost(maker: dict[str, Any], environment: str) -> str:
    return lost_rights(
        Actor(role="", **maker),
        lambda user: may(user, "edit_incident", environment),
        did="shared it",
        needs="the role operator",
    )


def without_names(report: Report) -> Report:
    """The part that people without an account may read of a report."""
    actions, lines = _shared(report.actions), _shared(report.lines)
    return replace(report, acknowledged_by="", actions=actions, lines=lines)


def shared_title(incident: Incident) -> str:
    """The title for people without an account."""
    return (
        title_of(incident)
        if _names_no_person(incident.cause)
        else f"Alert {incident.cause.partition(':')[0]}"
    )


def _shared(lines: Iterable[Line]) -> tuple[Line, ...]:
    shared = (line for line in lines if line.kind in _SHARED)
    return tuple(_of_alert(line) if line.kind == "alert" else replace(line, who="") for line in shared)


def _of_alert(line: Line) -> Line:
    """Its detail can name the tenant of most requests, and most texts name a pod or a tenant."""
    if _names_no_person(line.alert):
        return replace(line, detail="")
    # The details of its end and of flapping name no person.
    what = f"Alert {line.alert.partition(':')[0]}" if line.begins else line.what
    return replace(line, what=what, detail="", thing="", thing_kind="")


def _names_no_person(key: str) -> bool:
    return key.partition(":")[0] in _OPEN_TEXTS
