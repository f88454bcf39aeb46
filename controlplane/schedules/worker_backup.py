"""The web process does what is due when the worker does not: a quota that should have ended, or a change
that should have begun, must not wait until somebody notices that the worker is gone."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import structlog
from django.db import Error, close_old_connections
from django.utils import timezone
from prometheus_client import Counter

from controlplane.policies.models import TenantQuota
from controlplane.schedules.due import run_due
from controlplane.schedules.models import Schedule, ScheduleState

log = structlog.get_logger(__name__)

#: The worker looks every second; after so long it is away, or has too much to do.
LATE_S = 15.0
LOOK_S = 5.0

stood_in = Counter("fuseboard_schedules_stood_in_total", "Times the web process did what the worker had not.")


async def stand_in() -> None:
    """Look for what is overdue until cancelled. While Postgres is away nothing can be made anyhow."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="standing-in")
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await asyncio.get_running_loop().run_in_executor(thread, make_overdue)
        except Error as error:
            log.warning("schedules.not_looked", error=str(error).partition("\n")[0])
        except Exception:
            # The worker would say the same of it; the next look must come all the same.
            log.exception("schedules.stand_in_failed")


def make_overdue() -> bool:
    """Make what has been due for ``LATE_S``, however many do so at once; whether there was anything."""
    close_old_connections()
    try:
        late = timezone.now() - timedelta(seconds=LATE_S)
        quotas = TenantQuota.objects.filter(expires_at__lte=late, tenant__deleted=False)
        changes = Schedule.objects.filter(state=ScheduleState.WAITING, due_at__lte=late)
        found = {"quotas": quotas.count(), "changes": changes.count()}
        if not any(found.values()):
            return False
        log.error("worker.away", late_s=LATE_S, **found)
        stood_in.inc()
        run_due()
        return True
    finally:
        close_old_connections()
