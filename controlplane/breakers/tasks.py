import redis
import structlog

from controlplane.breakers import collect, overrides
from controlplane.celery import app
from controlplane.policies.models import Environment

log = structlog.get_logger(__name__)


@app.task(name="breakers.expire_overrides")
def expire_overrides() -> None:
    """End expired overrides. Pods stopped applying them already, by their own clocks."""
    for dependency in overrides.expire_overrides():
        log.info("override.expired", dependency=dependency)


@app.task(name="breakers.collect_transitions")
def collect_transitions() -> None:
    for environment in Environment.objects.order_by("slug").values_list("slug", flat=True):
        try:
            collect.collect_transitions(environment)
        except redis.RedisError as error:
            # They wait in Redis: a stream keeps about a thousand.
            log.warning("transitions.not_collected", environment=environment, error=str(error))
