"""The checklist before a deployment."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import ConfigDict

from controlplane.api.schemas.edits_in import Environment
from controlplane.checklist.checklist import checklist
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

router = Router()

_LINE: dict[str, Any] = {
    "key": "breaker-fallback",
    "group": "Breakers",
    "check": "Each breaker has a described fallback",
    "found": "1 of 4 have no fallback note: search",
    "verdict": "missing",
    "do": "Write into fallback_note what callers do while the breaker is open.",
    "doc": "docs/protection.md#fallbacks",
}


class ChecklistLineOut(Schema):
    """`unchecked`: the control plane does not know, and `found` says why. `confirm`: only a person knows."""

    model_config = ConfigDict(json_schema_extra={"example": _LINE})

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

    model_config = ConfigDict(
        json_schema_extra={"example": {"ok": 31, "attention": 6, "missing": 1, "unchecked": 5, "confirm": 9}}
    )

    ok: int
    attention: int
    missing: int
    unchecked: int
    confirm: int


class ChecklistOut(Schema):
    """The checklist, answered from the configuration and the fleet at one moment."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "environment": DEFAULT_ENVIRONMENT,
                "revision": 42,
                "at": "2026-05-04T13:12:09Z",
                "counts": {"ok": 0, "attention": 0, "missing": 1, "unchecked": 0, "confirm": 0},
                "lines": [_LINE],
            }
        }
    )

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
