"""What the agent may raise into an application.

::

    FuseboardError
    +-- Refused            a call must not be made now; carries the decision
    +-- LockTaken          another process has the lock
    +-- LockLost           the lock ended before its block did
    +-- StoreUnavailable   Redis cannot be asked, and one pod cannot decide this alone
    +-- Misconfigured      wrong use or settings; the message says what to do
"""

from msgspec.structs import replace

from fuseboard.decision import Decision


class FuseboardError(Exception):
    """Base class of everything the agent raises on purpose."""


class Refused(FuseboardError):
    """A guarded call was refused. Nothing was sent and nothing was spent."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.explain())
        self.decision = decision
        #: The call had a slot of its bulkhead when a shared limit refused it. For the agent alone.
        self.had_slot = False

    def __reduce__(self) -> tuple[type, tuple[Decision]]:
        # Job engines store the exception of a job: the key that signs refusals must not be in it.
        return type(self), (replace(self.decision, signer=None, charges=()),)


class Misconfigured(FuseboardError):
    """A setting or an argument is wrong. Raised at once, never under load."""


class LockTaken(FuseboardError):
    """Another process has the lock. Nothing was done."""

    def __init__(self, name: str, retry_after_s: float) -> None:
        super().__init__(
            f"the lock {name!r} is taken, for at most {retry_after_s:.1f} s if its process is dead: try later"
        )
        self.name = name
        #: When the lock ends if nothing renews it.
        self.retry_after_s = retry_after_s


class LockLost(FuseboardError):
    """The lock is no longer this process's. Another one may have it: stop, and write nothing more."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the lock {name!r} is lost: {why}; check what the block has written")
        self.name = name


class StoreUnavailable(FuseboardError):
    """Redis cannot be asked. It is unknown whether the question arrived."""

    def __init__(self, why: str) -> None:
        super().__init__(f"Redis cannot be asked ({why}): try again later, or do without")
        self.why = why
