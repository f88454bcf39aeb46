"""Ordered alternatives that answer instead of a dependency that fails, counted and logged.

::

    steps = [Alternative("mini", call=ask_mini), Cached(stored, max_age_s=600), Default(SORRY)]
    chain = agent.fallback("llm", steps)
    answer = await chain.run(ask)
    answer.value, answer.is_fallback, answer.source
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from fuseboard.agent_api.arguments import check_name
from fuseboard.calling.cheaper_source import cheaper_source
from fuseboard.calling.classification import classify, examine, needs_a_person, refusal_of
from fuseboard.calling.retries import CallTotals, Retries
from fuseboard.contract.words import Reason
from fuseboard.errors import Misconfigured

logger = logging.getLogger("fuseboard.fallbacks")

T = TypeVar("T")

#: Alternatives of one call, at most.
MAX_DEPTH = 5
#: Refusals of the caller itself: another vendor is no answer to them.
_CALLERS = frozenset({Reason.SUSPENDED, Reason.QUOTA})


class Alternative(Struct, frozen=True):
    """Another source, such as another vendor: ``call`` asks it. Guard it as a separate dependency."""

    name: str
    #: Async or not.
    call: Callable[[], Any]
    #: It takes a request that was too large for the source before.
    takes_more: bool = False


class Cached(Struct, frozen=True):
    """The last good answer, if it is not too old. ``get`` returns it with its age in seconds, or ``None``."""

    get: Callable[[], Any]
    max_age_s: float
    name: str = "cache"


class Default(Struct, frozen=True):
    """An answer that is always there."""

    value: Any
    name: str = "default"


Step: TypeAlias = Alternative | Cached | Default


class Answer(Struct, Generic[T], frozen=True, kw_only=True):
    """An answer, the step that gave it, and why the dependency did not."""

    value: T
    #: The dependency, or the name of the alternative.
    source: str
    is_fallback: bool = False
    is_cached: bool = False
    #: Less than was asked for: old, or a default.
    is_degraded: bool = False
    #: Why the dependency did not answer; empty when it did.
    reason: str = ""
    #: How old a cached answer is.
    age_s: float = 0.0


class _Chain:
    """The part that both kinds of chains share. It sends nothing."""

    def __init__(self, dependency: str, steps: Sequence[Step], retries: Callable[[], Retries]) -> None:
        check_name("a dependency", dependency)
        if not steps or len(steps) > MAX_DEPTH:
            raise Misconfigured(f"a fallback has 1 to {MAX_DEPTH} alternatives, not {len(steps)}")
        names = [dependency, *(step.name for step in steps)]
        for name in names:
            if names.count(name) > 1:
                raise Misconfigured(f"a fallback must not lead to itself: {name!r} is in it twice")
        for step in steps:
            if isinstance(step, Cached) and not step.max_age_s > 0:
                raise Misconfigured(f"max_age_s of {step.name!r} must be more than 0, not {step.max_age_s!r}")
        self._dependency, self._steps, self._retries = dependency, tuple(steps), retries
        self._has_alternative = any(isinstance(step, Alternative) for step in steps)

    def _to_ask(self, first: Exception) -> list[Step]:
        """The alternatives that may have an answer. Raises ``first`` if none has."""
        if not _may_fall_back(first, takes_more=any(_takes_more(step) for step in self._steps)):
            raise first
        too_large = classify(first).degradable
        return [step for step in self._steps if not too_large or _takes_more(step)]

    def _used(self, step: Step, found: Any, first: Exception) -> Answer[Any] | None:
        """The answer, counted and logged; ``None`` if it is too old."""
        reason, age_s = _reason(first), 0.0
        if isinstance(step, Cached):
            if found is None or found[1] > step.max_age_s:
                first.add_note(f"fuseboard: fallback {step.name!r} has no answer that is young enough")
                return None
            found, age_s = found
        with self._retries().lock:
            totals = self._totals()
            totals.fallbacks += 1
            totals.cached += isinstance(step, Cached)
        logger.warning("fallback.used dependency=%s source=%s reason=%s", self._dependency, step.name, reason)
        return Answer(
            value=found,
            source=step.name,
            is_fallback=True,
            is_cached=isinstance(step, Cached),
            is_degraded=not isinstance(step, Alternative),
            reason=reason,
            age_s=age_s,
        )

    def _failed(self, first: Exception) -> None:
        with self._retries().lock:
            self._totals().fallback_failures += 1
        logger.warning("fallback.failed dependency=%s reason=%s", self._dependency, _reason(first))

    def _totals(self) -> CallTotals:
        return self._retries().part_unlocked(self._dependency).totals


class Fallback(_Chain):
    """The chain of one dependency. Made by ``agent.fallback``; used for any number of calls."""

    async def run(self, call: Callable[[], Awaitable[T]]) -> Answer[Any]:
        """Ask the dependency with ``call``, and the alternatives in order if it fails.

        ``call`` guards itself, for example with ``agent.retrying``. Raises its error if every
        alternative fails, with theirs as notes; and at once if it is cancelled, if it is refused because
        of its tenant, or if its request is wrong.
        """
        try:
            with cheaper_source(exists=self._has_alternative):
                return Answer(value=await call(), source=self._dependency)
        except Exception as error:
            first = error
        for step in self._to_ask(first):
            try:
                found = _ask(step)
                if isawaitable(found) and not isinstance(step, Default):
                    found = await found
                answer = self._used(step, found, first)
            except Exception as error:
                _note(first, step, error)
                continue
            if answer is not None:
                return answer
        self._failed(first)
        raise first


class BlockingFallback(_Chain):
    """A chain for threads. Made by ``fallback`` of a blocking agent."""

    def __init__(self, dependency: str, steps: Sequence[Step], retries: Callable[[], Retries]) -> None:
        super().__init__(dependency, steps, retries)
        for step in steps:
            if isinstance(step, Alternative | Cached) and iscoroutinefunction(_call_of(step)):
                raise Misconfigured(f"{step.name!r} is async: use 'afallback' of the agent")

    def run(self, call: Callable[[], T]) -> Answer[Any]:
        """See ``Fallback.run``. Blocks."""
        if iscoroutinefunction(call):
            raise Misconfigured("the call is async: use 'afallback' of the agent")
        try:
            with cheaper_source(exists=self._has_alternative):
                return Answer(value=call(), source=self._dependency)
        except Exception as error:
            first = error
        for step in self._to_ask(first):
            try:
                answer = self._used(step, _ask(step), first)
            except Exception as error:
                _note(first, step, error)
                continue
            if answer is not None:
                return answer
        self._failed(first)
        raise first


def _call_of(step: Alternative | Cached) -> Callable[[], Any]:
    return step.get if isinstance(step, Cached) else step.call


def _ask(step: Step) -> Any:
    return step.value if isinstance(step, Default) else _call_of(step)()


def _note(first: Exception, step: Step, error: Exception) -> None:
    first.add_note(f"fuseboard: fallback {step.name!r} failed: {type(error).__name__}: {error}")


def _takes_more(step: Step) -> bool:
    return isinstance(step, Default) or (isinstance(step, Alternative) and step.takes_more)


def _may_fall_back(error: Exception, *, takes_more: bool) -> bool:
    """Whether another source may have an answer: not if the request itself is wrong."""
    if (refusal := refusal_of(error)) is not None:
        return refusal.decision.reason not in _CALLERS
    verdict = classify(error)
    if verdict.degradable:
        return takes_more
    return verdict.retryable or verdict.trips or verdict.ours or needs_a_person(verdict)


def _reason(error: Exception) -> str:
    if (refusal := refusal_of(error)) is not None and refusal.decision.reason is not None:
        return str(refusal.decision.reason)
    found = examine(error)
    return found.verdict.code or type(found.error).__name__
