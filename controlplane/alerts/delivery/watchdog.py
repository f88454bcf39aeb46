"""A dead man's switch: a service outside calls a person when it is no longer pinged.

Nothing inside can report that everything is down. So each process that evaluates alerts pings a URL, only
while it does evaluate, and the silence is the alarm.
"""

from datetime import timedelta

import structlog
from django.conf import settings
from django.db.models.functions import Now

from controlplane.alerts.delivery.addresses import AddressRefused
from controlplane.alerts.delivery.http import NotDelivered, post
from controlplane.alerts.models import Evaluation
from controlplane.metric_catalogue import alerts
from controlplane.policies.models import Environment

EVERY_S = 60.0
#: A process that did not evaluate for this time sends no ping.
MAX_IDLE_S = 30.0

PINGS = alerts.WATCHDOG_PINGS.make()

log = structlog.get_logger(__name__)


def ping() -> str:
    """``ok``, ``refused`` for an address inside, or ``failed``. The URL is a secret, so no log has it."""
    try:
        answer = post(settings.WATCHDOG_URL, b"", {}, allowed=settings.WEBHOOK_NETWORKS)
    except AddressRefused as refused:
        log.error("watchdog.refused", error=str(refused))
        return "refused"
    except NotDelivered as failed:
        log.warning("watchdog.failed", error=str(failed))
        return "failed"
    if 200 <= answer.status < 300:
        return "ok"
    log.warning("watchdog.failed", status=answer.status)
    return "failed"


def ping_if_evaluated() -> None:
    """The worker's ping: only while every environment is evaluated."""
    recently = Evaluation.objects.filter(at__gt=Now() - timedelta(seconds=MAX_IDLE_S))
    left_out = Environment.objects.exclude(slug__in=recently.values("environment"))
    if left_out.exists():
        PINGS.labels("left_out").inc()
        log.warning("watchdog.left_out", environments=list(left_out.values_list("slug", flat=True)[:10]))
        return
    PINGS.labels(ping()).inc()
