"""Rules that all job engines share: for how long a refused task waits, and when it fails."""

import random
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from fuseboard.agent_api.options import CallOptions
from fuseboard.calling.exception_paths import paths
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit

#: A refusal that ends within this time is waited for in place.
SHORT_WAIT_S = 0.2
#: A task that was refused this many times in a row, or for this long, fails as ``Refused``.
MAX_REFUSALS = 20
MAX_REFUSED_S = 3600.0
#: The longest and the shortest pause before a refused task asks again, and the pause if nothing is known.
CAP_S, SHORTEST_S, UNKNOWN_S = 300.0, 0.05, 1.0
#: Tasks that are refused together are spread over this part of their pause.
SPREAD = 0.2


class Refusals(NamedTuple):
    """How often a task was refused in a row, and since when, in Unix time."""

    times: int = 0
    since_s: float = 0.0

    def and_one(self) -> "Refusals":
        return Refusals(self.times + 1, self.since_s or time.time())

    @property
    def too_many(self) -> bool:
        return self.times > MAX_REFUSALS or time.time() - self.since_s > MAX_REFUSED_S


def pause_s(decision: Decision, cap_s: float = CAP_S) -> float:
    """After what time the refused task asks again."""
    known_s = decision.retry_after_ms / 1000 or UNKNOWN_S
    return min(max(known_s, SHORTEST_S) * (1 + random.uniform(0, SPREAD)), cap_s)


#: The options of a task. Each is a value, or a function of the task's arguments.
OPTIONS = ("tenant", "cost", "tier")


def chosen(option: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """An option of one task: its value, or what it returns for the arguments of the task."""
    return option(*arguments, **named) if callable(option) else option


def call_options(
    options: Mapping[str, Any], arguments: Sequence[Any], named: Mapping[str, Any]
) -> CallOptions:
    """The options of the call that one task makes."""
    given = {name: chosen(options[name], arguments, named) for name in OPTIONS if name in options}
    return cast(CallOptions, {**given, "wait_s": SHORT_WAIT_S})


def report_end(
    report: Callable[..., None],
    permit: Permit,
    error: BaseException | None,
    elapsed_s: float,
    *,
    again: type[Exception],
    neutral: tuple[type[Exception], ...] = (),
) -> None:
    """Report how the task ended, to ``Agent.report`` of either kind of agent.

    A task raises ``again`` to run once more: that says what caused it. ``neutral`` say nothing.
    """
    if error is None:
        report(permit, Outcome.OK, elapsed_s)
        return
    members = [path[0] for path in paths(error)]
    if any(isinstance(member, again) for member in members):
        causes = [_cause(member) if isinstance(member, again) else member for member in members]
        error = BaseExceptionGroup("a task", [cause or CancelledError() for cause in causes])
    outcome, cooldown_ms = judge_permitted(permit, error, neutral)
    report(permit, outcome, cooldown_ms=cooldown_ms)


def _cause(again: BaseException) -> BaseException | None:
    # Celery's ``Task.retry`` gets it as an argument.
    given = getattr(again, "exc", None)
    return given if isinstance(given, BaseException) else again.__cause__ or again.__context__
