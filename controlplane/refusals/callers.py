"""Callers that are refused most, by the digests in samples of refusals. No address or key is stored."""

from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, F, Max, Sum, Value

from controlplane.refusals.models import RefusalSample

#: Column of a sample -> what it is a digest of.
KINDS = {"ip": "address", "user": "login", "api_key": "API key"}
#: Callers of each kind.
MAX_CALLERS = 10


@dataclass(frozen=True, kw_only=True)
class RefusedCaller:
    #: A key of ``KINDS`` and its words: ``ip`` and ``address``.
    column: str
    kind: str
    digest: str
    tenant: str
    rule: str
    #: Estimated from the samples, each of which stands for several refusals.
    refused: float
    samples: int
    last: datetime


def most_refused(environment: str, start: datetime, end: datetime) -> tuple[RefusedCaller, ...]:
    """Each caller once, by all that refused it: those that are refused most first."""
    found: dict[tuple[str, str], RefusedCaller] = {}
    for one in refused_callers(environment, start, end):
        known = found.get((one.column, one.digest))
        if known is not None:
            one = replace(
                known,
                refused=known.refused + one.refused,
                samples=known.samples + one.samples,
                last=max(known.last, one.last),
            )
        found[one.column, one.digest] = one
    return tuple(sorted(found.values(), key=lambda one: -one.refused))


def refused_callers(environment: str, start: datetime, end: datetime) -> list[RefusedCaller]:
    """The most refused callers first, with the tenant and the rule that refused them."""
    rows = RefusalSample.objects.filter(environment=environment, at__gte=start, at__lt=end)
    most = [
        rows.exclude(**{column: ""})
        .annotate(column=Value(column), digest=F(column))
        .values("column", "digest", "tenant", "rule")
        .annotate(refused=Sum("weight"), samples=Count("id"), last=Max("at"))
        .order_by("-refused")[:MAX_CALLERS]
        for column in KINDS
    ]
    found = most[0].union(*most[1:], all=True).order_by("-refused")
    return [RefusedCaller(kind=KINDS[group["column"]], **group) for group in found]
