from controlplane.approvals import requests
from controlplane.celery import app


@app.task(name="approvals.expire_requests")
def expire_requests() -> None:
    """End the requests nobody has cared about."""
    requests.expire_requests()
