from controlplane.approvals import change_requests
from controlplane.celery import app


@app.task(name="approvals.expire_requests")
def expire_requests() -> None:
    """End the requests nobody has cared about."""
    change_requests.expire_requests()
