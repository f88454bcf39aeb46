"""Refused requests and calls: how many, samples of them, and what one of them means."""

from dataclasses import asdict
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router

from controlplane.api.http.auth import caller_of
from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.http.pages import newest_page
from controlplane.api.http.parsing import QueryIn
from controlplane.api.schemas.edits_in import Environment, Match, PageSize, RowId
from controlplane.api.schemas.refusals import (
    ExplainedOut,
    ExplainIn,
    RefusalCountsOut,
    RefusalPage,
    TopRefusalsOut,
)
from controlplane.api.time_range import Since, Until, range_of
from controlplane.errors import find
from controlplane.policies.document import environment_of
from controlplane.refusals.explain import Explanation
from controlplane.refusals.models import RefusalSample
from controlplane.refusals.samples import IN_FILE, samples_as_csv, token_of
from controlplane.refusals.top_lists import TopLists, read_top
from controlplane.refusals.tries import take_try
from controlplane.status.refusals import Filter, breakdown, explained, samples_of

router = Router()


class RefusalsQuery(QueryIn):
    """The refusals that a question is about."""

    #: A caller that is not registered counts as a tenant.
    tenant: Match = ""
    rule: Match = ""
    #: The template of a route, such as ``POST /v1/orders``.
    endpoint: Match = ""
    pod: Match = ""
    reason: Match = ""
    dependency: Match = ""
    #: Finds its present tenants.
    tier: Match = ""
    since: Since = None
    until: Until = None

    @property
    def filter(self) -> Filter:
        return Filter(server=self.pod, **self.dict(exclude={"pod", "since", "until"}))


@router.get(
    "",
    response=RefusalPage,
    openapi_extra={"responses": {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}},
)
def list_refusals(
    request: HttpRequest,
    environment: Environment,
    wanted: Query[RefusalsQuery],
    before: RowId | None = None,
    limit: PageSize = 100,
    format: Literal["json", "csv"] = "json",  # noqa: A002
) -> Any:
    """Samples of refusals, the newest first; `next` is the `before` of the next page.

    Samples are kept for a day by default. With `format=csv`, a file of at most 10,000 samples.
    """
    start, end = range_of(wanted.since, wanted.until)
    rows = samples_of(environment_of(environment).slug, wanted.filter, start, end).order_by("-id")
    if before is not None:
        rows = rows.filter(id__lt=before)
    if format == "csv":
        headers = {"Content-Disposition": f'attachment; filename="refusals-{end:%Y-%m-%d}.csv"'}
        text = samples_as_csv(rows[: IN_FILE + 1])
        return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)
    return newest_page(rows, limit)


@router.get("/counts", response=RefusalCountsOut)
def count_refusals(
    request: HttpRequest,
    environment: Environment,
    wanted: Query[RefusalsQuery],
) -> Any:
    """How many were refused, and by tenant, rule, endpoint, pod, reason and dependency, the most first.

    `counted` is what pods counted. `percent` is an estimate from samples, and never a count.
    """
    start, end = range_of(wanted.since, wanted.until)
    found = asdict(breakdown(environment_of(environment).slug, wanted.filter, start, end))
    lines = found.pop("lines")
    return found | lines | {"pod": lines["server"]}


@router.get("/top", response=TopRefusalsOut)
def list_most_refused(
    request: HttpRequest, environment: Environment, since: Since = None, until: Until = None
) -> TopLists:
    """The stored top lists: tenants, endpoints, reasons and dependencies that are refused most, for 28 days.

    A `count` is never too high, and too low by at most `short_by` of its list. Lists with `sampled` are
    estimates. The range that is counted is from `start` to `end`: `since` rounded down and `until` rounded up
    to a minute, or to an hour if it is hours ago.
    """
    start, end = range_of(since, until)
    return read_top(environment_of(environment).slug, start, end)


@router.get("/samples/{number}", response=ExplainedOut)
def explain_sample(request: HttpRequest, environment: Environment, number: RowId) -> Explanation:
    """Explain a sample, as its token would be explained. Counts as one of the 20 tries per minute."""
    slug = environment_of(environment).slug
    sample = find(RefusalSample.objects.filter(environment=slug), "sample", pk=number)
    take_try(caller_of(request))
    return explained(token_of(sample), {slug}, timezone.now(), tenant=sample.tenant)


@router.post("/explain", response=ExplainedOut)
@changes_nothing
def explain_refusal(request: HttpRequest, environment: Environment, values: ExplainIn) -> ExplainedOut:
    """Explain the token of a refusal: the rule then and now, who changed it since, the pod, and the mode.

    At most 20 tries per minute and caller. 404: not a token of this environment. 410: it has expired.
    """
    slug = environment_of(environment).slug
    take_try(caller_of(request))
    return ExplainedOut.model_validate(explained(values.token, {slug}, timezone.now(), tenant=values.tenant))
