import structlog

from controlplane.api.http.idempotency import forget_old_replies
from controlplane.celery import app

log = structlog.get_logger(__name__)


@app.task(name="api.forget_old_replies")
def prune_replies() -> None:
    """Keys are good for a day; their replies are of no use after it."""
    log.info("replies.forgotten", count=forget_old_replies())
