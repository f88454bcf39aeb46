"""Jobs, results and figures that a backlog returns to callers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from msgspec import Struct

from fuseboard.agent_api.arguments import check_seconds
from fuseboard.backlog.options import LONGEST_DELAY_S
from fuseboard.contract.portable import Portable
from fuseboard.decision import Permit
from fuseboard.errors import FuseboardError


class TryAgain(Portable, Exception):
    """A handler raises it to run the job again after ``after_s`` seconds, if the job has tries left.

    ``raise TryAgain(...) from error`` reports ``error`` to the breaker. Without ``from``, nothing is
    reported.
    """

    def __init__(self, after_s: float) -> None:
        check_seconds("after_s", after_s, 0.0, LONGEST_DELAY_S)
        super().__init__(after_s)
        self.after_s = after_s

    def __str__(self) -> str:
        return f"try again in {self.after_s:,.10g} s"


class Undeliverable(Exception):
    """A handler raises it to make the job a dead letter at once: trying again would not help."""


class JobLost(FuseboardError):
    """The job was cancelled, or its lease has ended and another worker may have it. Stop working on it."""


class Submitted(Struct, frozen=True):
    """The backlog knows the job."""

    id: str
    #: ``False`` if a job with this id was submitted before: then nothing was changed or spent.
    new: bool
    #: Jobs in the backlog, this one included.
    jobs: int


class Result(Struct, frozen=True):
    """The state of a job, and its value once it is finished."""

    #: ``done``, ``dead``, ``cancelled`` or ``expired``; ``ready``, ``delayed`` or ``leased`` while it is
    #: queued; ``unknown`` if it was never submitted, or if its result has expired.
    status: str
    #: The value that the handler returned.
    value: bytes = b""
    #: Why it is dead, or why its value cannot be read.
    cause: str = ""

    @property
    def finished(self) -> bool:
        return self.status in ("done", "dead", "cancelled", "expired")


class Depth(Struct, frozen=True, kw_only=True):
    """The content of a backlog now, over the whole fleet."""

    ready: int
    delayed: int
    leased: int
    dead: int
    #: Payloads in bytes.
    bytes: int
    results: int
    #: Seconds that the next job has waited.
    waiting_s: float
    #: Seconds since a worker last asked; ``None`` if none ever did.
    asked_s: float | None
    #: Memory in use, in percent of ``maxmemory`` of Redis, when it was last read.
    memory_percent: int
    # Totals since the first job.
    submitted: int
    taken: int
    done: int
    requeued: int
    died: int
    cancelled: int
    expired: int
    #: Submits that were refused because the backlog was full.
    refused: int

    @property
    def jobs(self) -> int:
        """The number of jobs that count against the bound of the backlog."""
        return self.ready + self.delayed + self.leased


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Job:
    """One job that a worker may send now. Its call is admitted already: do not admit it again."""

    id: str
    dependency: str
    payload: bytes
    #: 1 for the first time that the job is handed out.
    attempt: int
    #: Rises with every job that is handed out. Remember the highest fence for each job id, and refuse
    #: writes with a lower one: another worker got the job since.
    fence: int
    priority: int
    #: How long it was in the backlog.
    waited_s: float
    #: When the lease ends unless it is renewed; monotonic seconds.
    lease_until: float
    #: The admission of its call: the decision, the timeout, and ``settle`` for its real cost.
    permit: Permit
    started: float = field(init=False, default_factory=monotonic)
    #: A caller has cancelled it.
    cancelled: bool = field(init=False, default=False)
    #: Another worker has it, or may have it.
    lost: bool = field(init=False, default=False)
    _on_lost: Callable[[], None] | None = field(init=False, default=None)

    @property
    def text(self) -> str:
        """The payload as text."""
        return self.payload.decode()

    @property
    def ours(self) -> bool:
        """Whether no other worker can have it."""
        return not self.lost and monotonic() < self.lease_until

    def check(self) -> None:
        """Raise ``JobLost`` if the job was cancelled or its lease has ended. Call it before each effect."""
        if self.cancelled:
            raise JobLost(f"job {self.id!r} was cancelled")
        if not self.ours:
            raise JobLost(f"the lease of job {self.id!r} has ended: another worker may have it")

    def renew(self, until: float) -> None:
        """Set the new end of the lease, in monotonic seconds."""
        self.lease_until = until

    def lose(self, *, cancelled: bool = False) -> None:
        """The job was cancelled, or belongs to another worker."""
        if self.lost or self.cancelled:
            return
        if cancelled:
            self.cancelled = True
        else:
            self.lost = True
        if self._on_lost is not None:
            self._on_lost()

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` when the job is lost or cancelled, in the thread that notices."""
        self._on_lost = callback
        if callback is not None and (self.lost or self.cancelled):
            callback()
