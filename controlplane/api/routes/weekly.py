"""The weekly summary."""

from datetime import date, datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import ConfigDict

from controlplane.api.schemas.edits_in import Environment
from controlplane.errors import NotFound
from controlplane.policies.document import environment_of
from controlplane.weekly.keep import find_summary
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

Week = Annotated[date | None, Query(description="Its Monday; without it, the newest week.")]

router = Router()

_LINE: dict[str, Any] = {
    "name": "requests of tier free",
    "found": "5,120 of 96,400 refused, 5.3 %; limit 600 per 1 min; 41 tenants",
    "suggestion": "Raise it to at least 640.",
    "opens": "tier",
    "key": "free",
    "limit": "requests",
    "size": 640,
}
_SECTION: dict[str, Any] = {
    "title": "Limits that are too low",
    "known": "Of the tenants that gateways list as the busiest, without a separate quota.",
    "nothing": "No quota of a tier refused 1 % of its requests.",
    "more": 0,
    "lines": [_LINE],
}


class SummaryLineOut(Schema):
    """What was found about one thing, and what to change."""

    model_config = ConfigDict(json_schema_extra={"example": _LINE})

    name: str
    #: The evidence: figures, and of which time.
    found: str
    #: Empty for a line that only informs.
    suggestion: str
    #: The kind of thing that `key` names: `tenant`, `breaker`, `tier`, `dependency`, or `alerts`.
    opens: str
    #: Empty for a caller that is not registered.
    key: str
    #: The limit of a tier that `size` is suggested for.
    limit: str
    #: The suggested size; null for none.
    size: int | None


class SummarySectionOut(Schema):
    """One section."""

    model_config = ConfigDict(json_schema_extra={"example": _SECTION})

    title: str
    #: Which part of the week is known.
    known: str
    #: What it means that there are no lines: nothing was found, or nothing is known.
    nothing: str
    #: Lines that are not listed.
    more: int
    lines: list[SummaryLineOut]


class WeeklySummaryOut(Schema):
    """What was refused, open, too low, never reached or flapping in a week."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "environment": DEFAULT_ENVIRONMENT,
                "begins": "2026-05-04",
                "made_at": "2026-05-11T00:30:12Z",
                "sections": [_SECTION],
            }
        }
    )

    environment: str
    #: Its Monday, in UTC.
    begins: date
    made_at: datetime
    sections: list[SummarySectionOut]


@router.get("", response=WeeklySummaryOut)
def get_weekly_summary(
    request: HttpRequest,
    environment: Environment,
    week: Week = None,
) -> Any:
    """The summary of a week. The worker makes one each Monday, and keeps 13."""
    found = find_summary(environment_of(environment).slug, week)
    if found is None:
        raise NotFound("weekly summary", str(week) if week else "of this environment")
    return found
