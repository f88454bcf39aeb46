"""The edit freeze of an environment: until a time, edits are refused with 423. Overrides still work."""

from datetime import datetime

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.edits_in import Environment, Moment, Reason, ReasonIn
from controlplane.editing.freeze import end_freeze, freeze_edits
from controlplane.policies.document import environment_of

router = Router()


class FreezeIn(ReasonIn):
    until: Moment


class FreezeOut(Schema):
    #: Until when edits are refused; null while they are not.
    until: datetime | None
    by: str
    reason: str


@router.get("", response=FreezeOut)
def get_freeze(request: HttpRequest, environment: Environment) -> FreezeOut:
    """Whether edits are frozen, by whom and why."""
    return _freeze_of(environment)


@router.put("", response=FreezeOut, auth=needs("freeze_edits"))
def set_freeze(request: HttpRequest, environment: Environment, values: FreezeIn) -> FreezeOut:
    """Refuse every edit of the configuration until then. Overrides of breakers still work.

    Scheduled changes that fall due wait until the freeze ends. At most 31 days.
    """
    freeze_edits(environment=environment, until=values.until, reason=values.reason, actor=actor_of(request))
    return _freeze_of(environment)


@router.delete("", response=FreezeOut, auth=needs("freeze_edits"))
def remove_freeze(request: HttpRequest, environment: Environment, reason: Reason) -> FreezeOut:
    """Allow edits again."""
    end_freeze(environment=environment, reason=reason, actor=actor_of(request))
    return _freeze_of(environment)


def _freeze_of(environment: str) -> FreezeOut:
    row = environment_of(environment)
    if row.frozen_until is None or row.frozen_until <= timezone.now():
        return FreezeOut(until=None, by="", reason="")
    return FreezeOut(until=row.frozen_until, by=row.frozen_by, reason=row.frozen_reason)
