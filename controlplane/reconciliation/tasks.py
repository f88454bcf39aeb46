import redis
import structlog
from django.utils import timezone

from controlplane.celery import app
from controlplane.reconciliation import copying

log = structlog.get_logger(__name__)


@app.task(name="reconciliation.copy")
def copy() -> None:
    copying.note_losses(timezone.now())
    try:
        copying.copy_if_needed()
    except redis.RedisError as error:
        # It waits in Redis for 40 days.
        log.warning("reconciliation.not_copied", error=str(error))
        copying.note_problem(f"{type(error).__name__}: {error}")


@app.task(name="reconciliation.forget")
def forget() -> None:
    copying.forget()
