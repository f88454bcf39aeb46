"""``retrying`` and ``retry`` of both kinds of agents."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, Unpack, cast

from fuseboard.agent_api.arguments import check_name, check_names
from fuseboard.agent_api.decorators import is_asynchronous, refuse_unfinished
from fuseboard.agent_api.fallbacks import Fallback, Step
from fuseboard.agent_api.options import CallOptions, Neutral, list_options
from fuseboard.agent_api.quality import Quality, QualityRule
from fuseboard.agent_api.retrying import (
    AsyncCalls,
    Attempt,
    BlockingAttempt,
    BlockingCalls,
    BlockingRetrying,
    Policy,
    Retrying,
)
from fuseboard.agent_api.tiers import Tiered, gather_tiers
from fuseboard.calling.retried_call import RetryOn, Shrink
from fuseboard.calling.retries import Retries
from fuseboard.contract.retry_presets import RETRY_PRESETS
from fuseboard.errors import Misconfigured

P = ParamSpec("P")
R = TypeVar("R")

#: The attempts of async functions, and those of blocking functions.
RetryLoops: TypeAlias = tuple[Callable[..., AsyncIterable[Attempt]], Callable[..., Iterable[BlockingAttempt]]]


class RetryArguments(CallOptions, total=False):
    """The arguments of ``retrying`` and ``retry``: those of ``call``, for each attempt, and these.

    All attempts and waits end within ``deadline_s``.
    """

    neutral: Neutral
    #: Exceptions to retry, instead of those that are classified as retryable; or a function that says so.
    on: RetryOn
    #: Repeating the call does no harm, even if the first one has arrived. ``None`` is what the dependency
    #: says.
    idempotent: bool | None
    #: How to repeat this call, instead of what the dependency says: user-facing, background, llm or
    #: rate-limited. The budget stays, and so does a policy without retries.
    preset: str | None
    #: Called after an error that a smaller request avoids, such as a prompt that is too long. It makes the
    #: request smaller and returns ``True``, or returns ``False``.
    shrink: Shrink


_RETRY_NAMES = frozenset(RetryArguments.__annotations__)
#: The arguments that are for the attempts together; the others are for each block.
_TOGETHER = frozenset({"deadline_s", "on", "idempotent", "preset", "shrink"})


def _policy(dependency: str, arguments: RetryArguments, function: str = "retrying") -> Policy:
    check_name("a dependency", dependency)
    given = cast(dict[str, Any], arguments)
    check_names(function, given.keys(), _RETRY_NAMES)
    if (preset := given.get("preset")) is not None and preset not in RETRY_PRESETS:
        raise Misconfigured(f"preset is one of {', '.join(RETRY_PRESETS)}, not {preset!r}")
    return Policy(
        dependency=dependency,
        options={name: value for name, value in given.items() if name not in _TOGETHER},
        **{name: value for name, value in given.items() if name in _TOGETHER},
    )


class RetryDecorator(ABC):
    """``retry``, the same for both kinds of agents."""

    @list_options()
    def retry(
        self, dependency: str, **arguments: Unpack[RetryArguments]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a call to the dependency, with attempts.

        The arguments are those of ``retrying``. A blocking function must not be called on the event loop.
        """
        _policy(dependency, arguments, "retry")  # wrong arguments raise now
        asynchronous, blocking = self._retry_loops()

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if is_asynchronous(function, "use 'retrying' inside it instead of the decorator"):

                @wraps(function)
                async def attempted(*given: P.args, **named: P.kwargs) -> Any:
                    async for attempt in asynchronous(dependency, **arguments):
                        async with attempt:
                            answer = await cast(Callable[P, Any], function)(*given, **named)
                    return answer

                return cast(Callable[P, R], attempted)

            @wraps(function)
            def tried(*given: P.args, **named: P.kwargs) -> R:
                for attempt in blocking(dependency, **arguments):
                    with attempt:
                        answer = function(*given, **named)
                        refuse_unfinished(function, answer)
                return answer

            return tried

        return decorate

    @abstractmethod
    def _retry_loops(self) -> RetryLoops:
        """The attempts of async functions, and those of blocking functions."""


class AsyncRetries(RetryDecorator):
    """``retrying`` of an agent whose blocks are async."""

    @list_options()
    def retrying(self, dependency: str, **arguments: Unpack[RetryArguments]) -> Retrying:
        """The attempts of one call: ``async for attempt in agent.retrying(name): async with attempt: ...``

        Each attempt is admitted and reported as by ``call``. A failed one is repeated if its error is
        retryable, the request may be repeated, and the policy of the dependency, its budget and the
        deadline allow it; its error is not raised. The error of the last one is. See docs/protection.md.
        """
        return async_retrying(dependency, self._calls, arguments)

    def fallback(
        self,
        dependency: str,
        steps: Sequence[Step],
        *,
        quality: Quality | None = None,
        at_least: float = 0.7,
        tries: int = 2,
    ) -> Fallback:
        """A chain of answers in place of the dependency: ``await chain.run(ask)``. See docs/protection.md.

        ``quality`` judges each answer of the dependency from 0 to 1. If one is below ``at_least``, it is
        asked again, at most ``tries`` times, and the best answer is returned. The call then gets a ``Try``.
        """
        rule = QualityRule(quality, at_least, tries) if quality is not None else None
        return Fallback(dependency, steps, lambda: self.retries, rule)

    async def gather_tiers(
        self,
        critical: Sequence[Awaitable[Any]] = (),
        standard: Sequence[Awaitable[Any]] = (),
        optional: Sequence[Awaitable[Any]] = (),
    ) -> Tiered:
        """Await all calls at once. A critical one must succeed; an optional one may give ``None``."""
        return await gather_tiers(critical, standard, optional)

    @property
    @abstractmethod
    def retries(self) -> Retries: ...

    @abstractmethod
    async def _calls(self) -> AsyncCalls:
        """The agent whose blocks the attempts are."""


def async_retrying(
    dependency: str, find: Callable[[], Awaitable[AsyncCalls]], arguments: RetryArguments
) -> Retrying:
    return Retrying(_policy(dependency, arguments), find)


def blocking_retrying(
    dependency: str, agent: BlockingCalls, retries: Retries, arguments: RetryArguments
) -> BlockingRetrying:
    return BlockingRetrying(_policy(dependency, arguments), agent, retries)
