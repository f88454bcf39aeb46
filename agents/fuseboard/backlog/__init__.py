"""A queue of work for a dependency, shared by the fleet: work that cannot be sent now waits here.

::

    backlog = agent.backlog("payments-api")
    await backlog.submit(b"order 17", job_id="order-17", tenant="acme", priority=8)

    async def charge(job):
        return await vendor.post("/charges", content=job.payload)

    await backlog.work(charge, workers=8)

A job is handed out only when override, breaker and limits of its dependency admit its call, in the same
script. So no worker ever has a job that cannot be sent. Jobs run at least once. ``docs/backlog.md`` says
what is promised, and what a job queue does better.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseboard.backlog.jobs import Depth, Job, JobLost, Result, Submitted, TryAgain, Undeliverable

__all__ = ["Depth", "Job", "JobLost", "Result", "Submitted", "TryAgain", "Undeliverable"]


def __getattr__(name: str) -> object:
    # An agent loads this package, and most agents have no backlog.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fuseboard.backlog import jobs

    return getattr(jobs, name)
