"""An observer shows decisions and attempts while they happen. Without an observer, nothing is done for it."""

from typing import Protocol

from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit


class ModelSpan(Protocol):
    """One call to a model, whatever its attempts, while it is made and its answer is read."""

    def used(
        self,
        *,
        fresh: int,
        cached: int,
        written: int,
        output: int,
        micro_usd: int | None,
        estimated: bool,
        wasted: bool,
    ) -> None:
        """The tokens of an attempt, and its cost if the model has a price."""

    def end(self, error: str = "") -> None:
        """The call is over. ``error`` is the kind of its failure."""


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

    def model_called(
        self, *, operation: str, provider: str, asked: str, model: str, dependency: str, host: str
    ) -> ModelSpan | None:
        """A model is about to be called: ``asked`` is its name in the request. ``None`` if none records."""
