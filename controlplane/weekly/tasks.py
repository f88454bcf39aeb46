from controlplane.celery import app
from controlplane.weekly import keep


@app.task(name="weekly.make")
def make() -> None:
    keep.forget()
    keep.make_due()
