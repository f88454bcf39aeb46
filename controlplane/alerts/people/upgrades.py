"""Mutes for the time of an upgrade: alerts about the control plane itself, in every environment.

Gateways read mutes with everything else that they need to send an alert without a worker.
"""

from datetime import datetime

from django.db import transaction

from controlplane.alerts.models import Mute
from controlplane.alerts.people.mute_edits import MuteValues, add_mute, end_mute
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.state.mutes import LONGEST_OF_LEVEL_3
from controlplane.audit.actor import Actor
from controlplane.errors import InvalidEdit
from controlplane.policies.models import Environment
from controlplane.postgres import postgres_now

#: Postgres, Redis and pods keep their alerts.
MUTED_RULES = tuple(sorted(rule.key for rule in RULES if rule.during_upgrades))
MAX_MINUTES = int(LONGEST_OF_LEVEL_3.total_seconds()) // 60
ACTOR = Actor(name="begin_upgrade", role="admin", origin="command")


@transaction.atomic
def begin_upgrade(*, minutes: int, reason: str) -> datetime | None:
    """Mute from now on, in place of an earlier upgrade. Raises ``InvalidEdit``.

    Returns the end, or ``None`` without any environment.
    """
    end_upgrade(reason=reason)
    values = [MuteValues(rule=rule, minutes=minutes) for rule in MUTED_RULES]
    made = [
        _mute(environment, one, reason)
        for environment in Environment.objects.order_by("slug").values_list("slug", flat=True)
        for one in values
    ]
    return max((mute.ends_at for mute in made), default=None)


def _mute(environment: str, values: MuteValues, reason: str) -> Mute:
    try:
        return add_mute(environment=environment, values=values, reason=reason, actor=ACTOR)
    except InvalidEdit as error:
        raise InvalidEdit(
            {f"{environment}: {field}": found for field, found in error.errors.items()}
        ) from error


@transaction.atomic
def end_upgrade(*, reason: str) -> int:
    """End the mutes of an upgrade; returns how many there were. What still fires is sent at once."""
    found = Mute.objects.filter(by=ACTOR.name, ended_at=None, ends_at__gt=postgres_now()).order_by("pk")
    ended = [
        end_mute(environment=mute.environment, number=mute.pk, reason=reason, actor=ACTOR) for mute in found
    ]
    return len(ended)
