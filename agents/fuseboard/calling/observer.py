"""An observer shows decisions and attempts while they happen. Without an observer, nothing is done for it."""

from typing import Protocol

from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit


class Observer(Protocol):
    """Each method is called where the caller is: in its context, and in any thread.

    Its errors are caught there.
    """

    def decided(self, decision: Decision, seconds: float) -> None:
        """A request was decided, within this time. Calls that are refused are decided here too."""

    def permitted(self, permit: Permit, begun: float, seconds: float) -> None:
        """A call got its permit. ``begun`` is on the monotonic clock."""

    def refused_unasked(self, decision: Decision) -> None:
        """Refused before any limit was checked: the pod sheds, or the deadline of the caller has passed."""

    def reported(self, permit: Permit, outcome: Outcome, elapsed_s: float | None) -> None:
        """A call has ended."""

    def attempt_began(self, number: int) -> None:
        """The attempt ``number`` of a call is about to be admitted."""

    def attempt_ended(self) -> None:
        """It ended, or is not made."""

    def attempt_failed(self, dependency: str, number: int, error: str, wait_s: float, given_up: str) -> None:
        """Another attempt follows after ``wait_s``, or none because of ``given_up``."""
