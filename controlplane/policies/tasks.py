from controlplane.celery import app
from controlplane.policies.plans import drafting


@app.task(name="policies.work_drafts")
def work_drafts() -> None:
    """Read and apply the files people have uploaded."""
    drafting.work_drafts()
