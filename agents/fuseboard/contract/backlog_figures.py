"""The figures of a backlog, as ``lua/backlog_look.lua`` returns them to pods and the control plane."""

from msgspec import Struct

#: Bounds that no option can exceed: a backlog shares its Redis with the limits, which must never fill it.
MAX_JOBS, MAX_BYTES = 10_000, 64 * 2**20


class BacklogFigures(Struct, array_like=True, frozen=True):
    """Integers. Totals count since the first job, or since Redis lost them."""

    #: Store time in us.
    now: int
    ready: int
    delayed: int
    leased: int
    dead: int
    #: Payloads in bytes, those of dead jobs included.
    bytes: int
    results: int
    #: Microseconds that the next job has waited; 0 if none is ready.
    waiting_us: int
    #: Store time in us at which a worker last asked; 0 for never.
    asked_us: int
    #: Percent of the ``maxmemory`` of Redis, when it was last read.
    memory_percent: int
    submitted: int
    taken: int
    done: int
    requeued: int
    died: int
    cancelled: int
    expired: int
    refused: int
    #: The bound of the last submit; 0 if an older agent submitted.
    max_jobs: int
    max_bytes: int
    #: Leased jobs whose lease has not ended: a worker has them.
    held: int
    #: Delayed jobs that are due. They stay delayed until a worker asks.
    due: int = 0
    #: Microseconds that the oldest job has waited that a worker could take: a ready one, a due one of the
    #: delayed, or one whose lease has ended. 0 if there is none.
    late_us: int = 0

    @property
    def jobs(self) -> int:
        """The number of jobs that count against the bound of jobs."""
        return self.ready + self.delayed + self.leased

    @property
    def overdue(self) -> int:
        """Leased jobs whose worker died: their lease has ended, and no worker has asked since."""
        return self.leased - self.held

    @property
    def takeable(self) -> int:
        """The number of jobs that a worker could take if it asked, apart from breaker and limits."""
        return self.ready + self.due + self.overdue

    @property
    def waiting_s(self) -> float:
        """Seconds that the next job has waited; 0 if none is ready."""
        return self.waiting_us / 1e6

    @property
    def asked_s(self) -> float | None:
        """Seconds since a worker last asked; ``None`` if none ever did."""
        return max(0, self.now - self.asked_us) / 1e6 if self.asked_us else None
