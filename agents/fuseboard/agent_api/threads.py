"""An agent on an event loop, used from threads that may block."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import Any, Generic, TypeVar, Unpack

from msgspec import Struct

from fuseboard.admission.nesting import enter_block, leave_block
from fuseboard.agent_api.arguments import check_call_options, check_request_options
from fuseboard.agent_api.asks import check_asks, undecided
from fuseboard.agent_api.blocks import blocking_block
from fuseboard.agent_api.deprecation import warn_renamed
from fuseboard.agent_api.fallbacks import BlockingFallback, Step
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.options import CallOptions, Neutral, RequestOptions, list_options
from fuseboard.agent_api.quality import Quality, QualityRule
from fuseboard.agent_api.retry_api import RetryArguments, blocking_retrying
from fuseboard.agent_api.retrying import BlockingRetrying
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Misconfigured, Refused
from fuseboard.subject import Ask

logger = logging.getLogger("fuseboard")

T = TypeVar("T")
D = TypeVar("D", Decision, Permit)

#: The agent keeps its own deadline of a few milliseconds. This one is for a process that is stuck.
LATE_S = 1.0


class ThreadCalls:
    """Safe from any number of threads, except the one that runs the agent's loop."""

    def __init__(self, agent: Callable[[], LoopAgent]) -> None:
        self._agent_now = agent
        #: Decisions that the loop did not make in time. The calls were allowed, except those that need a
        #: slot of a bulkhead.
        self.late = 0

    # Requests that enter a service

    @list_options()
    def admit_request(self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]) -> Decision:
        """See ``fuseboard.Agent.admit_request``."""
        agent = self._agent_now()
        return self._ask(agent, request_question(agent, tenant, cost, options))

    def admit_together(self, asks: Sequence[Ask]) -> Decision:
        """See ``fuseboard.Agent.admit_together``."""
        agent = self._agent_now()
        return self._ask(agent, together_question(agent, asks, agent.admit_together))

    def check_together(self, asks: Sequence[Ask]) -> Decision:
        """See ``fuseboard.Agent.check_together``."""
        agent = self._agent_now()
        return self._ask(agent, together_question(agent, asks, agent.check_together))

    @list_options()
    def check(self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]) -> Decision:
        """Deprecated: the name of ``admit_request`` in release 0.1."""
        warn_renamed("blocking.Agent.check", "blocking.Agent.admit_request")
        return self.admit_request(tenant, cost, **options)

    @blocking_block
    @list_options()
    def request(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> Iterator[Decision]:
        """See ``fuseboard.Agent.request``. Raises ``Refused``."""
        decision = self.admit_request(tenant, cost, **options)
        if not decision.allowed:
            raise Refused(decision)
        try:
            yield decision
        finally:
            self._agent_now().finish(decision)

    # Calls that leave a service

    @list_options()
    def admit_call(self, dependency: str, **options: Unpack[CallOptions]) -> Permit:
        """See ``fuseboard.Agent.admit_call``. Raises ``Refused``."""
        agent = self._agent_now()
        return self._ask(agent, call_question(agent, dependency, options))

    @blocking_block
    @list_options()
    def call(
        self, dependency: str, *, neutral: Neutral = (), **options: Unpack[CallOptions]
    ) -> Iterator[Permit]:
        """See ``fuseboard.Agent.call``. Raises ``Refused``."""
        permit = self.admit_call(dependency, **options)
        agent, started = self._agent_now(), monotonic()
        permit.began_s = started
        entered = enter_block(permit) if permit.slot is not None else None
        try:
            yield permit
        except BaseException as error:
            agent.report_error(permit, error, neutral)
            raise
        finally:
            if entered is not None:
                leave_block(entered)
        permit.end_stream()
        agent.report(permit, Outcome.OK, monotonic() - started)

    @list_options()
    def retrying(self, dependency: str, **arguments: Unpack[RetryArguments]) -> BlockingRetrying:
        """See ``fuseboard.Agent.retrying``: ``for attempt in agent.retrying(name): with attempt: ...``"""
        return blocking_retrying(dependency, self, self._agent_now().retries, arguments)

    def fallback(
        self,
        dependency: str,
        steps: Sequence[Step],
        *,
        quality: Quality | None = None,
        at_least: float = 0.7,
        tries: int = 2,
    ) -> BlockingFallback:
        """Make a chain like ``fuseboard.Agent.fallback``, for functions that block: ``chain.run(ask)``."""
        rule = QualityRule(quality, at_least, tries) if quality is not None else None
        return BlockingFallback(dependency, steps, lambda: self._agent_now().retries, rule)

    def _ask(self, agent: LoopAgent, question: "Question[D]") -> D:
        refuse_loops()
        answer = submit(agent, question.ask, agent.give_back)
        if answer is None:
            return question.otherwise()
        try:
            return answer.result(question.timeout_s)
        except TimeoutError:
            if not answer.cancel():
                return answer.result()
            self._note_late()
            return question.otherwise()
        except CancelledError:
            return question.otherwise()  # the loop ended meanwhile
        except BaseException:
            # Also when this thread is interrupted: an answer that is not received is undone.
            answer.cancel()
            raise

    def _note_late(self) -> None:
        self.late += 1
        if self.late == 1:
            logger.error("threads.late: decided without the agent's loop; further ones are only counted")


class Question(Struct, Generic[D], frozen=True):
    """A decision that a thread or another loop wants from the agent's loop."""

    ask: Callable[[], Coroutine[Any, Any, D]]
    timeout_s: float
    #: The decision when the loop is stopped or too late.
    otherwise: Callable[[], D]


def request_question(
    agent: LoopAgent, tenant: str | None, cost: int, options: RequestOptions
) -> Question[Decision]:
    check_request_options(options)
    wait_s = options.get("wait_s")
    return Question(
        ask=lambda: agent.admit_request(tenant, cost, **options),
        timeout_s=LATE_S + (agent.longest_wait_s(tenant=tenant) if wait_s is None else wait_s),
        otherwise=lambda: agent.allow_unasked(tenant=tenant or ""),
    )


def together_question(
    agent: LoopAgent, asks: Sequence[Ask], ask: Callable[[Sequence[Ask]], Coroutine[Any, Any, Decision]]
) -> Question[Decision]:
    """``ask`` is the method of ``agent`` that decides them."""
    check_asks(asks)
    return Question(
        ask=lambda: ask(asks),
        timeout_s=LATE_S,
        otherwise=lambda: undecided(agent, asks),
    )


def call_question(agent: LoopAgent, dependency: str, options: CallOptions) -> Question[Permit]:
    check_call_options(options)
    longest_s = agent.longest_decision_s(dependency, options.get("wait_s"), options.get("deadline_s"))
    return Question(
        ask=lambda: agent.admit_call(dependency, **options),
        timeout_s=LATE_S + longest_s,
        otherwise=lambda: agent.permit_late(dependency),
    )


def submit(
    agent: LoopAgent, question: Callable[[], Coroutine[Any, Any, T]], undo: Callable[[T], None]
) -> Future[T] | None:
    """Run ``question`` on the agent's loop; ``None`` when the loop has ended.

    An answer is either received or undone. To undo it, cancel the future before it is set.
    """
    loop = agent.loop
    if not agent.running or loop.is_closed():
        return None
    answer: Future[T] = Future()

    def begin() -> None:
        task = loop.create_task(settle(answer, question(), undo))
        _asking.add(task)
        task.add_done_callback(_asking.discard)

    try:
        loop.call_soon_threadsafe(begin)
    except RuntimeError:  # closed in between
        return None
    return answer


async def settle(answer: Future[T], question: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> None:
    """Set ``answer`` to the result of ``question``, or undo the result if ``answer`` was cancelled before."""
    try:
        result = await question
    except Exception as error:
        if answer.set_running_or_notify_cancel():
            answer.set_exception(error)
    except BaseException:
        answer.cancel()
        raise
    else:
        if answer.set_running_or_notify_cancel():
            answer.set_result(result)
        else:
            undo(result)


async def received(
    answer: Future[T] | None, undo: Callable[[T], None], on_late: Callable[[], None], *, timeout_s: float
) -> T | None:
    """The answer of ``submit``, for a coroutine on any loop; ``None`` if the agent is stopped or too late."""
    if answer is None:
        return None
    waiting = asyncio.wrap_future(answer)
    try:
        await asyncio.wait({waiting}, timeout=timeout_s)
        if waiting.done() and not waiting.cancelled():
            return waiting.result()
        if answer.cancelled():
            return None  # the loop ended meanwhile
        if answer.cancel():
            on_late()
            return None
        return answer.result()
    except asyncio.CancelledError:
        if not answer.cancel() and answer.exception() is None:
            undo(answer.result())
        raise
    finally:
        if not waiting.cancel() and not waiting.cancelled():
            waiting.exception()  # otherwise asyncio logs an error that was never read


#: The loop itself keeps only weak references to its tasks.
_asking: set[asyncio.Task[None]] = set()


def refuse_loops() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Misconfigured(
        "this would block the event loop: use 'acall', 'aadmit_call' or 'aadmit_request' of a blocking agent,"
        " or fuseboard.Agent with 'await', or call it in a thread"
    )
