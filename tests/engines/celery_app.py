"""Tasks of a service that uses Celery."""

import os
from typing import Any

from celery import Celery

from fuseboard.integrations.celery import HEADER, GuardedTask
from tests.engines.work import BROKER, KILLED, RESULTS, kill_once, record


class KilledTask(GuardedTask):
    """A refused task whose worker ends after the new message was published."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        published = super().apply_async(*args, **options)
        if HEADER in (options.get("headers") or {}):
            kill_once()
        return published


app = Celery("shop", broker=BROKER, backend=RESULTS, task_cls=KilledTask if KILLED else GuardedTask)
app.conf.broker_transport_options = {"priority_steps": list(range(10)), "queue_order_strategy": "priority"}
if KILLED:
    # Redis delivers again what a worker did not acknowledge: after 3 s, where the usual time is an hour.
    app.conf.broker_transport_options |= {
        "visibility_timeout": 3,
        "unacked_mutex_expire": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    app.conf.task_reject_on_worker_lost = os.environ.get("TEST_REJECT") == "1"
app.conf.worker_hijack_root_logger = False
app.conf.broker_connection_retry_on_startup = True


@app.task(bind=True, dependency="limited", tenant=lambda order: "acme", cost=lambda order: 1, max_retries=1)
def limited(self: Any, order: int) -> int:
    record("limited", order, self.request.retries, self.request.delivery_info["priority"])
    return order


@app.task
def total(orders: list[int]) -> int:
    return sum(orders)


@app.task(
    bind=True,
    dependency="steady",
    autoretry_for=(ConnectionError,),
    retry_kwargs={"max_retries": 1, "countdown": 0},
)
def flaky(self: Any) -> str:
    if record("flaky", self.request.retries) == 1:
        raise ConnectionError
    return "recovered"


@app.task(bind=True, dependency="gate", acks_late=True, max_retries=1)
def gated(self: Any, order: int) -> None:
    record("gated", order, self.request.retries)


@app.task(dependency="failing")
def failing() -> None:
    raise ConnectionError


@app.task(dependency="never", max_retries=5)
def never() -> None:
    record("never")
