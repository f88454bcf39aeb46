import redis
import structlog

from controlplane.backlogs.collect import measure_backlogs
from controlplane.celery import app
from controlplane.policies.models import Environment

log = structlog.get_logger(__name__)


@app.task(name="backlogs.measure")
def measure() -> None:
    for environment in Environment.objects.order_by("slug").values_list("slug", flat=True):
        try:
            measure_backlogs(environment)
        except redis.RedisError as error:
            # Pages display the last figures with their age.
            log.warning("backlogs.not_measured", environment=environment, error=str(error))
