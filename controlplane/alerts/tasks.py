from contextlib import suppress

from django.conf import settings

from controlplane.alerts import evaluator
from controlplane.alerts.delivery.send import send_waiting
from controlplane.alerts.incidents.markers import forget_markers
from controlplane.alerts.incidents.reading import forget_incidents
from controlplane.alerts.watchdog import ping_if_evaluated
from controlplane.celery import app
from controlplane.one_at_a_time import StillRunning, alone


@app.task(name="alerts.evaluate")
def evaluate() -> None:
    evaluator.evaluate_all()


# An attempt may begin near the end of its 10 s, and takes at most 20 s.
@app.task(name="alerts.deliver", soft_time_limit=33, time_limit=34)
def deliver() -> None:
    # A receiver that hangs keeps one thread of a worker busy; the others work for edits and alerts.
    with suppress(StillRunning), alone("alerts.deliver"):
        send_waiting()


@app.task(name="alerts.forget")
def forget() -> None:
    evaluator.forget()
    forget_incidents()
    forget_markers()


@app.task(name="alerts.watchdog")
def watchdog() -> None:
    if settings.WATCHDOG_URL:
        ping_if_evaluated()
