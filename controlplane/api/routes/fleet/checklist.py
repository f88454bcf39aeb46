"""The checklist before a deployment."""

from datetime import datetime
from typing import Literal

from django.http import HttpRequest
from ninja import Router, Schema

from controlplane.api.schemas.edits_in import Environment
from controlplane.checklist.checklist import Checklist, checklist

router = Router()


class ChecklistLineOut(Schema):
    """`unchecked`: the control plane does not know, and `found` says why. `confirm`: only a person knows."""

    key: str
    group: str
    check: str
    found: str
    verdict: Literal["ok", "attention", "missing", "unchecked", "confirm"]
    #: Empty if there is nothing to do.
    do: str
    doc: str


class ChecklistCountsOut(Schema):
    """The number of lines with each verdict."""

    ok: int
    attention: int
    missing: int
    unchecked: int
    confirm: int


class ChecklistOut(Schema):
    """The checklist, answered from the configuration and the fleet at one moment."""

    environment: str
    revision: int
    at: datetime
    counts: ChecklistCountsOut
    lines: list[ChecklistLineOut]


@router.get("", response=ChecklistOut)
def get_checklist(request: HttpRequest, environment: Environment) -> Checklist:
    """What is checked before a deployment, what was found, and what to do. It changes nothing."""
    return checklist(environment)
