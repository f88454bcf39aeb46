"""What the agent may raise into an application.

::

    FuseboardError
    +-- Refused            a call must not be made now; carries the decision
    +-- Misconfigured      wrong use or settings; the message says what to do
"""

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


class Misconfigured(FuseboardError):
    """A setting or an argument is wrong. Raised at once, never under load."""
