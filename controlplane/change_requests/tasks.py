from controlplane.celery import app
from controlplane.change_requests import decide


@app.task(name="approvals.expire_requests")
def expire_requests() -> None:
    """End the requests nobody has cared about."""
    decide.expire_requests()
