"""Figures over time."""

import csv
from datetime import UTC, datetime
from io import StringIO
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.alerts.incidents.markers import markers_between
from controlplane.alerts.models import Marker
from controlplane.api.schemas.edits_in import Environment
from controlplane.api.time_range import Since, Until, range_of
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.series.kinds import BY_NAME, TENANT_HOUR
from controlplane.series.marks import MAX_MARKS, Mark, marks_of, open_periods
from controlplane.series.reading import Answer, read
from controlplane.series.tenant_hours import read_hours

router = Router()

#: Fields of one answer.
MAX_FIELDS = 16

KindName = Literal["fleet", "dependency", "pod", "tenant", "rule", "tenant_hour"]
Name = Annotated[
    str,
    Query(max_length=200, description="Dependency, pod, or tenant. Empty for the fleet, or for all tenants."),
]
Rule = Annotated[str, Query(max_length=64, description="The quota, if `kind` is `rule`.")]
Fields = Annotated[
    str,
    Query(
        min_length=1,
        max_length=600,
        description=f"Names with commas between them, at most {MAX_FIELDS}. See docs/history.md.",
    ),
]


class PartialOut(Schema):
    """Seconds in which only `heard` of `known` pods were measured.

    Both are 0 in hours of all tenants without the requests of some: counts are at least the values.
    """

    start: int
    end: int
    heard: int
    known: int


class SeriesOut(Schema):
    """Points of one thing. Point n covers `step_s` seconds from `start` + n * `step_s` on, in Unix seconds.

    A value is null where it is unknown; 0 means that it was measured. A count is of the `known_s` seconds of
    its point that were measured. A gauge is the highest value of its point.
    """

    start: int
    step_s: int
    known_s: list[int]
    fields: dict[str, list[int | None]]
    #: Before this nothing is known of it; null if nothing is known at all.
    first_at: int | None
    partial: list[PartialOut]
    #: End of the newest point that was measured.
    newest: int | None
    #: The demo made up the figures before this; null for real figures.
    made_up_until: int | None = None


class MarkOut(Schema):
    at: float
    kind: Annotated[str, Field(description="`transition`, `override`, `change`, `pod`, or `marker`.")]
    text: str
    revision: int | None


class OpenPeriodOut(Schema):
    start: float
    end: float
    forced: bool


class MarksOut(Schema):
    """The newest events of a range, oldest first; `earlier` is how many are left out.

    `open_periods` are the times in which the breaker of a dependency was not closed.
    """

    marks: list[MarkOut]
    earlier: int
    open_periods: list[OpenPeriodOut]


@router.get(
    "",
    response=SeriesOut,
    openapi_extra={"responses": {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}},
)
def get_series(
    request: HttpRequest,
    environment: Environment,
    kind: KindName,
    fields: Fields,
    name: Name = "",
    rule: Rule = "",
    since: Since = None,
    until: Until = None,
    format: Literal["json", "csv"] = "json",  # noqa: A002
) -> Any:
    """Figures of the fleet, a dependency, a pod, a tenant, or one of its quotas, over at most 400 days.

    `tenant` has the 200 busiest of each 10 s, and `tenant_hour` every active tenant, with points of an hour.
    Others are of 10 s up to 6 hours, of minutes up to 8 days, and of hours otherwise; at most 2,200.
    With `format=csv`, one row per point: when it begins, `known_s`, and the fields, empty if unknown.
    """
    start, end = range_of(since, until)
    names = list(dict.fromkeys(fields.split(",")))
    if len(names) > MAX_FIELDS:
        raise InvalidEdit({"fields": [f"Ask for at most {MAX_FIELDS} fields."]})
    slug = environment_of(environment).slug
    try:
        if kind == TENANT_HOUR.name:
            if not name:
                raise InvalidEdit({"name": ["Name the tenant: its hours have no sum of all tenants."]})
            answer = read_hours(slug, name, fields=names, start=start, end=end)
        else:
            answer = read(slug, BY_NAME[kind], name, rule, fields=names, start=start, end=end)
    except ValueError as error:
        raise InvalidEdit({"fields": [str(error)]}) from error
    return _file(answer, names, f"{kind}-{start:%Y-%m-%dT%H%M}.csv") if format == "csv" else answer


def _file(answer: Answer, names: list[str], filename: str) -> HttpResponse:
    """Names of fields and whole numbers only, so that no cell can be a formula."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(["at", "known_s", *names])
    for place, known_s in enumerate(answer.known_s):
        at = datetime.fromtimestamp(answer.start + place * answer.step_s, UTC)
        values = ["" if (value := answer.fields[name][place]) is None else value for name in names]
        writer.writerow([f"{at:%Y-%m-%dT%H:%M:%SZ}", known_s, *values])
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


@router.get("/marks", response=MarksOut)
def get_marks(
    request: HttpRequest,
    environment: Environment,
    kind: KindName,
    name: Name = "",
    since: Since = None,
    until: Until = None,
) -> Any:
    """Transitions, overrides, changes, events of pods, and markers in a range, at most 40."""
    start, end = range_of(since, until)
    slug = environment_of(environment).slug
    marks, earlier = marks_of(slug, BY_NAME[kind], name, start=start, end=end)
    deployed, older = markers_between(slug, start=start, end=end, most=MAX_MARKS)
    marks += [Mark(at=row.at.timestamp(), kind="marker", text=_deployed(row)) for row in deployed]
    newest = sorted(marks, key=lambda mark: mark.at)[-MAX_MARKS:]
    return {
        "marks": newest,
        "earlier": earlier + older + len(marks) - len(newest),
        "open_periods": open_periods(slug, BY_NAME[kind], name, start=start, end=end),
    }


def _deployed(row: Marker) -> str:
    return f"{row.service}: {row.text}" if row.service else row.text
