"""Tasks of a service that uses Celery."""

from typing import Any

from celery import Celery

from tests.engines.work import BROKER, RESULTS, record

app = Celery("shop", broker=BROKER, backend=RESULTS, task_cls="fuseboard.integrations.celery:GuardedTask")
app.conf.broker_transport_options = {"priority_steps": list(range(10)), "queue_order_strategy": "priority"}
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


@app.task(dependency="failing")
def failing() -> None:
    raise ConnectionError


@app.task(dependency="never", max_retries=5)
def never() -> None:
    record("never")
