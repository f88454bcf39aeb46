from controlplane.celery import app
from controlplane.weekly import keep
from controlplane.weekly.send import send_due


@app.task(name="weekly.make")
def make() -> None:
    keep.forget()
    keep.make_due()


@app.task(name="weekly.send")
def send() -> None:
    send_due()
