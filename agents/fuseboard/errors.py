"""The errors that the agent may raise into an application.

::

    FuseboardError
    +-- Refused            a call must not be made now; carries the decision
    +-- LockTaken          another process has the lock
    +-- LockLost           the lock ended before its block did
    +-- AlreadyDone        the event was worked on before; carries the result
    +-- InProgress         another process works on the event
    +-- ClaimLost          the claim of the event ended before its block did
    +-- StoreUnavailable   Redis cannot be asked, and one pod cannot decide this alone
    +-- Misconfigured      wrong use or settings; the message says what to do
"""

from typing import Any

from msgspec.structs import replace

from fuseboard.contract.portable import Portable
from fuseboard.decision import Decision


class FuseboardError(Portable, Exception):
    """Base class of everything the agent raises on purpose. Any other process can load it."""


#: Where the clients of HTTP keep the request of an exception.
REQUESTS = ("request", "_request")


class Refused(FuseboardError):
    """A guarded call was refused. Nothing was sent and nothing was spent."""

    #: The call had a slot of its bulkhead when a shared limit refused it. For the agent alone.
    had_slot = False

    def __init__(self, decision: Decision | str) -> None:
        # A result store that writes JSON has only the text of the exception, and calls the class with it.
        if not isinstance(decision, Decision):
            super().__init__(decision)
            decision = Decision(allowed=False, message=decision)
        else:
            super().__init__(decision.explain())
        self.decision = decision

    def __reduce__(self) -> tuple[Any, ...]:
        if type(self) is Refused:
            # A process with release 0.1 can load this form.
            return Refused, (_unsigned(self.decision),), self._portable(self.__dict__)
        return super().__reduce__()

    def _portable(self, state: Any) -> Any:
        # Job engines store the exception of a job. The key that signs refusals must not be in it, and neither
        # must the request of a transport, which has the key of the vendor in a header.
        if isinstance(state, tuple):
            return tuple(_unsigned(one) for one in state)
        return {name: None if name in REQUESTS else _unsigned(one) for name, one in state.items()}


def _unsigned(value: Any) -> Any:
    return replace(value, signer=None, charges=()) if isinstance(value, Decision) else value


class Misconfigured(FuseboardError):
    """A setting or an argument is wrong. Raised at once, never under load."""


class LockTaken(FuseboardError):
    """Another process has the lock. Nothing was done."""

    def __init__(self, name: str, retry_after_s: float) -> None:
        super().__init__(name, retry_after_s)
        self.name = name
        #: When the lock ends if nothing renews it.
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return (
            f"the lock {self.name!r} is taken, for at most {self.retry_after_s:.1f} s if its process is dead:"
            " try later"
        )


class LockLost(FuseboardError):
    """The lock is no longer this process's. Another one may have it: stop, and write nothing more."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    def __str__(self) -> str:
        return f"the lock {self.name!r} is lost: {self.why}; check what the block has written"


class AlreadyDone(FuseboardError):
    """An earlier delivery of the event was worked on. Nothing is left to do."""

    def __init__(self, event: str, event_id: str, result: Any = None, kept: bool = False) -> None:
        super().__init__(event, event_id, result, kept)
        self.event, self.event_id = event, event_id
        #: The value that the first block kept; ``None`` if it kept nothing, or Redis had no room for it.
        self.result = result
        #: Whether a result was kept: it may be ``None``.
        self.kept = kept

    def __str__(self) -> str:
        return f"the event {self.event!r} {self.event_id!r} is done: skip it, or use 'result'"


class InProgress(FuseboardError):
    """Another process, or another task, works on the event. Nothing was done."""

    def __init__(self, event: str, event_id: str, retry_after_s: float) -> None:
        super().__init__(event, event_id, retry_after_s)
        self.event, self.event_id = event, event_id
        #: When the claim ends if its process is dead.
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return (
            f"another process works on the event {self.event!r} {self.event_id!r}, for at"
            f" most {self.retry_after_s:.1f} s if it is dead: deliver the event again later"
        )


class ClaimLost(FuseboardError):
    """The claim of the event is no longer this process's. Another one may work on it: write nothing more."""

    def __init__(self, event: str, event_id: str) -> None:
        super().__init__(event, event_id)
        self.event, self.event_id = event, event_id

    def __str__(self) -> str:
        return (
            f"the claim of the event {self.event!r} {self.event_id!r} is lost: another process may work on"
            " it; check what the block has written"
        )


class StoreUnavailable(FuseboardError):
    """Redis cannot be asked. It is unknown whether the question arrived."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"Redis cannot be asked ({self.why}): try again later, or do without"
