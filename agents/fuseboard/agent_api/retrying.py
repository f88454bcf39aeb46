"""Attempts of a call: each one is admitted and reported by itself.

::

    async for attempt in agent.retrying("payments-api", deadline_s=20, idempotent=True):
        async with attempt as permit:
            ...
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

from msgspec import Struct

from fuseboard.calling.deadline import deadline
from fuseboard.calling.retried_call import RetriedCall, RetryOn, Shrink
from fuseboard.calling.retries import Retries
from fuseboard.calling.waits import block, pause
from fuseboard.decision import Permit
from fuseboard.errors import Misconfigured, Refused


class AsyncCalls(Protocol):
    """An agent whose blocks are async."""

    @property
    def retries(self) -> Retries: ...

    @property
    def call(self) -> Callable[..., AbstractAsyncContextManager[Permit]]: ...


class BlockingCalls(Protocol):
    """An agent whose blocks block."""

    @property
    def call(self) -> Callable[..., AbstractContextManager[Permit]]: ...


_NOT_USED = "put the call in 'with attempt:', inside the loop: an attempt that is not used cannot be judged"


class _Attempt:
    """The attributes that both kinds of attempts show."""

    def __init__(self, call: RetriedCall, until: float | None) -> None:
        self._call = call
        self._deadline = deadline.at(until)
        #: Its number, from 1.
        self.num = call.num + 1
        #: How long the caller waited before it.
        self.waited_s = call.next_wait_s
        #: The error that ended the attempt before; ``None`` for the first.
        self.cause = call.cause
        self.entered = False
        #: Another one follows.
        self.again = False

    @property
    def next_wait(self) -> float:
        """How many seconds the next attempt is away; known when this one has failed."""
        return self._call.next_wait_s if self.again else 0.0

    @property
    def budget_left(self) -> float:
        """Retries of this dependency that the budget allows now."""
        return self._call.budget_left

    @property
    def most(self) -> int:
        """All attempts that the policy allows, this one included."""
        return self._call.most

    def _begin(self) -> None:
        if self.entered:
            raise Misconfigured("an attempt is used once: take the next one from the loop")
        self.entered = True
        self._call.begin()
        self._deadline.__enter__()

    def _not_admitted(self, error: BaseException) -> None:
        """End an attempt that was not admitted. If it was a retry, raise why the attempt before failed."""
        self._deadline.__exit__(None, None, None)
        if isinstance(error, Refused) and self.cause is not None:
            self._call.refused(error.decision.explain())
            raise self.cause from self.cause.__cause__
        self._call.dropped()

    def _ended(self, error: BaseException | None) -> bool:
        """Whether another attempt follows."""
        self._deadline.__exit__(None, None, None)
        if error is None:
            self._call.succeeded()
        elif isinstance(error, Exception):
            self.again = self._call.failed(error)
        else:
            self._call.dropped()
        return self.again


class Attempt(_Attempt):
    """One attempt of an async call. The block gets its permit."""

    def __init__(
        self,
        call: RetriedCall,
        until: float | None,
        block: AbstractAsyncContextManager[Permit],
    ) -> None:
        super().__init__(call, until)
        self._block = block

    async def __aenter__(self) -> Permit:
        self._begin()
        try:
            permit = await self._block.__aenter__()
        except BaseException as error:
            self._not_admitted(error)
            raise
        self._call.admitted()
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            await self._block.__aexit__(kind, error, trace)
        except BaseException as raised:
            if raised is not error:
                # The block ran into its timeout.
                if self._ended(raised):
                    return True
                raise
        return self._ended(error)


class BlockingAttempt(_Attempt):
    """One attempt of a call that blocks. The block gets its permit."""

    def __init__(self, call: RetriedCall, until: float | None, block: AbstractContextManager[Permit]) -> None:
        super().__init__(call, until)
        self._block = block

    def __enter__(self) -> Permit:
        self._begin()
        try:
            permit = self._block.__enter__()
        except BaseException as error:
            self._not_admitted(error)
            raise
        self._call.admitted()
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._block.__exit__(kind, error, trace)
        except BaseException as raised:
            if raised is not error:
                if self._ended(raised):
                    return True
                raise
        return self._ended(error)


class Policy(Struct, frozen=True, kw_only=True):
    """The options of the caller for its attempts."""

    dependency: str
    deadline_s: float | None = None
    on: RetryOn = None
    idempotent: bool | None = None
    preset: str | None = None
    shrink: Shrink = None
    #: The arguments of each attempt's block.
    options: dict[str, Any]


class _Attempts:
    """The part that both kinds of loops share."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        deadline_s = policy.deadline_s
        self._until = (deadline.at(None) if deadline_s is None else deadline(deadline_s)).until

    def _begin(self, retries: Retries) -> RetriedCall:
        policy = self._policy
        return RetriedCall(
            retries,
            policy.dependency,
            until=self._until,
            on=policy.on,
            idempotent=policy.idempotent,
            preset=policy.preset,
            shrink=policy.shrink,
            neutral=policy.options.get("neutral", ()),
        )


class Retrying(_Attempts):
    """The attempts of one async call: the iterator of ``Agent.retrying``."""

    def __init__(self, policy: Policy, find: Callable[[], Awaitable[AsyncCalls]]) -> None:
        super().__init__(policy)
        self._find = find
        self._attempt: Attempt | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Attempt:
        if self._attempt is None:
            self._agent = await self._find()
            self._call = self._begin(self._agent.retries)
        else:
            if not _goes_on(self._attempt):
                raise StopAsyncIteration
            try:
                await pause(self._call.next_wait_s)
            except BaseException:
                self._call.dropped()
                raise
            _resume(self._call)
        made = self._agent.call(self._policy.dependency, **self._policy.options)
        self._attempt = Attempt(self._call, self._until, made)
        return self._attempt


class BlockingRetrying(_Attempts):
    """The attempts of one call that blocks: the iterator of ``retrying`` of a blocking agent."""

    def __init__(self, policy: Policy, agent: BlockingCalls, retries: Retries) -> None:
        super().__init__(policy)
        self._agent = agent
        self._call = self._begin(retries)
        self._attempt: BlockingAttempt | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingAttempt:
        if self._attempt is not None:
            if not _goes_on(self._attempt):
                raise StopIteration
            try:
                block(self._call.next_wait_s)
            except BaseException:
                self._call.dropped()
                raise
            _resume(self._call)
        made = self._agent.call(self._policy.dependency, **self._policy.options)
        self._attempt = BlockingAttempt(self._call, self._until, made)
        return self._attempt


def _goes_on(attempt: _Attempt) -> bool:
    if not attempt.entered:
        raise Misconfigured(_NOT_USED)
    return attempt.again


def _resume(call: RetriedCall) -> None:
    """Raise the last error if the next attempt must not begin after its wait."""
    if not call.resumes() and call.cause is not None:
        raise call.cause
