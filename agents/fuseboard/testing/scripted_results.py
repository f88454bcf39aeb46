"""The results that a test scripted for the next calls of a fake agent."""

from typing import Any

from msgspec import Struct

from fuseboard.contract.words import Outcome, Reason


class ScriptedRefusal(Struct):
    """A refusal that the test asked for."""

    reason: Reason
    retry_after_s: float
    #: How often it still refuses; ``None`` for always.
    times: int | None


class Ending(Struct):
    outcome: Outcome
    after_s: float
    late: bool = False


def spend(refusals: dict[str, Any], name: str) -> ScriptedRefusal | None:
    """The refusal that applies now."""
    refusal: ScriptedRefusal | None = refusals.get(name)
    if refusal is None or refusal.times is None:
        return refusal
    refusal.times -= 1
    if refusal.times <= 0:
        del refusals[name]
    return refusal
