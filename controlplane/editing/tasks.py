from controlplane.celery import app
from controlplane.editing.plans import drafting


# A large file takes longer than anything else here is allowed to.
@app.task(name="policies.work_drafts", soft_time_limit=600, time_limit=630)
def work_drafts() -> None:
    """Read and apply the files people have uploaded."""
    drafting.work_drafts()
