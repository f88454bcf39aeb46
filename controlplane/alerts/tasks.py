from django.conf import settings

from controlplane.alerts import evaluator
from controlplane.alerts.delivery.lanes import LANES
from controlplane.alerts.delivery.send import something_waits
from controlplane.alerts.incidents.markers import forget_markers
from controlplane.alerts.incidents.reading import forget_incidents
from controlplane.alerts.watchdog import ping_if_evaluated
from controlplane.celery import app


@app.task(name="alerts.evaluate")
def evaluate() -> None:
    evaluator.evaluate_all()


@app.task(name="alerts.deliver")
def deliver() -> None:
    # In other threads: receivers that hang would keep every thread of a worker from evaluating alerts.
    if something_waits():
        LANES.begin()


@app.task(name="alerts.forget")
def forget() -> None:
    evaluator.forget()
    forget_incidents()
    forget_markers()


@app.task(name="alerts.watchdog")
def watchdog() -> None:
    if settings.WATCHDOG_URL:
        ping_if_evaluated()
