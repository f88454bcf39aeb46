"""Which callers are refused most, by the digests in samples of refusals. No address or key is stored."""

from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, Max, Sum

from controlplane.refusals.models import RefusalSample

#: Column of a sample -> what it is a digest of.
KINDS = {"ip": "address", "user": "login", "api_key": "API key"}
#: Callers of each kind.
MOST = 10


@dataclass(frozen=True, kw_only=True)
class RefusedCaller:
    #: As in ``KINDS``: ``ip``, and in words ``address``.
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
    """Those that are refused most first. With the tenant and the rule that refused them."""
    rows = RefusalSample.objects.filter(environment=environment, at__gte=start, at__lt=end)
    found: list[RefusedCaller] = []
    for column, kind in KINDS.items():
        groups = (
            rows.exclude(**{column: ""})
            .values(column, "tenant", "rule")
            .annotate(part=Sum("weight"), number=Count("id"), last=Max("at"))
            .order_by("-part")
        )
        found += [
            RefusedCaller(
                column=column,
                kind=kind,
                digest=group[column],
                tenant=group["tenant"],
                rule=group["rule"],
                refused=group["part"],
                samples=group["number"],
                last=group["last"],
            )
            for group in groups[:MOST]
        ]
    return sorted(found, key=lambda caller: -caller.refused)
