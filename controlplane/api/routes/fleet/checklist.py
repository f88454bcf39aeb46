"""The checklist before a deployment."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Router, Schema

from controlplane.api.schemas.edits_in import Environment
from controlplane.checklist.checklist import checklist

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
def get_checklist(request: HttpRequest, environment: Environment) -> Any:
    """What is checked before a deployment, what was found, and what to do. It changes nothing."""
    found = checklist(environment)
    return {
        "environment": found.environment,
        "revision": found.revision,
        "at": found.at,
        "counts": {verdict.value: number for verdict, number in found.counts.items()},
        "lines": [asdict(line) for line in found.lines],
    }
