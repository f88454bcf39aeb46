from controlplane.alerts import evaluator
from controlplane.alerts.delivery.send import send_waiting
from controlplane.celery import app


@app.task(name="alerts.evaluate")
def evaluate() -> None:
    evaluator.evaluate_all()


@app.task(name="alerts.deliver")
def deliver() -> None:
    send_waiting()


@app.task(name="alerts.forget")
def forget() -> None:
    evaluator.forget()
