"""The charts beside an explained refusal: what its rule counted then, and a mark at the refusal."""

from dataclasses import replace
from datetime import datetime, timedelta

from django.conf import settings

from controlplane.refusals.explain import Explanation
from controlplane.refusals.names import Rule
from controlplane.series.marks import Mark
from dashboard.live.charts import ASKED_AND_REFUSED, Chart, of_dependency, of_pod, of_tenant


def charts_of_refusal(found: Explanation) -> tuple[Chart, ...]:
    """Empty if the rule is not known any more."""
    mark = Mark(at=found.at.timestamp(), kind="refusal", text="this refusal")
    return tuple(replace(chart, marks=(mark,)) for chart in _charts(found, found.rule))


def _charts(found: Explanation, rule: Rule | None) -> tuple[Chart, ...]:
    tenant = found.tenant.name
    if rule is None:
        return ()
    if rule.dependency:
        return tuple(
            chart for chart in of_dependency(rule.dependency, threshold=1) if chart.id == "chart-calls"
        )
    if rule.kind == "quota":
        owner = rule.owner or tenant
        of_all = _of_rule(f"Quota {rule.limit}, all tenants", "chart-rule-all", "", rule.limit)
        if not owner:
            return (of_all,)
        own = _of_rule(f"Quota {rule.limit} of {owner}", "chart-rule", owner, rule.limit)
        label = f"then {found.then.limit}" if found.share is None else "about this pod's local share then"
        return (replace(own, limit=found.line_per_s, limit_label=label), of_all)
    if rule.kind == "subject_limit":
        return (_of_rule(f"Limit {rule.limit}, all callers", "chart-rule-all", "", rule.name),)
    if rule.kind == "pod" and found.pod:
        return of_pod(found.pod)
    return of_tenant(tenant) if tenant else ()


def _of_rule(title: str, id: str, tenant: str, rule: str) -> Chart:  # noqa: A002 - as in HTML
    return Chart(id=id, title=title, kind="rule", name=tenant, rule=rule, lines=ASKED_AND_REFUSED)


def range_around(at: datetime, now: datetime) -> tuple[int, int]:
    """Unix seconds before and after a refusal, so that points of its age are still stored.

    A range of more than 6 hours has points of minutes, and one of more than 8 days points of hours.
    """
    age = now - at
    if age < timedelta(hours=settings.SERIES_KEPT_10S_H - 1):
        each = timedelta(minutes=5)
    elif age < timedelta(days=settings.SERIES_KEPT_MINUTES_D - 1):
        each = timedelta(hours=4)
    else:
        each = timedelta(days=5)
    return int((at - each).timestamp()), int((at + each).timestamp())
