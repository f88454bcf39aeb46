from controlplane.celery import app
from controlplane.editing.plans import drafting


# A large file takes longer than the limit of other tasks.
@app.task(name="policies.work_drafts", soft_time_limit=600, time_limit=630)
def work_drafts() -> None:
    """Read and apply uploaded files."""
    drafting.work_drafts()
