from controlplane.celery import app
from controlplane.schedules import due


@app.task(name="schedules.run_due")
def run_due() -> None:
    """Announce, apply and end what is due."""
    due.run_due()
