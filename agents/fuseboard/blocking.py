"""The agent for code without an event loop: threads, workers, scripts.

::

    agent = fuseboard.blocking.from_env()
    with agent.call("payments-api"):
        ...

The agent runs on a daemon thread, started on first use. A forked process (gunicorn, multiprocessing)
starts its own agent on first use, as another pod: a thread does not survive a fork, and two processes
must not spend the share of one.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack
from weakref import WeakSet

from fuseboard.agent import Agent as AsyncAgent
from fuseboard.agent_api.blocks import async_block
from fuseboard.agent_api.cross_loop import CrossLoopAgent
from fuseboard.agent_api.decorators import Blocks, Decorators
from fuseboard.agent_api.deprecation import warn_renamed
from fuseboard.agent_api.fallbacks import Fallback, Step
from fuseboard.agent_api.options import CallOptions, Neutral, RequestOptions, list_options
from fuseboard.agent_api.quality import Quality, QualityRule
from fuseboard.agent_api.retry_api import RetryArguments, RetryDecorator, RetryLoops, async_retrying
from fuseboard.agent_api.retrying import Retrying
from fuseboard.agent_api.threads import ThreadCalls
from fuseboard.backlog.agent_backlogs import ThreadBacklogs
from fuseboard.calling.failures import note_failure
from fuseboard.calling.observer import Observer
from fuseboard.calling.retries import Retries
from fuseboard.cancellation import run_until_stopped
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.failures import UNKNOWN_KIND
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import Mode, Outcome
from fuseboard.decision import Amounts, Decision, Permit
from fuseboard.primitives.api import ThreadPrimitives
from fuseboard.protection.pod import ServedRequest
from fuseboard.protection.pressure import Pressure
from fuseboard.reporting.counters import Counters
from fuseboard.settings import AgentSettings
from fuseboard.subject import NO_SUBJECT, Ask, Subject

__all__ = ["Agent", "from_env"]

logger = logging.getLogger("fuseboard")

#: ``AsyncAgent.start`` takes at most 2 s, ``stop`` half a second. Longer means that the machine hangs.
START_S = 5.0
STOP_S = 0.75
JOIN_S = 0.25


class Agent(ThreadCalls, Decorators, RetryDecorator, ThreadBacklogs, ThreadPrimitives):
    """Has the API of ``fuseboard.Agent`` without ``await``. Safe from many threads and after a fork.

    Starts on first use and stops with the process. ``start`` and ``stop``, or ``with agent:``, choose
    the time.
    """

    def __init__(self, *, settings: AgentSettings) -> None:
        super().__init__(self._started)
        self.settings = settings
        self._lock = threading.Lock()
        self._agent: AsyncAgent | None = None
        self._thread: threading.Thread | None = None
        _agents.add(self)

    # Start and stop

    def start(self) -> None:
        """Start the agent if it is not running; at most 2 s."""
        agent = self._agent
        if agent is not None and not agent.running:
            with self._lock:
                self._agent = None
        self._started()

    def stop(self) -> None:
        """Send what is not reported yet and sign off; at most a second. Calls are allowed from then on."""
        with self._lock:
            agent, thread = self._agent, self._thread
            if agent is None or thread is None or not agent.running:
                return
            stopping = asyncio.run_coroutine_threadsafe(agent.stop(), agent.loop)
            try:
                stopping.result(STOP_S)
            except TimeoutError:
                logger.warning("blocking.stop: gave up after %s s", STOP_S)
            with contextlib.suppress(RuntimeError):  # it closed meanwhile
                agent.loop.call_soon_threadsafe(agent.loop.stop)
            thread.join(JOIN_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._agent is not None and self._agent.running

    # Decisions, in addition to those of ``ThreadCalls``

    @list_options()
    async def aadmit_request(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> Decision:
        """``admit_request`` for a coroutine on any loop: for frameworks that serve both kinds of views."""
        agent = await self._on_any_loop()
        return await agent.admit_request(tenant, cost, **options)

    async def aadmit_together(self, asks: Sequence[Ask]) -> Decision:
        """``admit_together`` for a coroutine on any loop."""
        agent = await self._on_any_loop()
        return await agent.admit_together(asks)

    async def acheck_together(self, asks: Sequence[Ask]) -> Decision:
        """``check_together`` for a coroutine on any loop."""
        agent = await self._on_any_loop()
        return await agent.check_together(asks)

    @list_options()
    async def aadmit_call(self, dependency: str, **options: Unpack[CallOptions]) -> Permit:
        """``admit_call`` for a coroutine on any loop. Raises ``Refused``."""
        agent = await self._on_any_loop()
        return await agent.admit_call(dependency, **options)

    @async_block
    @list_options()
    async def arequest(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[Decision]:
        """``request`` for a coroutine on any loop. Raises ``Refused``."""
        agent = await self._on_any_loop()
        async with agent.request(tenant, cost, **options) as decision:
            yield decision

    @async_block
    @list_options()
    async def acall(
        self, dependency: str, *, neutral: Neutral = (), **options: Unpack[CallOptions]
    ) -> AsyncIterator[Permit]:
        """``call`` for a coroutine on any loop, such as an asynchronous view. Raises ``Refused``.

        A block that takes longer than the dependency's timeout is cancelled, and raises
        ``TimeoutError``, as in ``fuseboard.Agent.call``.
        """
        agent = await self._on_any_loop()
        async with agent.call(dependency, neutral=neutral, **options) as permit:
            yield permit

    @list_options()
    def aretrying(self, dependency: str, **arguments: Unpack[RetryArguments]) -> Retrying:
        """``retrying`` for a coroutine on any loop, such as an asynchronous view."""
        return async_retrying(dependency, self._on_any_loop, arguments)

    def afallback(
        self,
        dependency: str,
        steps: Sequence[Step],
        *,
        quality: Quality | None = None,
        at_least: float = 0.7,
        tries: int = 2,
    ) -> Fallback:
        """``fallback`` for a coroutine on any loop: ``await chain.run(ask)``."""
        rule = QualityRule(quality, at_least, tries) if quality is not None else None
        return Fallback(dependency, steps, lambda: self.retries, rule)

    @list_options()
    def acheck(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Deprecated: the name of ``aadmit_request`` in release 0.1."""
        warn_renamed("blocking.Agent.acheck", "blocking.Agent.aadmit_request")
        return self.aadmit_request(tenant, cost, **options)

    def report(
        self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None, *, cooldown_ms: int = 0
    ) -> None:
        """See ``fuseboard.Agent.report``."""
        agent = self._started()
        if outcome is Outcome.FAILURE and permit.failure is None:
            # Here, because the agent's thread knows no trace.
            note_failure(permit, UNKNOWN_KIND)
        agent.soon(lambda: agent.report(permit, outcome, elapsed_s, cooldown_ms=cooldown_ms))

    def soon(self, what: Callable[[], None]) -> None:
        """Do ``what`` on the agent's thread."""
        self._started().soon(what)

    def settle(self, decision: Decision, measure: str, actual: int) -> None:
        """See ``fuseboard.Agent.settle``."""
        self._started().settle(decision, measure, actual)

    def note_left(self, permit: Permit, stated: Mapping[str, tuple[int, int]], believed_s: float) -> None:
        """See ``fuseboard.Agent.note_left``."""
        self._started().note_left(permit, stated, believed_s)

    def charge(
        self,
        name: str,
        usage: Amounts | Mapping[str, int],
        *,
        tenant: str = "",
        batch: bool = False,
        as_dependency: bool = False,
    ) -> None:
        """See ``fuseboard.Agent.charge``."""
        self._started().charge(name, usage, tenant=tenant, batch=batch, as_dependency=as_dependency)

    def charge_after(self, asks: Sequence[Ask]) -> None:
        """See ``fuseboard.Agent.charge_after``."""
        self._started().charge_after(asks)

    def charge_again(self, permit: Permit, times: int) -> None:
        """See ``fuseboard.Agent.charge_again``."""
        self._started().charge_again(permit, times)

    def finish(self, decision: Decision) -> None:
        """See ``fuseboard.Agent.finish``."""
        self._started().finish(decision)

    def give_back(self, taken: Decision | Permit) -> None:
        """See ``fuseboard.Agent.give_back``."""
        self._started().give_back(taken)

    def _primitives(self) -> AsyncAgent:
        return self._started()

    async def _primitives_later(self) -> AsyncAgent:
        return now if (now := self._agent) is not None else await asyncio.to_thread(self._started)

    # State

    @property
    def mode(self) -> Mode:
        return self._started().mode

    @property
    def configuration(self) -> Configuration:
        return self._started().configuration

    @property
    def counters(self) -> Counters:
        return self._started().counters

    @property
    def observer(self) -> Observer | None:
        """See ``fuseboard.Agent.observer``."""
        return self._started().observer

    def views(self) -> tuple[BreakerView, ...]:
        """Every breaker as this pod sees it."""
        return self._started().views()

    def refused_for_s(self, dependency: str) -> float:
        """See ``fuseboard.Agent.refused_for_s``."""
        return self._started().refused_for_s(dependency)

    @property
    def retries(self) -> Retries:
        """See ``fuseboard.Agent.retries``."""
        return self._started().retries

    def timeout_s(self, dependency: str, tier: str | None = None) -> float | None:
        """See ``fuseboard.Agent.timeout_s``."""
        return self._started().timeout_s(dependency, tier)

    def pressure(self) -> Pressure:
        """See ``fuseboard.Agent.pressure``."""
        return self._started().pressure()

    def ready(self) -> bool:
        """See ``fuseboard.Agent.ready``."""
        return self._started().ready()

    def readiness(self) -> tuple[bool, str]:
        """See ``fuseboard.Agent.readiness``."""
        return self._started().readiness()

    def resilience(self) -> dict[str, Any]:
        """See ``fuseboard.Agent.resilience``."""
        return self._started().resilience()

    def metrics_text(self) -> str:
        """See ``fuseboard.Agent.metrics_text``."""
        return self._started().metrics_text()

    def enter_request(
        self, tenant: str | None, subject: Subject = NO_SUBJECT, method: str = "", path: str = ""
    ) -> ServedRequest | Decision | None:
        """See ``fuseboard.Agent.enter_request``. Never waits: ``None`` before the agent has started."""
        agent = self._agent
        return agent.enter_request(tenant, subject, method, path) if agent is not None else None

    # Methods for the decorators and the coroutines of other loops

    def _blocks(self, name: str) -> Blocks:
        return getattr(self, f"a{name}"), getattr(self, name)

    def _retry_loops(self) -> RetryLoops:
        return self.aretrying, self.retrying

    async def _on_any_loop(self) -> CrossLoopAgent:
        """The agent of now, started without blocking the loop that asks."""
        agent = now if (now := self._agent) is not None else await asyncio.to_thread(self._started)
        return CrossLoopAgent(agent, self._note_late)

    # The thread

    def _started(self) -> AsyncAgent:
        return self._agent or self._begin()

    def _begin(self) -> AsyncAgent:
        with self._lock:
            if self._agent is not None:
                return self._agent
            loop = asyncio.new_event_loop()
            agent = AsyncAgent(settings=self.settings)
            self._thread = threading.Thread(
                target=run_until_stopped, args=(loop,), name="fuseboard-loop", daemon=True
            )
            self._thread.start()
            try:
                asyncio.run_coroutine_threadsafe(agent.start(), loop).result(START_S)
            except TimeoutError:
                logger.warning("blocking.start: not ready after %s s; deciding alone until it is", START_S)
            except BaseException:  # interrupted, or unable to start: leave nothing half-started
                loop.call_soon_threadsafe(loop.stop)
                raise
            self._agent = agent
            _sign_off_at_the_end_of_a_child()
            return agent

    def _forked(self) -> None:
        """The thread and the sockets belong to the parent process."""
        # Kept, so that nothing of the parent is finalized here: this process shares its epoll and its
        # sockets.
        _of_parents.append((self._agent, self._thread))
        self._lock = threading.Lock()
        self._agent = self._thread = None
        self.settings = self.settings.in_this_process()


def from_env() -> Agent:
    """An agent with the settings of the environment (``FUSEBOARD_*``). Raises ``Misconfigured``."""
    return Agent(settings=AgentSettings.from_env())


_agents: WeakSet[Agent] = WeakSet()
_of_parents: list[object] = []


def _after_fork() -> None:
    for agent in list(_agents):
        agent._forked()


def _at_exit() -> None:
    for agent in list(_agents):
        agent.stop()


def _sign_off_at_the_end_of_a_child() -> None:
    """Children of ``multiprocessing`` end without ``atexit``; its own finalizers run instead."""
    # An application without such children need not load it.
    if (
        processes := sys.modules.get("multiprocessing")
    ) is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _at_exit, exitpriority=0)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
