from controlplane.alerts import evaluator
from controlplane.celery import app


@app.task(name="alerts.evaluate")
def evaluate() -> None:
    evaluator.evaluate_all()


@app.task(name="alerts.forget")
def forget() -> None:
    evaluator.forget()
