from controlplane.celery import app
from controlplane.schedules import due


@app.task(name="schedules.run_due")
def run_due() -> None:
    """Apply, end and announce what the clock says."""
    due.run_due()
