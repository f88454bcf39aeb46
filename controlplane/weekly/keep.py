"""Makes the summary of each week once, and keeps the last 13."""

from datetime import UTC, date, datetime, timedelta

import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.errors import InvalidEdit
from controlplane.policies.models import Environment
from controlplane.weekly.models import WeeklySummary
from controlplane.weekly.sections import without_tenant
from controlplane.weekly.summarize import summarize

log = structlog.get_logger(__name__)

WEEKS_KEPT = 13
#: The last hour of a week is sealed 6 minutes after its end, and pods may be late.
LATE = timedelta(minutes=30)


def last_week(now: datetime | None = None) -> date:
    """The Monday of the newest week that can be summarized."""
    day = ((now or timezone.now()).astimezone(UTC) - LATE).date()
    return day - timedelta(days=day.weekday() + 7)


def make_due(now: datetime | None = None) -> int:
    """Make what is missing of last week; returns how many. Two that run at once make the same.

    An environment that fails keeps none of the others from its summary: the errors are raised at the end.
    """
    begins, made = last_week(now), 0
    errors: list[Exception] = []
    done = WeeklySummary.objects.filter(begins=begins).values("environment")
    for environment in Environment.objects.exclude(slug__in=done).order_by("slug"):
        try:
            make_summary(environment.slug, begins)
            made += 1
        except Exception as error:
            log.exception("weekly.not_made", environment=environment.slug)
            errors.append(error)
    if errors:
        raise ExceptionGroup("the weekly summaries of some environments were not made", errors)
    return made


def make_summary(environment: str, begins: date, now: datetime | None = None) -> WeeklySummary:
    """Make it, again if it exists. Raises ``InvalidEdit`` for a day without a week that has ended."""
    if begins.weekday() or begins > last_week(now):
        raise InvalidEdit({"week": ["Enter the Monday of a week that has ended, like 2026-05-04."]})
    with transaction.atomic():
        values = {"sections": summarize(environment, begins), "made_at": now or timezone.now()}
        return WeeklySummary.objects.update_or_create(
            environment=environment, begins=begins, defaults=values
        )[0]


def forget(now: datetime | None = None) -> None:
    oldest = last_week(now) - timedelta(weeks=WEEKS_KEPT - 1)
    WeeklySummary.objects.filter(begins__lt=oldest).delete()


def erase_tenant(environment: str, tenant: str) -> None:
    """Take the lines about a tenant, and about alerts of it, out of every summary."""
    for summary in WeeklySummary.objects.select_for_update().filter(environment=environment):
        sections = without_tenant(summary.sections, tenant)
        if sections != summary.sections:
            summary.sections = sections
            summary.save(update_fields=["sections"])


def find_summary(environment: str, begins: date | None = None) -> WeeklySummary | None:
    """The summary of one week, or the newest."""
    rows = WeeklySummary.objects.filter(environment=environment).order_by("-begins")
    return rows.filter(begins=begins).first() if begins is not None else rows.first()
