"""Ordered alternatives that answer instead of a dependency that fails, counted and logged.

::

    steps = [Alternative("mini", call=ask_mini), Cached(stored, max_age_s=600), Default(SORRY)]
    chain = agent.fallback("llm", steps)
    answer = await chain.run(ask)
    answer.value, answer.is_fallback, answer.source, answer.cost
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fuseboard.agent_api.arguments import check_name
from fuseboard.agent_api.quality import QualityRule, Tries
from fuseboard.calling.cheaper_source import cheaper_source
from fuseboard.calling.classification import classify, examine, needs_a_person, refusal_of
from fuseboard.calling.current_chain import noted_in
from fuseboard.calling.retries import CallTotals, Retries
from fuseboard.contract.words import Reason
from fuseboard.decision import Permit
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


class Similar(Struct, frozen=True):
    """The answer to a similar question. ``find`` returns it with its similarity from 0 to 1, or ``None``.

    You bring the search, such as a vector store. Search only what the same tenant may see.
    """

    #: Async or not.
    find: Callable[[], Any]
    at_least: float = 0.85
    name: str = "similar"


class Default(Struct, frozen=True):
    """An answer that is always there."""

    value: Any
    name: str = "default"


Step: TypeAlias = Alternative | Cached | Similar | Default


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
    #: How similar the question was whose answer this is.
    similarity: float = 0.0
    #: The quality of the answer, if it was judged.
    quality: float | None = None
    #: How often the source was asked: more than once only for quality.
    tries: int = 1
    #: The calls that were admitted for the answer, failed ones among them.
    permits: tuple[Permit, ...] = ()

    @property
    def cost(self) -> dict[str, int]:
        """The cost of all these calls, by measure that a limit counts. An estimate until a call is settled:
        the cost of a stream is known when it has been read.
        """
        total: dict[str, int] = {}
        for permit in self.permits:
            for measure, amount in permit.cost().items():
                total[measure] = total.get(measure, 0) + amount
        return total

    def __reduce__(self) -> Any:
        # A copy of another process knows no calls, as that of a decision.
        return replace(self, permits=()).__reduce__() if self.permits else super().__reduce__()


class _Chain:
    """The part that both kinds of chains share. It sends nothing."""

    def __init__(
        self,
        dependency: str,
        steps: Sequence[Step],
        retries: Callable[[], Retries],
        rule: QualityRule | None = None,
    ) -> None:
        check_name("a dependency", dependency)
        # A chain that judges its answers has a purpose without alternatives.
        if (not steps and rule is None) or len(steps) > MAX_DEPTH:
            raise Misconfigured(f"a fallback has 1 to {MAX_DEPTH} alternatives, not {len(steps)}")
        names = [dependency, *(step.name for step in steps)]
        for name in names:
            if names.count(name) > 1:
                raise Misconfigured(f"a fallback must not lead to itself: {name!r} is in it twice")
        for step in steps:
            if isinstance(step, Cached) and not step.max_age_s > 0:
                raise Misconfigured(f"max_age_s of {step.name!r} must be more than 0, not {step.max_age_s!r}")
            if isinstance(step, Similar) and not 0 < step.at_least <= 1:
                raise Misconfigured(
                    f"at_least of {step.name!r} must be above 0 and at most 1, not {step.at_least!r}"
                )
        self._dependency, self._steps, self._retries = dependency, tuple(steps), retries
        self._has_alternative = any(isinstance(step, Alternative) for step in steps)
        self._rule = rule

    def _tries(self, permits: list[Permit]) -> Tries | None:
        return Tries(self._rule, self._retries(), self._dependency, permits) if self._rule else None

    def _judged(self, tries: Tries, permits: list[Permit]) -> Answer[Any]:
        """The best answer of the dependency."""
        tries.end()
        return Answer(
            value=tries.best,
            source=self._dependency,
            is_degraded=tries.is_low,
            quality=tries.quality,
            tries=tries.made,
            permits=tuple(permits),
        )

    def _to_ask(self, first: Exception) -> list[Step]:
        """The alternatives that may have an answer. Raises ``first`` if none has."""
        if not _may_fall_back(first, takes_more=any(_takes_more(step) for step in self._steps)):
            raise first
        too_large = classify(first).degradable
        return [step for step in self._steps if not too_large or _takes_more(step)]

    def _used(
        self, step: Step, found: Any, first: Exception, permits: Sequence[Permit]
    ) -> Answer[Any] | None:
        """The answer, counted and logged; ``None`` if it is too old, or not similar enough."""
        reason, age_s, similarity = _reason(first), 0.0, 0.0
        if isinstance(step, Cached):
            if found is None or found[1] > step.max_age_s:
                first.add_note(f"fuseboard: fallback {step.name!r} has no answer that is young enough")
                return None
            found, age_s = found
        if isinstance(step, Similar):
            if found is None or not found[1] >= step.at_least:
                first.add_note(f"fuseboard: fallback {step.name!r} has no answer that is similar enough")
                return None
            found, similarity = found
        is_cached = isinstance(step, Cached | Similar)
        with self._retries().lock:
            totals = self._totals()
            totals.fallbacks += 1
            totals.cached += is_cached
        logger.warning("fallback.used dependency=%s source=%s reason=%s", self._dependency, step.name, reason)
        return Answer(
            value=found,
            source=step.name,
            is_fallback=True,
            is_cached=is_cached,
            is_degraded=not isinstance(step, Alternative),
            reason=reason,
            age_s=age_s,
            similarity=similarity,
            permits=tuple(permits),
        )

    def _failed(self, first: Exception) -> None:
        with self._retries().lock:
            self._totals().fallback_failures += 1
        logger.warning("fallback.failed dependency=%s reason=%s", self._dependency, _reason(first))

    def _totals(self) -> CallTotals:
        return self._retries().part_unlocked(self._dependency).totals


class Fallback(_Chain):
    """The chain of one dependency. Made by ``agent.fallback``; used for any number of calls."""

    async def run(self, call: Callable[..., Awaitable[T]]) -> Answer[Any]:
        """Ask the dependency with ``call``, and the alternatives in order if it fails.

        ``call`` guards itself, for example with ``agent.retrying``. In a chain with ``quality``, it gets a
        ``Try``. Raises its error if every alternative fails, with theirs as notes; and at once if it is
        cancelled, if it is refused because of its tenant, or if its request is wrong.
        """
        permits: list[Permit] = []
        with noted_in(permits):
            return await self._run(call, permits)

    async def _run(self, call: Callable[..., Awaitable[T]], permits: list[Permit]) -> Answer[Any]:
        try:
            with cheaper_source(exists=self._has_alternative):
                return await self._ask_dependency(call, permits)
        except Exception as error:
            first = error
        for step in self._to_ask(first):
            try:
                found = _ask(step)
                if isawaitable(found) and not isinstance(step, Default):
                    found = await found
                answer = self._used(step, found, first, permits)
            except Exception as error:
                _note(first, step, error)
                continue
            if answer is not None:
                return answer
        self._failed(first)
        raise first

    async def _ask_dependency(self, call: Callable[..., Awaitable[T]], permits: list[Permit]) -> Answer[Any]:
        """Raises the error of the first try. Later ones must not cost an answer that is there."""
        tries = self._tries(permits)
        if tries is None:
            value = await call()
            return Answer(value=value, source=self._dependency, permits=tuple(permits))
        again = True
        while again:
            attempt = tries.next()
            try:
                value = await call(attempt)
            except Exception as error:
                if attempt.number == 1:
                    raise
                tries.failed(error)
                break
            try:
                quality = tries.judge(value)
                if isawaitable(quality):
                    quality = await quality
            except Exception as error:
                tries.judge_failed(error)
                quality = None
            again = tries.judged(value, quality)
        return self._judged(tries, permits)


class BlockingFallback(_Chain):
    """A chain for threads. Made by ``fallback`` of a blocking agent."""

    def __init__(
        self,
        dependency: str,
        steps: Sequence[Step],
        retries: Callable[[], Retries],
        rule: QualityRule | None = None,
    ) -> None:
        super().__init__(dependency, steps, retries, rule)
        for step in steps:
            if not isinstance(step, Default) and iscoroutinefunction(_call_of(step)):
                raise Misconfigured(f"{step.name!r} is async: use 'afallback' of the agent")
        if rule is not None and iscoroutinefunction(rule.judge):
            raise Misconfigured("quality is async: use 'afallback' of the agent")

    def run(self, call: Callable[..., T]) -> Answer[Any]:
        """See ``Fallback.run``. Blocks."""
        if iscoroutinefunction(call):
            raise Misconfigured("the call is async: use 'afallback' of the agent")
        permits: list[Permit] = []
        with noted_in(permits):
            return self._run(call, permits)

    def _run(self, call: Callable[..., T], permits: list[Permit]) -> Answer[Any]:
        try:
            with cheaper_source(exists=self._has_alternative):
                return self._ask_dependency(call, permits)
        except Exception as error:
            first = error
        for step in self._to_ask(first):
            try:
                answer = self._used(step, _ask(step), first, permits)
            except Exception as error:
                _note(first, step, error)
                continue
            if answer is not None:
                return answer
        self._failed(first)
        raise first

    def _ask_dependency(self, call: Callable[..., T], permits: list[Permit]) -> Answer[Any]:
        """See ``Fallback``."""
        tries = self._tries(permits)
        if tries is None:
            value = call()
            return Answer(value=value, source=self._dependency, permits=tuple(permits))
        again = True
        while again:
            attempt = tries.next()
            try:
                value = call(attempt)
            except Exception as error:
                if attempt.number == 1:
                    raise
                tries.failed(error)
                break
            try:
                quality = tries.judge(value)
            except Exception as error:
                tries.judge_failed(error)
                quality = None
            again = tries.judged(value, quality)
        return self._judged(tries, permits)


def _call_of(step: Alternative | Cached | Similar) -> Callable[[], Any]:
    if isinstance(step, Cached):
        return step.get
    return step.find if isinstance(step, Similar) else step.call


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
