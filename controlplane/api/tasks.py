import structlog

from controlplane.api.models import forget_old_replies
from controlplane.celery import app

log = structlog.get_logger(__name__)


@app.task(name="api.forget_old_replies")
def prune_replies() -> None:
    """Delete stored replies after a day, when their keys have expired."""
    log.info("replies.forgotten", count=forget_old_replies())
