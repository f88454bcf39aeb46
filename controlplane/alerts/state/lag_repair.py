"""The automatic repair of pods that lag: the configuration is sent to them again.

A pod that missed the message of an edit reads it with its next heartbeat, or with the next message. So the
worker publishes what Redis lacks, and repeats the message, while the alert ``lag`` lasts.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import redis
import structlog

from controlplane.alerts.models import Evaluation
from controlplane.metric_catalogue import edits as catalogue
from controlplane.publishing.publish import PublishError, refresh

log = structlog.get_logger(__name__)

#: Between two attempts. A pod needs one heartbeat to report what it applies.
AGAIN_S = 20.0
#: In the document of an evaluation.
FIELD = "refresh"

REFRESHES = catalogue.REFRESHES.make()


def is_due(done: Mapping[str, Any] | None, now: float) -> bool:
    return done is None or now - float(done["at"]) >= AGAIN_S


def done_about(done: Mapping[str, Any] | None) -> str:
    """An addition to the detail of the alert: what was done, and whether it worked; empty for nothing."""
    if done is None:
        return ""
    at = f"{datetime.fromtimestamp(done['at'], UTC):%H:%M:%S} UTC"
    if done["error"]:
        return f" The configuration could not be sent again at {at}: {done['error']}"
    times = done["times"]
    often = "" if times == 1 else f", {times} times so far"
    return f" The configuration was sent to them again at {at}{often}."


def send_again(environment: str, done: Mapping[str, Any] | None, now: float) -> None:
    """Refresh the pods, and keep what was done. Not in the transaction of the evaluation: Redis may hang."""
    times, error = (int(done["times"]) if done is not None else 0), ""
    try:
        head = refresh(environment)
    except (redis.RedisError, PublishError) as problem:
        error = f"{problem}"[:200]
        log.warning("policy.refresh_failed", environment=environment, error=error)
    else:
        times += 1
        log.warning("policy.refreshed", environment=environment, revision=head.revision, times=times)
    REFRESHES.labels("failed" if error else "ok").inc()
    row = Evaluation.objects.get(environment=environment)
    row.measured = {**row.measured, FIELD: {"at": now, "times": times, "error": error}}
    row.save(update_fields=["measured"])
