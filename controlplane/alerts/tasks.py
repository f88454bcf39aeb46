from django.conf import settings

from controlplane.alerts import evaluator
from controlplane.alerts.delivery.claim import something_waits
from controlplane.alerts.delivery.threads import DELIVERY_THREADS
from controlplane.alerts.delivery.watchdog import ping_if_evaluated
from controlplane.alerts.incidents.markers import forget_markers
from controlplane.alerts.incidents.reading import forget_incidents
from controlplane.celery import app


@app.task(name="alerts.evaluate")
def evaluate() -> None:
    evaluator.evaluate_all()


@app.task(name="alerts.deliver")
def deliver() -> None:
    # In other threads: receivers that hang would keep every thread of a worker from evaluating alerts.
    if something_waits():
        DELIVERY_THREADS.begin()


@app.task(name="alerts.forget")
def forget() -> None:
    evaluator.forget()
    forget_incidents()
    forget_markers()


@app.task(name="alerts.watchdog")
def watchdog() -> None:
    if settings.WATCHDOG_URL:
        ping_if_evaluated()
