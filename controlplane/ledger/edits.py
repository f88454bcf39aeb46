"""Leaves names out of the ledger, of cheap tenants in old hours and of erased ones; deletes old rows."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from controlplane.ledger.models import UsageDay, UsageHour, Whose
from controlplane.ledger.rows import ERASE, HOURS, sum_up
from controlplane.postgres import delete_rows

#: Tenants of an hour with separate rows, once it is over: the most expensive ones. Days have all tenants.
MAX_TENANTS = 200
#: How long after its start an hour is complete, but for pods that could not report.
_COMPLETE = timedelta(hours=2)
#: The oldest hour that pods can report, which gets names again.
_LATEST = timedelta(days=8)
#: How long the receipt of a process is kept after its last part. A pod repeats a part for a shorter time.
_RECEIPTS = timedelta(days=30)

_TOO_MANY = HOURS.unname(
    f"""(environment, at, name) IN (
        SELECT environment, at, name FROM (
            SELECT environment, at, name, row_number() OVER (
                PARTITION BY environment, at
                ORDER BY sum(micro_usd) DESC, sum(fresh + cached + written + output) DESC, name
            ) AS place
            FROM ledger_usagehour WHERE whose = 2 AND name <> '' AND at >= %s AND at < %s
            GROUP BY environment, at, name
        ) AS placed WHERE place > {MAX_TENANTS}
    )"""  # noqa: S608 - a number of this module
)

#: The totals of the days that pods can still report: a gateway of the release before them adds none.
_SUM_UP = sum_up("day >= %s")


def tidy(now: datetime | None = None) -> None:
    """Leave the cheap tenants out of the hours that are over, and delete what is too old."""
    now = now or timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(_TOO_MANY, [now - _LATEST, now - _COMPLETE])
    with transaction.atomic(), connection.cursor() as cursor:
        # Gateways wait, so that none adds to a total that is being summed up.
        cursor.execute("LOCK TABLE ledger_usagetotal IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(_SUM_UP, [(now - _LATEST).date()])
    delete_rows("ledger_usagehour", "at < %s", [now - timedelta(days=settings.LEDGER_KEPT_HOURS_D)])
    delete_rows("ledger_usageday", "day < %s", [(now - timedelta(days=settings.LEDGER_KEPT_DAYS_D)).date()])
    delete_rows("ledger_usagetotal", "day < %s", [(now - timedelta(days=settings.LEDGER_KEPT_DAYS_D)).date()])
    delete_rows("ledger_invoice", "month < %s", [(now - timedelta(days=settings.LEDGER_KEPT_DAYS_D)).date()])
    delete_rows("ledger_usagereceipt", "at < %s", [now - _RECEIPTS])


def erase_tenant(environment: str, tenant: str) -> int:
    """Leave the name of a tenant out of the ledger; returns the number of its rows. What it used stays."""
    if not tenant:
        raise ValueError("Name the tenant to erase.")
    hours = UsageHour.objects.filter(environment=environment, whose=Whose.TENANT, name=tenant).count()
    days = UsageDay.objects.filter(environment=environment, tenant=tenant).count()
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in ERASE:
            cursor.execute(statement, [environment, tenant])
    return hours + days
