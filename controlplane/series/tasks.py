from controlplane.celery import app
from controlplane.series import retention, sealing


@app.task(name="series.seal")
def seal() -> None:
    sealing.seal()


@app.task(name="series.forget")
def forget() -> None:
    retention.forget()
