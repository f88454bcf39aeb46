"""Lets the web process do what is due when the worker does not.

A quota or a raise that should have ended, or a change that is due, must not wait until an operator
notices that the worker is down.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import structlog
from django.db import Error, close_old_connections
from django.utils import timezone

from controlplane.metric_catalogue import edits as catalogue
from controlplane.policies.models import TenantQuota
from controlplane.schedules.due import run_due
from controlplane.schedules.models import Schedule, ScheduleState
from controlplane.spending.models import Budget

log = structlog.get_logger(__name__)

#: The worker checks every second. After this delay it is down or overloaded.
LATE_S = 15.0
LOOK_S = 5.0

stood_in = catalogue.SCHEDULES_STOOD_IN.make()


async def stand_in() -> None:
    """Do what is overdue, until cancelled. While Postgres is down, nothing can be done."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="standing-in")
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await asyncio.get_running_loop().run_in_executor(thread, make_overdue)
        except Error as error:
            log.warning("schedules.not_looked", error=str(error).partition("\n")[0])
        except Exception:
            # The worker would fail in the same way. The next check must happen nevertheless.
            log.exception("schedules.stand_in_failed")


def make_overdue() -> bool:
    """Do what has been due for ``LATE_S``. Return whether there was anything. Safe in several processes."""
    close_old_connections()
    try:
        late = timezone.now() - timedelta(seconds=LATE_S)
        quotas = TenantQuota.objects.filter(expires_at__lte=late, tenant__deleted=False)
        budgets = Budget.objects.filter(raised_until__lte=late)
        changes = Schedule.objects.filter(state=ScheduleState.WAITING, due_at__lte=late)
        found = {"quotas": quotas.count(), "budgets": budgets.count(), "changes": changes.count()}
        if not any(found.values()):
            return False
        log.error("worker.away", late_s=LATE_S, **found)
        stood_in.inc()
        run_due()
        return True
    finally:
        close_old_connections()
