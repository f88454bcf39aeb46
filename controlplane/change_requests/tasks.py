from controlplane.celery import app
from controlplane.change_requests import decide


@app.task(name="approvals.expire_requests")
def expire_requests() -> None:
    """Expire old requests."""
    decide.expire_requests()
